"""A restored log: its list of ledgers, and the positions of its cursors. Pure.

A restored log is a prefix of the one that was backed up. It ends before the first ledger that is in
no object, so consumers get messages without a hole. Its ledgers are in objects only, under their
former keys. Ledger ids and entry ids stay, and so do message ids.

Source: tiered storage, section 21 (invariant O11).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magnetar.broker.base.naming import is_replicator
from magnetar.broker.features.backup.documents import LogBackup, Uncovered
from magnetar.broker.features.compaction.compacted_ledger import CURSOR as COMPACTION_CURSOR
from magnetar.broker.features.deduplication.deduplication import CURSOR as DEDUPLICATION_CURSOR
from magnetar.broker.features.delayed.bucket_ledgers import PROPERTY as DELAYED_PROPERTY
from magnetar.broker.features.replication.receiving import MARKS_CURSOR
from magnetar.broker.features.replication.replication import INCARNATION_PROPERTY
from magnetar.broker.features.transactions.topic_log import PROPERTY as TRANSACTIONS_PROPERTY
from magnetar.broker.topic.access import EPOCH_PROPERTY
from magnetar.cursors.ack_state import AckRange, AckSnapshot
from magnetar.cursors.node import CursorNode
from magnetar.ledger.errors import InvariantError
from magnetar.ledger.managed_log.log_ledgers import RESTORED_PROPERTY
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import ObjectState
from magnetar.ledger.position import EARLIEST, Position

_NOT_RESTORED = (
    DELAYED_PROPERTY,
    TRANSACTIONS_PROPERTY,
    RESTORED_PROPERTY,
    INCARNATION_PROPERTY,
)
"""Properties that name ledgers or logs of the old cluster, or the former life of the log. The
restored topic creates them anew."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Backup from which a log is restored."""

    instance_id: str
    """Id of the cluster that made the backup."""
    backup: str
    log: str
    """Path of the log in that cluster."""
    version: int
    """Version of the log's node in that cluster."""

    def to_property(self) -> str:
        """Return the value of `RESTORED_PROPERTY`."""
        return json.dumps(
            {
                "format": 1,
                "instance_id": self.instance_id,
                "backup": self.backup,
                "log": self.log,
                "version": self.version,
            }
        )


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """The log that a restore makes from a file of the backup."""

    path: str
    backup: LogBackup
    node: LogMetadata
    cursors: Mapping[str, CursorNode]
    behind_gap: Uncovered
    """Ledgers in objects that are not restored, because an earlier ledger is in no object."""

    @property
    def has_transactions(self) -> bool:
        """Whether some of its entries may belong to transactions."""
        return TRANSACTIONS_PROPERTY in self.backup.manifest.node.properties

    @property
    def ids_used(self) -> Sequence[int]:
        """Ledger ids that messages of the log may have had, lost messages included."""
        old = self.backup.manifest.node
        marks = [node.mark_delete[0] for node in self.backup.cursors.values()]
        ids = [*(each.ledger_id for each in old.ledgers), old.removed_through, *marks]
        return [each for each in ids if each >= 0]


def plan(backup: LogBackup, name: str, *, token: int, keeps_gaps: bool = False) -> RestoredLog:
    """Return the log and the cursors that a restore makes.

    Args:
        name: name of the backup.
        token: random number from 1, which tells this creation of the node from another one.
        keeps_gaps: also restore the ledgers after one that is in no object.
    """
    old = backup.manifest.node
    kept, behind = _in_objects(old.ledgers, keeps_gaps=keeps_gaps)
    path = backup.manifest.log
    origin = Origin(backup.manifest.instance_id, name, path, backup.manifest.version)
    ends = Position(kept[-1].ledger_id, kept[-1].entries - 1) if kept else EARLIEST
    node = LogMetadata(
        ledgers=tuple(map(_in_object_only, kept)),
        properties=_properties(old, origin),
        terminated=None if old.terminated is None else min(ends, old.terminated),
        removed_through=old.removed_through,
        creation_token=token,
        object_bases=old.object_bases if kept else (),
    )
    if node.problem is not None:
        raise InvariantError(f"{path} cannot be restored: {node.problem}")
    cursors = {
        each: _cursor(each, state, old, node)
        for each, state in backup.cursors.items()
        if each != COMPACTION_CURSOR  # names a ledger of the old cluster
    }
    return RestoredLog(path, backup, node, cursors, behind)


