"""The stored state of one durable cursor: written by its owner, recovered by the next one.

One entry of the cursor ledger is the complete state. The ledger is created at the first save and
replaced when it is full, old or broken. The order is: new ledger, state into it, node to its id,
old ledger deleted. So a crash in between leaves an unused ledger and never a lost position (managed
ledger, section 5.2). If the bookies are unavailable, the state goes into the node.

The next owner finds the state in the node, or in the last record of the cursor ledger that the node
names (section 5.3). The older snapshot in the node is used only if that ledger is gone for good: no
metadata, no entries, certainly lost, or damaged. Messages are then delivered again; none is lost. A
failure that may be temporary is an error, because rolling back then would forget acknowledgements
for nothing. Nothing here ever moves a cursor forward.

One caller at a time; `cursor.py` decides when to save.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from magnetar.cursors.ack_state import AckSnapshot, LogShape
from magnetar.cursors.errors import (
    CorruptCursorRecordError,
    CursorClosedError,
    CursorFencedError,
    CursorStateTooLargeError,
    NoSuchCursorError,
)
from magnetar.cursors.node import NO_LEDGER, CursorNode, OwnedNode, encode_node
from magnetar.cursors.record import CursorRecord, decode_record, encode_record
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.errors import (
    LedgerError,
    LedgerFencedError,
    MetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.metadata.cell import bytes_cell
from magnetar.ledger.metadata.store import MetadataStore, Versioned
from magnetar.ledger.ports import Clock

_log = structlog.get_logger(__name__)

_ATTEMPTS = 5


class CursorLog(LogShape, Protocol):
    """The log of a cursor."""

    @property
    def path(self) -> str:
        """Node of the log in the metadata store; cursors are its children."""
        ...

    async def check_owned(self) -> None:
        """Check in the metadata store that this process still owns the log.

        Raises:
            LogFencedError: another owner has taken it over.
            MetadataError: the store cannot tell now.
        """
        ...


class RecordWriter(Protocol):
    """An open cursor ledger."""

    @property
    def ledger_id(self) -> int: ...

    async def add(self, payload: bytes) -> int: ...

    async def close(self) -> object: ...

    def abandon(self) -> None:
        """End the handle without closing the ledger; pending adds fail."""
        ...


class RecordReader(Protocol):
    """A closed cursor ledger."""

    @property
    def last_add_confirmed(self) -> int: ...

    async def read(self, first: int, last: int) -> list[bytes]: ...


class CursorLedgers(Protocol):
    """Creates, recovers and deletes cursor ledgers; errors are those of the ledger component."""

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        password: bytes | None = None,
        custom_metadata: dict[str, str] | None = None,
    ) -> RecordWriter: ...

    async def open_and_recover(self, ledger_id: int) -> RecordReader: ...

    async def delete(self, ledger_id: int) -> None: ...


class CursorSaver:
    """Writes the state of one cursor. The caller must own the node: its epoch is the caller's."""

    def __init__(
        self,
        ledgers: CursorLedgers,
        owned: OwnedNode,
        *,
        log_path: str,
        name: str,
        settings: CursorSettings,
        clock: Clock,
    ) -> None:
        self._ledgers = ledgers
        self._owned = owned
        self._log_path = log_path
        self._name = name
        self._settings = settings
        self._clock = clock
        self._writer: RecordWriter | None = None
        self._opened_s = 0.0
        self._entries = 0
        self._is_abandoned = False
        self.switched_ms = 0
        """Creation time of the current cursor ledger, ms since the epoch; 0 if there is none."""
        self.record_bytes = 0
        """Size in bytes of the last record that a ledger took."""
        # Ledgers that the node names, named or may name. Those that it certainly does not name any
        # more are deleted after the next write of the node.
        self._ledger_ids: set[int] = set()
        if owned.node.cursor_ledger_id != NO_LEDGER:
            self._ledger_ids.add(owned.node.cursor_ledger_id)

    @property
    def node(self) -> CursorNode:
        """The node as last written, or as found after a write with an unknown outcome."""
        return self._owned.node

    @property
    def last_entry(self) -> int:
        """The last entry of the current cursor ledger; -1 if there is none."""
        return self._entries - 1 if self._writer is not None else -1

    async def own(self, record: CursorRecord) -> None:
        """Take the cursor over after recovery: raise the epoch, which fences the previous owner.

        A small state moves into the node at once, which frees the old cursor ledger.

        Raises:
            CursorFencedError: the node changed meanwhile: recover again.
            MetadataError: not done.
        """
        node = self.node.model_copy(update={"epoch": self.node.epoch + 1})
        folded = self._node_with(node, record, cursor_ledger_id=NO_LEDGER)
        if self._fits_node(record.snapshot, folded):
            node = folded
        else:
            node = self._shortened(node, record, cursor_ledger_id=node.cursor_ledger_id)[0]
        await self._write(node)
        await self._delete_unused()

    async def save(self, record: CursorRecord) -> CursorRecord:
        """Make the record durable; return it as saved, shortened if only the node was available.

        Raises:
            CursorFencedError: another owner took over.
            MetadataError: not saved, call again.
        """
        data = encode_record(record)
        if self._is_writer_named and not self._is_full() and await self._append(data):
            return record
        try:
            await self._switch_ledger(record, data)
        except LedgerError as error:
            # A full ledger still takes records, so its replacement is not urgent. While the
            # metadata store is unavailable, there may be no other place.
            if self._is_writer_named and await self._append(data):
                return record
            if isinstance(error, MetadataError):
                raise
            _log.warning("cursor_saved_in_node", **self._names(), reason=str(error))
            return await self._save_in_node(record)
        return record

    async def save_and_close(self, record: CursorRecord) -> CursorRecord:
        """Save a last time: a small state into the node; a large one stays in its closed ledger.

        Raises:
            CursorFencedError, MetadataError: see `save`.
        """
        folded = self._node_with(self.node, record, cursor_ledger_id=NO_LEDGER)
        if self._fits_node(record.snapshot, folded):
            await self._write(folded)
            self._writer = None
            await self._delete_unused()
            return record
        saved = await self.save(record)
        if self._writer is not None:
            try:
                await self._writer.close()
            except LedgerError as error:  # the record is durable; the next owner recovers the end
                _log.warning("cursor_ledger_not_closed", **self._names(), reason=str(error))
            self._writer = None
        return saved

    async def write_properties(self, properties: dict[str, str]) -> None:
        """Replace the subscription's properties.

        Raises:
            CursorFencedError, CursorStateTooLargeError, MetadataError
        """
        node = self.node.model_copy(update={"properties": properties})
        self._check_node_size(node)
        await self._write(node)

    async def delete(self) -> None:
        """Delete the node, then the cursor ledger.

        Raises:
            CursorFencedError: another owner took over.
            MetadataError: call again.
        """
        await self._owned.delete()
        self._writer = None
        for ledger_id in sorted(self._ledger_ids):
            await self._delete_ledger(ledger_id)

    def abandon(self) -> None:
        """Write nothing more; a save in progress fails with CursorClosedError before its next
        write."""
        self._is_abandoned = True
        if self._writer is not None:
            self._writer.abandon()

    def _check_kept(self) -> None:
        if self._is_abandoned:
            raise CursorClosedError(f"cursor {self._name} of {self._log_path} was abandoned")

    async def _write(self, node: CursorNode) -> None:
        self._check_kept()
        await self._owned.write(node)

    @property
    def _is_writer_named(self) -> bool:
        """Whether the next owner finds what the writer adds: the node certainly names its ledger.

        It does not after a write of the node that failed here and turned out to be stored. The
        writer then still has the former ledger.
        """
        return (
            self._writer is not None
            and not self._owned.is_in_doubt
            and self._writer.ledger_id == self.node.cursor_ledger_id
        )

    def _is_full(self) -> bool:
        age_s = self._clock.monotonic_s() - self._opened_s
        return (
            self._entries >= self._settings.ledger_entries_max
            or age_s >= self._settings.ledger_age_max_s
        )

    async def _append(self, data: bytes) -> bool:
        """Add a record to the current ledger; return False if the ledger is now unusable."""
        if self._writer is None:
            return False
        try:
            await self._writer.add(data)
        except LedgerFencedError as exc:
            # The client that recovered the ledger is the owner now. Continuing in a new ledger
            # would take the cursor away from it.
            raise CursorFencedError(
                f"cursor {self._name} of {self._log_path}: ledger {self._writer.ledger_id} was "
                f"fenced by another owner"
            ) from exc
        except LedgerError as error:
            self._check_kept()
            _log.warning(
                "cursor_ledger_failed",
                **self._names(),
                ledger_id=self._writer.ledger_id,
                reason=str(error),
            )
            self._writer = None
            return False
        self._entries += 1
        self.record_bytes = len(data)
        return True

    async def _switch_ledger(self, record: CursorRecord, data: bytes) -> None:
        self._check_kept()
        settings = self._settings
        writer = await self._ledgers.create(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            password=settings.password,
            custom_metadata={
                "component": "cursor",
                "log": self._log_path,
                "cursor": self._name,
            },
        )
        self._ledger_ids.add(writer.ledger_id)
        try:
            await writer.add(data)
            node, _ = self._shortened(self.node, record, cursor_ledger_id=writer.ledger_id)
            await self._write(node)
            self._check_kept()
        except BaseException as error:
            writer.abandon()  # the node may name the ledger; nothing more is added to it here
            if isinstance(error, CursorFencedError) and not self._owned.is_in_doubt:
                await self._delete_ledger(writer.ledger_id)
            raise  # if in doubt, the new owner may have seen the ledger in the node
        self._writer = writer
        self._opened_s = self._clock.monotonic_s()
        self._entries = 1
        self.switched_ms = self._clock.wall_ms()
        self.record_bytes = len(data)
        await self._delete_unused()

    async def _save_in_node(self, record: CursorRecord) -> CursorRecord:
        node, snapshot = self._shortened(self.node, record, cursor_ledger_id=NO_LEDGER)
        await self._write(node)
        self._writer = None
        await self._delete_unused()
        return record if snapshot is record.snapshot else replace(record, snapshot=snapshot)

    def _node_with(
        self, node: CursorNode, record: CursorRecord, *, cursor_ledger_id: int
    ) -> CursorNode:
        return node.with_snapshot(record.snapshot).model_copy(
            update={
                "cursor_ledger_id": cursor_ledger_id,
                "position_properties": dict(record.position_properties),
                "last_active_ms": record.saved_ms,
            }
        )

    def _fits_node(self, snapshot: AckSnapshot, node: CursorNode) -> bool:
        return (
            len(snapshot.ranges) + len(snapshot.batches) <= self._settings.node_ranges_max
            and len(encode_node(node)) <= self._settings.node_bytes_max
        )

    def _shortened(
        self, node: CursorNode, record: CursorRecord, *, cursor_ledger_id: int
    ) -> tuple[CursorNode, AckSnapshot]:
        """Return a node within the limits, and the part of the snapshot that is in it."""
        snapshot = record.snapshot
        room = self._settings.node_ranges_max
        while True:
            ranges = snapshot.ranges[:room]
            batches = snapshot.batches[: room - len(ranges)]
            kept = snapshot
            if (len(ranges), len(batches)) != (len(snapshot.ranges), len(snapshot.batches)):
                kept = replace(
                    snapshot,
                    ranges=ranges,
                    batches=batches,
                    ranges_dropped=snapshot.ranges_dropped + len(snapshot.ranges) - len(ranges),
                    batches_dropped=(
                        snapshot.batches_dropped + len(snapshot.batches) - len(batches)
                    ),
                )
            shortened = self._node_with(
                node, replace(record, snapshot=kept), cursor_ledger_id=cursor_ledger_id
            )
            if room == 0:
                self._check_node_size(shortened)
                return shortened, kept
            if len(encode_node(shortened)) <= self._settings.node_bytes_max:
                return shortened, kept
            room = min(room, len(ranges) + len(batches)) // 2

    def _check_node_size(self, node: CursorNode) -> None:
        size = len(encode_node(node))
        if size > self._settings.node_bytes_max:
            raise CursorStateTooLargeError(
                f"cursor {self._name} of {self._log_path}: its properties make a node of {size} "
                f"bytes; node_bytes_max is {self._settings.node_bytes_max}"
            )

    async def _delete_unused(self) -> None:
        """Delete the ledgers that the node, which was just written, does not name."""
        for ledger_id in sorted(self._ledger_ids - {self.node.cursor_ledger_id}):
            await self._delete_ledger(ledger_id)

    async def _delete_ledger(self, ledger_id: int) -> None:
        self._ledger_ids.discard(ledger_id)
        try:
            await self._ledgers.delete(ledger_id)
        except NoSuchLedgerError:
            pass  # deleted already
        except LedgerError as error:  # unused and harmless: a sweep finds it by its metadata
            _log.warning(
                "cursor_ledger_left_behind",
                **self._names(),
                ledger_id=ledger_id,
                reason=str(error),
            )

    def _names(self) -> dict[str, str]:
        return {"topic": self._log_path, "subscription": self._name}


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """State of a cursor as it was saved, not yet fitted to the log."""

    snapshot: AckSnapshot
    position_properties: Mapping[str, int]


