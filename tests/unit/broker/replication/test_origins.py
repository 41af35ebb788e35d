"""The index of origins: what is in a run, what is forgotten, and what may still come. And its
window, which reads what was stored before."""

import pytest

from magnetar.broker.features.replication.acks import OriginAcks
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.features.replication.subscriptions.origin_window import OriginWindow
from magnetar.broker.features.replication.subscriptions.origins import Origin, OriginIndex
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.errors import (
    LedgerError,
    LogDataLossError,
    LogTrimmedError,
    LogUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ObjectKeyError,
    ObjectMissingError,
    ObjectStoreRefusedError,
    UnauthorizedError,
)
from magnetar.ledger.position import Position
from tests.unit.broker.harness import entry
from tests.unit.broker.memory_log import MemoryLog

HERE, WEST, NORTH = Source("east", 1), Source("west", 2), Source("north", 3)


def at(entry_id: int) -> Position:
    return Position(7, entry_id)


def west(entry_id: int) -> Origin:
    return Origin(WEST, Position(30, entry_id))


def index(*origins: Origin | None, runs_max: int = 100, low: int = 0) -> OriginIndex:
    """An index of entries that follow each other; None: one of this cluster."""
    made = OriginIndex(at(low), runs_max=runs_max)
    for number, origin in enumerate(origins, low):
        if origin is not None:
            made.add(at(number), origin)
    return made


def origins(made: OriginIndex, first: int, last: int) -> dict[Source, list[AckRange]]:
    found = made.to_origins(HERE, [AckRange(7, first, last)], [])
    return {source: list(acks.ranges) for source, acks in found.items()}


def test_copies_in_a_row_are_one_run_and_what_is_no_copy_is_its_own_origin() -> None:
    made = index(None, west(0), west(1), west(2), None)
    assert len(made) == 1
    assert origins(made, 0, 4) == {
        HERE: [AckRange(7, 0, 0), AckRange(7, 4, 4)],
        WEST: [AckRange(30, 0, 2)],
    }
    assert origins(made, 2, 2) == {WEST: [AckRange(30, 1, 1)]}


def test_where_an_origin_was_left_out_a_run_ends() -> None:
    """G11: the one between was never here."""
    made = index(west(0), west(2))
    assert len(made) == 2
    assert origins(made, 0, 1) == {WEST: [AckRange(30, 0, 0), AckRange(30, 2, 2)]}
    found, coming = made.to_locals(WEST, OriginAcks((AckRange(30, 0, 3),)))
    assert found.ranges == [AckRange(7, 0, 0), AckRange(7, 1, 1)]
    assert coming.ranges == (AckRange(30, 3, 3),)


def test_of_a_marker_nothing_is_told() -> None:
    made = index(None)
    made.add(at(1), None)
    assert origins(made, 0, 2) == {HERE: [AckRange(7, 0, 0), AckRange(7, 2, 2)]}


def test_of_what_was_before_nothing_is_known_until_it_is_read() -> None:
    made = index(west(5), low=4)
    made.add(at(3), west(4))
    assert origins(made, 0, 4) == {WEST: [AckRange(30, 5, 5)]}
    made.extend_back(at(2), [(at(3), west(4))])
    assert origins(made, 0, 4) == {HERE: [AckRange(7, 2, 2)], WEST: [AckRange(30, 4, 5)]}


def test_what_a_third_cluster_has_not_copied_yet_may_come_and_what_it_passed_never_does() -> None:
    made = index(west(3))
    told = OriginAcks((AckRange(30, 1, 1), AckRange(30, 4, 5)), (BatchAck(30, 7, 1),))
    found, coming = made.to_locals(WEST, told)
    assert (found.ranges, found.batches) == ([], [])
    assert coming == OriginAcks((AckRange(30, 4, 5),), (BatchAck(30, 7, 1),))
    _, coming = made.to_locals(NORTH, told)
    assert coming == told, "of a source that is not known everything may come"