def _in_objects(
    ledgers: Sequence[LogLedger], *, keeps_gaps: bool
) -> tuple[list[LogLedger], Uncovered]:
    """Return the ledgers to restore, and the sum of those in objects that are not restored."""
    kept: list[LogLedger] = []
    behind = Uncovered()
    has_gap = False
    for each in ledgers:
        if each.is_in_object and (keeps_gaps or not has_gap):
            kept.append(each)
        elif each.is_in_object:
            lost = Uncovered(ledgers=1, entries=each.entries, bytes=each.bytes)
            behind = behind.plus(lost)
        elif each.entries or not each.is_closed:
            has_gap = True
    return kept, behind


def _in_object_only(ledger: LogLedger) -> LogLedger:
    found = ledger.object
    assert found is not None
    return replace(ledger, object=replace(found, state=ObjectState.ONLY, next=""))


def _properties(old: LogMetadata, origin: Origin) -> dict[str, str]:
    kept = {name: text for name, text in old.properties.items() if name not in _NOT_RESTORED}
    epoch = kept.get(EPOCH_PROPERTY)
    if epoch is not None and epoch.isdecimal():
        # A producer of the old cluster with exclusive access does not have it here.
        kept[EPOCH_PROPERTY] = str(int(epoch) + 1)
    return {**kept, RESTORED_PROPERTY: origin.to_property()}


def _cursor(name: str, state: CursorNode, old: LogMetadata, new: LogMetadata) -> CursorNode:
    """Return a cursor's node in the restored log; acknowledgements of restored entries stay."""
    shape = _Shape(old, new)
    snapshot = state.snapshot()
    mark = shape.clamped(snapshot.mark_delete)
    properties = state.position_properties
    knows_messages = name in (DEDUPLICATION_CURSOR, MARKS_CURSOR)
    if knows_messages and shape.has_lost_before(snapshot.mark_delete):
        # The cursor covers lost messages: sent again, they must not count as duplicates.
        mark, properties = EARLIEST, {}
    elif is_replicator(name):
        properties = {}  # this life of the log has sent nothing: its copies name no earlier one
    clamped = AckSnapshot(
        mark,
        tuple(
            AckRange(each.ledger_id, each.first_entry_id, min(each.last_entry_id, last))
            for each in snapshot.ranges
            if each.first_entry_id <= (last := shape.last_entry(each.ledger_id))
        ),
        tuple(
            each for each in snapshot.batches if each.entry_id <= shape.last_entry(each.ledger_id)
        ),
    )
    return state.with_snapshot(clamped).model_copy(
        update={"epoch": 1, "position_properties": properties}
    )


class _Shape:
    """The ledgers of a log before and after a restore."""

    def __init__(self, old: LogMetadata, new: LogMetadata) -> None:
        self._old_order = {each.ledger_id: at for at, each in enumerate(old.ledgers)}
        self._old = old.ledgers
        self._new = {each.ledger_id: each.entries for each in new.ledgers}

    def last_entry(self, ledger_id: int) -> int:
        """Return the last entry of a restored ledger; -1 if the ledger is not restored."""
        return self._new.get(ledger_id, 0) - 1

    def clamped(self, mark: Position) -> Position:
        """Return the last restored entry at or before a mark-delete position.

        If there is none, return a position before the first restored entry.
        """
        at = self._old_order.get(mark.ledger_id)
        if at is None:
            # Trimmed earlier, or never listed because it was empty.
            following = [each for each in self._old if each.ledger_id > mark.ledger_id]
            if following:
                return self._end_before(self._old_order[following[0].ledger_id], mark)
            return self._end_before(len(self._old), mark)
        if mark.ledger_id in self._new:
            return Position(mark.ledger_id, min(mark.entry_id, self.last_entry(mark.ledger_id)))
        return self._end_before(at, EARLIEST)

    def _end_before(self, at: int, otherwise: Position) -> Position:
        for each in reversed(self._old[:at]):
            if each.ledger_id in self._new:
                return Position(each.ledger_id, self.last_entry(each.ledger_id))
        return otherwise if otherwise.ledger_id < 0 or not self._new else self._before_first()

    def _before_first(self) -> Position:
        return Position(next(iter(self._new)), -1)

    def has_lost_before(self, mark: Position) -> bool:
        """Whether an entry at or before a position existed and is not restored."""
        for each in self._old:
            if (each.ledger_id, 0) > mark:
                return False
            if each.ledger_id not in self._new and (each.entries or not each.is_closed):
                return True
        return False
