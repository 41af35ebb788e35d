"""How a scrubber spreads a pass over its period, and what it keeps of it."""

import pytest

from magnetar.bookie.integrity.scrub_position import ScrubPosition, decode_position, due_in_s
from magnetar.bookie.integrity.sealed import seal

HOUR_MS = 3_600_000


def due(position: ScrubPosition, *, hours: float, total_bytes: int = 1000) -> float:
    """Seconds until the next step of a pass that began at 0 and has a day."""
    now_ms = int(hours * HOUR_MS)
    return due_in_s(position, total_bytes=total_bytes, now_ms=now_ms, period_s=86_400)


@pytest.mark.parametrize(
    ("bytes_done", "hours", "expected_s"),
    [
        (0, 0, 0),  # the first step at once
        (500, 0, 43_200),  # half is done: half of the day must be over
        (500, 11, 3600),
        (500, 12, 0),
        (500, 20, -8 * 3600),  # behind: go on
        (5000, 0, 86_400),  # data was deleted: never more than a pass
    ],
)
def test_a_pass_is_spread_evenly(bytes_done: int, hours: float, expected_s: float) -> None:
    position = ScrubPosition(pass_started_ms=0, bytes_done=bytes_done)
    assert due(position, hours=hours) == expected_s


def test_a_pass_without_data_ends_at_once_and_lasts_its_period() -> None:
    assert due(ScrubPosition(pass_started_ms=0), hours=0, total_bytes=0) == 0
    assert due(ScrubPosition(pass_started_ms=0, is_done=True), hours=1, total_bytes=0) == 23 * 3600


def test_a_wall_clock_that_was_set_back_stops_nothing() -> None:
    position = ScrubPosition(pass_started_ms=HOUR_MS, bytes_done=999)
    assert due(position, hours=0) == 0


def test_a_position_survives_and_what_is_none_begins_a_new_pass() -> None:
    position = ScrubPosition(pass_started_ms=5, ledger_id=7, entry_id=9, bytes_done=100)
    assert decode_position(position.encode()) == position
    for damaged in (b"", b"{}", b"\0" * 40, position.encode()[:-1], seal(b'{"format":2}')):
        assert decode_position(damaged) is None


def test_a_flipped_byte_makes_no_scrubber_skip_what_it_has_not_read() -> None:
    data = ScrubPosition(pass_started_ms=5, ledger_id=7, entry_id=9, bytes_done=100).encode()
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert decode_position(bytes(changed)) is None
