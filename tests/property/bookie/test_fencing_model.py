"""The fence of a ledger under any order of requests and outcomes, and the last mark's way."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.errors import JournalCorruptError, JournalFullError
from magnetar.bookie.journaling.journal_format import NO_MARK, LastMark, encode_mark
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.requests.fencing import FenceState, LedgerDescriptor
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.ports import Disk

NEW = LedgerState(b"k" * 20, fenced=False, last_add_confirmed=-1)


@given(st.lists(st.sampled_from(["request", "written", "failed"]), max_size=30))
def test_a_fence_is_confirmed_only_by_a_write_and_never_goes_away(events: list[str]) -> None:
    """I13 and D20: nobody hears of the fence before a write ended well, everybody hears once."""
    ledger = LedgerDescriptor(1, NEW, is_key_journalled=True)
    writes_under_way = 0
    asked = 0
    heard: list[JournalFullError | None] = []
    ever_written = False
    for event in events:
        if event == "request":
            must_write = ledger.request_fence()
            assert not (must_write and writes_under_way), "two writes at once"
            writes_under_way += must_write
            if ledger.fence is FenceState.PENDING:
                asked += 1
                ledger.wait_for_fence(heard.append)
        elif writes_under_way:  # an outcome comes only to a write that is under way
            error = None if event == "written" else JournalFullError("full")
            writes_under_way -= 1
            ever_written |= error is None
            ledger.on_fence_written(error)
            assert len(heard) == asked
            assert heard[-1] is error
        assert (ledger.fence is FenceState.DURABLE) is ever_written
        assert ledger.state.fenced is (ledger.fence is not FenceState.OPEN)
        assert (ledger.fence is FenceState.PENDING) is bool(writes_under_way)


class OneFile:
    """The disk under a last mark."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.is_broken = False

    def read_file(self, path: str) -> bytes:
        if self.data is None:
            raise FileNotFoundError(path)
        return self.data

    def replace_file(self, path: str, data: bytes) -> None:
        if self.is_broken:
            raise OSError("broken")
        self.data = data


marks = st.builds(LastMark, st.integers(0, 5), st.integers(0, 5))


@given(st.lists(st.tuples(marks, st.sampled_from(["ok", "broken", "restart"])), max_size=20))
def test_b6_the_last_mark_never_goes_back_and_is_never_ahead_of_the_disk(
    steps: list[tuple[LastMark, str]],
) -> None:
    disk = OneFile()
    file = LastMarks(cast(Disk, disk), ["/ledgers"])
    file.load()
    best = NO_MARK
    for mark, what in steps:
        if what == "restart":
            file = LastMarks(cast(Disk, disk), ["/ledgers"])
            assert file.load() == (best,)
            continue
        disk.is_broken = what == "broken"
        try:
            assert file.advance((mark,)) is (mark > best)
        except OSError:
            assert mark > best
            assert disk.is_broken
        else:
            best = max(best, mark)
        assert file.marks == (best,)


@given(st.builds(LastMark, st.integers(0, 9), st.integers(0, 9)), st.data())
def test_a_damaged_last_mark_is_refused(mark: LastMark, data: st.DataObject) -> None:
    disk = OneFile()
    whole = encode_mark(mark)
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(0, 255))
    disk.data = whole[:at] + (bytes([whole[at] ^ flip]) + whole[at + 1 :] if flip else b"")
    try:
        LastMarks(cast(Disk, disk), ["/ledgers"]).load()
    except JournalCorruptError:
        return
    raise AssertionError("accepted")
