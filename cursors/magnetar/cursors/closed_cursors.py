"""Cursors that are not open in this process: reading the state of one, and creating one.

Backups and restores use it to copy logs. Reading does not disturb an owner: nothing is fenced or
recovered. It returns the last state that the owner saved. If the cursor ledger is still being
written, that may be a record that is not known to be confirmed. It was written all the same, so its
acknowledgements came from consumers.

A cursor ledger that is gone for good, or damaged, is treated as the next owner would (`saver.py`):
the older snapshot in the node is used, and messages are delivered again. The log says so.
"""

from collections.abc import Callable
from typing import Protocol

import structlog

from magnetar.cursors.errors import CorruptCursorRecordError
from magnetar.cursors.node import (
    NO_LEDGER,
    CursorNode,
    OwnedNode,
    cursor_path,
    decode_node,
)
from magnetar.cursors.record import CursorRecord, decode_record
from magnetar.cursors.saver import CursorLedgers, CursorSaver, get_or_create_node
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.errors import (
    BookieUnavailableError,
    NoNodeError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST

_log = structlog.get_logger(__name__)

_READS_MAX = 100
"""Maximum number of records to read behind the last confirmed one. An owner waits for each record
before it writes the next, so there is at most one. But a reader that asks bookies one after the
other may find some that were written meanwhile."""


class UndisturbedReader(Protocol):
    """The part of a cursor ledger's reader that is needed here."""

    @property
    def is_ledger_closed(self) -> bool: ...

    async def read_last_add_confirmed(self) -> int: ...

    async def read_unconfirmed(self, entry_id: int) -> bytes: ...

    async def close(self) -> None: ...


class OpensLedgers(Protocol):
    """The part of the ledger client that is needed here."""

    async def open(self, ledger_id: int) -> UndisturbedReader: ...


async def read_closed(
    client: OpensLedgers,
    store: MetadataStore,
    log_path: str,
    name: str,
    *,
    on_rolled_back: Callable[[], None] = lambda: None,
) -> CursorNode | None:
    """Return a cursor's state, as a node that holds all of it; None if the cursor does not exist.

    Args:
        on_rolled_back: called if the state is the older one of the node, because the cursor's
            ledger is gone or damaged.

    Raises:
        InvalidCursorNodeError
        UnsupportedCursorRecordError: a newer release wrote its last record.
        LedgerError: bookies or metadata cannot tell now; try again.
    """
    path = cursor_path(log_path, name)
    try:
        node = decode_node((await store.get(path)).value, path=path)
    except NoNodeError:
        return None
    if node.cursor_ledger_id == NO_LEDGER:
        return node
    record, reason = None, "it has no entries"
    try:
        record = await _last_record(client, node.cursor_ledger_id)
    except NoSuchLedgerError as error:
        # Meanwhile the owner may have moved the state to another ledger, or into the node.
        try:
            again = decode_node((await store.get(path)).value, path=path)
        except NoNodeError:
            return None
        if again.cursor_ledger_id != node.cursor_ledger_id:
            return await read_closed(client, store, log_path, name, on_rolled_back=on_rolled_back)
        reason = f"{type(error).__name__}: {error}"
    except (NoSuchEntryError, NoSuchLedgerOnBookieError, CorruptCursorRecordError) as error:
        reason = f"{type(error).__name__}: {error}"
    if record is None:
        _log.error(
            "cursor_rolled_back",
            cursor=path,
            ledger_id=node.cursor_ledger_id,
            mark_delete=str(node.snapshot().mark_delete),
            reason=reason,
        )
        on_rolled_back()
        return node.model_copy(update={"cursor_ledger_id": NO_LEDGER})
    return node.with_snapshot(record.snapshot).model_copy(
        update={
            "cursor_ledger_id": NO_LEDGER,
            "position_properties": dict(record.position_properties),
            "last_active_ms": record.saved_ms,
        }
    )


async def _last_record(client: OpensLedgers, ledger_id: int) -> CursorRecord | None:
    reader = await client.open(ledger_id)
    try:
        entry_id = await reader.read_last_add_confirmed()
        payload = await reader.read_unconfirmed(entry_id) if entry_id >= 0 else None
        for _ in range(0 if reader.is_ledger_closed else _READS_MAX):
            try:
                payload = await reader.read_unconfirmed(entry_id + 1)
            except (NoSuchEntryError, NoSuchLedgerOnBookieError):
                break
            except BookieUnavailableError:
                break  # A bookie is down. The previous record is older, and never wrong.
            entry_id += 1
        return None if payload is None else decode_record(payload)
    finally:
        await reader.close()


async def make_closed(
    client: CursorLedgers,
    store: MetadataStore,
    log_path: str,
    name: str,
    state: CursorNode,
    *,
    settings: CursorSettings,
    clock: Clock,
) -> bool:
    """Create a cursor with the position of `state`; return False if one of that name exists.

    The state goes into the node if it fits, otherwise into a cursor ledger that is closed. A crash
    before that leaves a cursor at the beginning of the log; call again to finish it. The cursor is
    new: it counts as written now, not when `state` was.

    Raises:
        CursorFencedError: another process opened it meanwhile.
        CursorStateTooLargeError, InvalidCursorNameError
        LedgerError
    """
    path = cursor_path(log_path, name)
    first = CursorNode(
        epoch=1,
        mark_delete=(EARLIEST.ledger_id, EARLIEST.entry_id),
        properties=state.properties,
        last_active_ms=clock.wall_ms(),
    )
    # The cursors of a restored log are made before the log, so that no owner misses one.
    stored, is_new = await get_or_create_node(store, path, first, needs_log=False)
    owned = OwnedNode(store, path, stored)
    begun = owned.node.model_copy(update={"last_active_ms": first.last_active_ms})
    if not is_new and begun != first:
        return False
    saver = CursorSaver(client, owned, log_path=log_path, name=name, settings=settings, clock=clock)
    record = CursorRecord(state.snapshot(), clock.wall_ms(), state.position_properties)
    await saver.save_and_close(record)
    return True
