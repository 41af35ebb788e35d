"""Restored logs: they can be read, and are a beginning of what was backed up."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.features.backup.documents import LogBackup
from magnetar.broker.features.backup.planning import plan
from magnetar.cursors.ack_state import AckRange, AckSnapshot, AckState
from magnetar.cursors.node import CursorNode
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import LogManifest
from magnetar.ledger.position import Position
from tests.unit.cursors.growing_log import GrowingLog

LOG = "/managed-ledgers/t/n/persistent/x"
BASES = (ObjectBase("main", "5f0c/ledgers/00/x/"),)
ENTRIES_MAX = 6


@st.composite
def logs(draw: st.DrawFn) -> LogMetadata:
    """Logs with closed ledgers in every state, and perhaps an open one."""
    ids = sorted(draw(st.sets(st.integers(1, 12), max_size=6)))
    ledgers: list[LogLedger] = []
    for at, ledger_id in enumerate(ids):
        if at == len(ids) - 1 and draw(st.booleans()):
            ledgers.append(LogLedger(ledger_id))
            continue
        state = draw(st.sampled_from([None, *ObjectState]))
        found = None
        if state is not None:
            found = LedgerObject(state, f"{ledger_id:032x}", 0, 9, 9, 9)
        ledgers.append(LogLedger(ledger_id, draw(st.integers(1, ENTRIES_MAX)), 9, 1, found))
    return LogMetadata(tuple(ledgers), object_bases=BASES)


@st.composite
def cursors(draw: st.DrawFn) -> CursorNode:
    entries = st.integers(0, ENTRIES_MAX + 1)
    ranges: list[tuple[int, int, int]] = []
    for ledger_id in sorted(draw(st.sets(st.integers(1, 12), max_size=4))):
        first, last = sorted((draw(entries), draw(entries)))
        ranges.append((ledger_id, first, last))
    mark = (draw(st.integers(0, 13)), draw(st.integers(-1, ENTRIES_MAX)))
    return CursorNode(epoch=1, mark_delete=mark, ranges=tuple(ranges))


def state_on(node: LogMetadata, cursor: CursorNode) -> AckState:
    """A cursor as the broker restores it on a log."""
    log = GrowingLog(*((each.ledger_id, each.entries) for each in node.ledgers))
    return AckState.restore(log, cursor.snapshot())


@given(logs(), st.booleans())
def test_a_restored_log_can_be_read_and_has_nothing_that_was_not_there(
    old: LogMetadata, keeps_gaps: bool
) -> None:
    backup = LogBackup(LogManifest("i", LOG, 1, 1, old))
    node = plan(backup, "b", token=1, keeps_gaps=keeps_gaps).node
    assert LogMetadata.from_json(node.to_json(), path=LOG) == node
    in_objects = [each.ledger_id for each in old.ledgers if each.is_in_object]
    kept = [each.ledger_id for each in node.ledgers]
    assert kept == in_objects[: len(kept)]
    assert kept == [each.ledger_id for each in old.ledgers[: len(kept)]] or keeps_gaps
    assert kept == in_objects or not keeps_gaps


@given(logs(), cursors())
def test_an_entry_of_a_restored_log_is_acknowledged_if_it_was(
    old: LogMetadata, cursor: CursorNode
) -> None:
    closed = old.with_ledgers(each for each in old.ledgers if each.is_closed)
    restored = plan(LogBackup(LogManifest("i", LOG, 1, 1, old), {"s": cursor}), "b", token=1)
    if not restored.node.ledgers:
        return
    before, after = state_on(closed, cursor), state_on(restored.node, restored.cursors["s"])
    for ledger in restored.node.ledgers:
        for entry_id in range(ledger.entries):
            position = Position(ledger.ledger_id, entry_id)
            assert after.is_acked(position) == before.is_acked(position), position


@given(logs(), cursors())
def test_acknowledgements_name_restored_entries_only(old: LogMetadata, cursor: CursorNode) -> None:
    restored = plan(LogBackup(LogManifest("i", LOG, 1, 1, old), {"s": cursor}), "b", token=1)
    entries = {each.ledger_id: each.entries for each in restored.node.ledgers}
    snapshot: AckSnapshot = restored.cursors["s"].snapshot()
    assert all(
        each.last_entry_id < entries[each.ledger_id]
        for each in map(AckRange._make, snapshot.ranges)
    )
