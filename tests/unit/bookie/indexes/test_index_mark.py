"""The mark of an index as a file."""

from pathlib import Path

import pytest

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.index_mark import IndexMark, Promise
from magnetar.ledger.system import SystemDisk


@pytest.mark.parametrize("keep", [0, 10])
def test_a_damaged_mark_is_told_with_its_path(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "index-mark"
    mark = IndexMark(str(path), SystemDisk())
    mark.write(Promise("db", 7))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StorageCorruptError, match=str(path)):
        mark.read()
