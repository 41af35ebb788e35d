"""Finding the state of a cursor that an earlier owner left: managed ledger, section 5.3.

The state is in the node, or in the last record of the cursor ledger that the node names. Only if
that ledger is gone for good - no metadata, no entries, certainly lost, or damaged - the older
snapshot in the node is used: messages come again, none is lost. Whatever may pass by itself is an
error, because rolling back then would forget acknowledgements for nothing. Nothing here ever moves
a cursor forward.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from magnetar.cursors.ack_state import AckSnapshot
from magnetar.cursors.errors import CorruptCursorRecordError, NoSuchCursorError
from magnetar.cursors.ledgers import CursorLedgers
from magnetar.cursors.node import NO_LEDGER, CursorNode, encode_node
from magnetar.cursors.record import decode_record
from magnetar.ledger.errors import (
    NodeExistsError,
    NoNodeError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore, Versioned

_log = structlog.get_logger(__name__)

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """State of a cursor as it was saved, not yet fitted to the log."""

    snapshot: AckSnapshot
    position_properties: Mapping[str, int]


async def get_or_create_node(
    store: MetadataStore, path: str, initial: CursorNode | None
) -> tuple[Versioned, bool]:
    """The stored node, and whether it was made by this call from `initial`.

    Raises:
        NoSuchCursorError: there is none, and `initial` is None.
        MetadataError: the store cannot be reached.
    """
    for _ in range(_ATTEMPTS):
        try:
            return await store.get(path), False
        except NoNodeError as exc:
            if initial is None:
                raise NoSuchCursorError(f"there is no cursor at {path}") from exc
        value = encode_node(initial)
        try:
            await store.create(path, value)
            stored = await store.get(path)
        except (NodeExistsError, NoNodeError, UnknownOutcomeError):
            continue  # somebody else is at it, or it may be there: look again
        return stored, stored.value == value
    raise UnknownOutcomeError(f"{path}: could neither be read nor created")


async def recover_state(ledgers: CursorLedgers, node: CursorNode, path: str) -> RecoveredState:
    """The newest state that the node leads to.

    Raises:
        LedgerError: bookies or metadata cannot tell now; try again.
        UnsupportedCursorRecordError: written by a newer release.
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
