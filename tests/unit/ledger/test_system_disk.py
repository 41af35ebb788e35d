"""The file system of the operating system (`system.py`)."""

from pathlib import Path

import pytest

from magnetar.ledger.system import SystemDisk


def test_what_cannot_be_looked_at_does_not_count_as_absent(tmp_path: Path) -> None:
    disk = SystemDisk()
    (tmp_path / "file").write_bytes(b"")
    assert disk.exists(str(tmp_path))
    assert disk.exists(str(tmp_path / "file"))
    assert not disk.exists(str(tmp_path / "missing"))
    assert not disk.exists(str(tmp_path / "missing" / "below"))
    assert not disk.exists(str(tmp_path / "file" / "below"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")  # fails for root as well, unlike a mode
    with pytest.raises(OSError, match="symbolic links"):
        disk.exists(str(tmp_path / "loop"))