def test_batches_are_mapped_both_ways() -> None:
    made = index(None, west(8))
    found = made.to_origins(HERE, [], [BatchAck(7, 0, 2), BatchAck(7, 1, 5)])
    assert found == {
        HERE: OriginAcks((), (BatchAck(7, 0, 2),)),
        WEST: OriginAcks((), (BatchAck(30, 8, 5),)),
    }
    assert made.to_locals(WEST, found[WEST])[0].batches == [BatchAck(7, 1, 5)]


def test_at_the_bound_nothing_is_forgotten_and_beyond_it_the_older_half() -> None:
    made = index(*(west(2 * number) for number in range(4)), runs_max=4)
    assert (len(made), made.low) == (4, at(0))
    made.add(at(4), west(8))
    assert len(made) == 2
    assert made.low == made.floor._replace(entry_id=made.floor.entry_id + 1) == at(3)
    assert origins(made, 0, 4) == {WEST: [AckRange(30, 6, 6), AckRange(30, 8, 8)]}


def test_what_all_have_passed_is_forgotten() -> None:
    made = index(west(0), west(1), west(2), None, west(3))
    made.trim(at(3))
    assert (len(made), made.low) == (1, at(4))
    made.trim(at(1))
    assert made.low == at(4)


def test_what_is_read_back_stays_within_the_bound_however_much_it_is() -> None:
    made = index(west(100), low=50, runs_max=2)
    made.extend_back(at(0), [(at(number), west(2 * number)) for number in range(0, 20, 2)])
    assert len(made) == 1
    assert made.low == at(19)
    assert made.floor == at(18)


class _Log(MemoryLog):
    """A log whose reads return one entry, and some of whose reads fail."""

    failing = 0
    broken: LedgerError | None = None
    """Raised by each read from the third entry on."""

    async def read_range(
        self, start: Position, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]:
        if self.failing and start.entry_id % 2:
            self.failing -= 1
            raise LogUnavailableError("the bookies are away")
        if start.entry_id == 2 and self.broken is not None:
            raise self.broken
        return await super().read_range(start, entries_max=1, bytes_max=bytes_max)


async def test_reads_that_failed_do_not_count_against_the_entries_that_may_be_read() -> None:
    log = _Log()
    log.store(*(entry() for _ in range(6)))
    window = OriginWindow(log, entries_max=6, runs_max=100, read_entries=2, read_bytes=1 << 20)
    log.failing = 5
    for _ in range(5):
        with pytest.raises(LogUnavailableError):
            await window.reach(at(-1))
    await window.reach(at(-1))
    assert window.is_whole


@pytest.mark.parametrize(
    "error",
    [
        LogDataLossError("its ledger is gone"),
        LogTrimmedError("it was trimmed", (3, 0)),
        NoSuchEntryError("no bookie has it any more"),
        NoSuchLedgerError("its ledger is gone"),
        ObjectMissingError("its object is gone"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_index_ends_behind_an_entry_that_can_never_be_read(error: LedgerError) -> None:
    log = _Log()
    log.store(*(entry() for _ in range(6)))
    log.broken = error
    window = OriginWindow(log, entries_max=6, runs_max=100, read_entries=2, read_bytes=1 << 20)
    await window.reach(at(-1))
    assert not window.lacks(at(-1))
    assert window.index.low == at(4)


@pytest.mark.parametrize(
    "error",
    [
        ObjectKeyError("the key is missing"),
        ObjectStoreRefusedError("wrong credentials"),
        UnauthorizedError("another password"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_entries_are_read_once_an_operator_has_corrected_what_forbade_it(
    error: LedgerError,
) -> None:
    log = _Log()
    log.store(*(entry() for _ in range(6)))
    log.broken = error
    window = OriginWindow(log, entries_max=6, runs_max=100, read_entries=2, read_bytes=1 << 20)
    with pytest.raises(type(error)):
        await window.reach(at(-1))
    log.broken = None
    await window.reach(at(-1))
    assert window.is_whole


async def test_no_more_entries_are_read_than_may_be() -> None:
    log = _Log()
    log.store(*(entry() for _ in range(6)))
    window = OriginWindow(log, entries_max=3, runs_max=100, read_entries=2, read_bytes=1 << 20)
    await window.reach(at(-1))
    assert window.index.low == at(3)
    assert not window.lacks(at(-1))
    assert len(log.reads) == 3
