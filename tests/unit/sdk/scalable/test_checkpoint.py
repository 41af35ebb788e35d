"""Checkpoints as bytes."""

import pytest

from magnetar.sdk import MessageId
from magnetar.sdk.errors import CheckpointError
from magnetar.sdk.scalable import checkpoint
from magnetar.sdk.scalable.checkpoint import Checkpoint, CheckpointKind


def test_a_checkpoint_of_the_java_client_is_read() -> None:
    """Recorded: one segment, read from its beginning."""
    data = bytes.fromhex(
        "000000000100000000000000000000001808ffffffffffffffffff0110ffffffffffffffffff013000"
    )
    read = Checkpoint.from_bytes(data)
    assert read.kind is CheckpointKind.POSITIONS
    assert read.positions == {0: MessageId.EARLIEST}


@pytest.mark.parametrize(
    "one",
    [
        Checkpoint.EARLIEST,
        Checkpoint.LATEST,
        Checkpoint(CheckpointKind.POSITIONS, {}),
        Checkpoint(
            CheckpointKind.POSITIONS,
            {3: MessageId(7, 1, 4, -1, 9), 1 << 40: MessageId.LATEST, 0: MessageId.EARLIEST},
        ),
    ],
)
def test_what_is_kept_comes_back(one: Checkpoint) -> None:
    again = Checkpoint.from_bytes(one.to_bytes())
    assert (again.kind, dict(again.positions)) == (one.kind, dict(one.positions))


def test_every_damaged_length_is_refused() -> None:
    whole = Checkpoint(CheckpointKind.POSITIONS, {3: MessageId(7, 1)}).to_bytes()
    for length in range(len(whole)):
        with pytest.raises(CheckpointError):
            Checkpoint.from_bytes(whole[:length])
    with pytest.raises(CheckpointError, match="too many"):
        Checkpoint.from_bytes(whole + b"\0")
    with pytest.raises(CheckpointError):
        Checkpoint.from_bytes(b"\x07" + whole[1:])


def test_more_positions_than_the_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Checkpoint(CheckpointKind.POSITIONS, {1: MessageId(1, 1), 2: MessageId(1, 1)}).to_bytes()
    monkeypatch.setattr(checkpoint, "POSITIONS_MAX", 2)
    assert len(Checkpoint.from_bytes(one).positions) == 2
    monkeypatch.setattr(checkpoint, "POSITIONS_MAX", 1)
    with pytest.raises(CheckpointError, match="at most 1"):
        Checkpoint.from_bytes(one)
