"""A broker that is to encrypt objects and cannot does not start, and says why in one line."""

from pathlib import Path

import pytest

from tests.integration.deploy.commands import magnetar
from tests.processes import free_ports

KEY = bytes(range(32)).hex()


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (None, 0o600, "cannot read"),
        (f"one {KEY}", 0o644, "chmod 600"),
        (f"one {KEY[1:]}", 0o600, "line 1: expected `ID HEX`"),
        (f"other {KEY}", 0o600, "no key 'one' for new objects"),
    ],
)
def test_a_key_file_that_cannot_be_used_stops_the_start(
    tmp_path: Path, text: str | None, mode: int, reason: str
) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    port, http_port = free_ports(2)
    ended = magnetar(
        *("standalone", "--data", str(tmp_path / "data")),
        *("--port", str(port), "--http-port", str(http_port)),
        environment={
            "MAGNETAR_BROKER_OBJECT_KEY_FILE": str(path),
            "MAGNETAR_BROKER_OBJECT_KEY_ID": "one",
        },
    )
    assert ended.status != 0
    (line,) = ended.messages()
    assert "object_key_file" in line
    assert reason in line
    assert KEY[1:] not in ended.stderr + ended.stdout