async def get_or_create_node(
    store: MetadataStore, path: str, initial: CursorNode | None, *, needs_log: bool = True
) -> tuple[Versioned, bool]:
    """Return the stored node, and whether this call created it from `initial`.

    `needs_log`: whether a new node is made only below a log. Otherwise a cursor that is made while
    its log is being deleted would leave a node in the log's place that is none.

    Raises:
        NoSuchCursorError: the node does not exist, and `initial` is None.
        NoNodeError: with `needs_log`, the log does not exist, perhaps not any more.
        MetadataError: the store cannot be reached.
    """
    cell = bytes_cell(store, path, needs_parent=needs_log, tries_max=_ATTEMPTS)
    if initial is None:
        found, is_made = await cell.read(), False
    else:
        found, is_made = await cell.have(encode_node(initial))
    if found is None or found.value is None:
        raise NoSuchCursorError(f"there is no cursor at {path}")
    return Versioned(found.value, found.version), is_made


async def recover_state(ledgers: CursorLedgers, node: CursorNode, path: str) -> RecoveredState:
    """Return the newest state that the node leads to.

    Raises:
        LedgerError: bookies or metadata cannot tell now; try again.
        UnsupportedCursorRecordError: a newer release wrote the record.
    """
    in_node = RecoveredState(node.snapshot(), node.position_properties)
    ledger_id = node.cursor_ledger_id
    if ledger_id == NO_LEDGER:
        return in_node
    try:
        reader = await ledgers.open_and_recover(ledger_id)
        last_entry_id = reader.last_add_confirmed
        if last_entry_id >= 0:
            (payload,) = await reader.read(last_entry_id, last_entry_id)
            record = decode_record(payload)
            return RecoveredState(record.snapshot, record.position_properties)
        reason = "it has no entries"
    except (
        NoSuchLedgerError,
        NoSuchEntryError,
        NoSuchLedgerOnBookieError,
        CorruptCursorRecordError,
    ) as error:
        reason = f"{type(error).__name__}: {error}"
    _log.error(
        "cursor_rolled_back",
        cursor=path,
        ledger_id=ledger_id,
        mark_delete=str(in_node.snapshot.mark_delete),
        reason=reason,
    )
    return in_node
