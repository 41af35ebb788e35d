"""The metadata node of a durable cursor: its path, its value, and its owner's writes.

The value is JSON, which `zkCli` shows as it is. Format: docs/formats/cursor-record.md. Opening a
cursor raises the node's `epoch` by compare-and-set. From then on the previous owner gets
BADVERSION, and so learns that it is fenced.

There are further operations on the nodes of cursors that no owner has open. Such cursors are copied
to a log that is not served yet, deleted with their log, and asked whether they still name a ledger.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.cursors.ack_state import (
    AckRange,
    AckSnapshot,
    BatchAck,
    bits_from_words,
    words_from_bits,
)
from magnetar.cursors.errors import (
    CursorError,
    CursorFencedError,
    InvalidCursorNameError,
    InvalidCursorNodeError,
)
from magnetar.ledger.errors import (
    BadVersionError,
    MetadataError,
    NoNodeError,
    NoSuchLedgerError,
    OwnerUnclearError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.cell import GONE, Cell, Deletion, Stored, bytes_cell
from magnetar.ledger.metadata.store import MetadataStore, Versioned
from magnetar.ledger.orphans import IsReferred, owner_value
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.validation import first_problem

# Stored in metadata, never renumber.
FORMAT = 1

NO_LEDGER = -1
"""Cursor ledger id of a cursor whose state is in its node."""

_NAME_BYTES_MAX = 1024
_WRITE_ATTEMPTS = 3


class CursorNode(BaseModel):
    """Value of a cursor's node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    epoch: int = Field(ge=1)
    cursor_ledger_id: int = Field(default=NO_LEDGER, ge=NO_LEDGER)
    mark_delete: tuple[int, int]
    ranges: tuple[tuple[int, int, int], ...] = ()
    batches: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    position_properties: dict[str, int] = Field(default_factory=dict)
    properties: dict[str, str] = Field(default_factory=dict)
    last_active_ms: int = 0

    def snapshot(self) -> AckSnapshot:
        """Return the acknowledgements in the node."""
        return AckSnapshot(
            Position(*self.mark_delete),
            tuple(AckRange(*ack_range) for ack_range in self.ranges),
            tuple(
                BatchAck(ledger_id, entry_id, bits_from_words(words))
                for ledger_id, entry_id, words in self.batches
            ),
        )

    def with_snapshot(self, snapshot: AckSnapshot) -> "CursorNode":
        """Return a copy with other acknowledgements."""
        return self.model_copy(
            update={
                "mark_delete": tuple(snapshot.mark_delete),
                "ranges": tuple(map(tuple, snapshot.ranges)),
                "batches": tuple(
                    (batch.ledger_id, batch.entry_id, words_from_bits(batch.remaining))
                    for batch in snapshot.batches
                ),
            }
        )


def encode_node(node: CursorNode) -> bytes:
    """Encode the node's value: compact JSON in UTF-8."""
    return node.model_dump_json().encode()


def decode_node(value: bytes, *, path: str = "cursor node") -> CursorNode:
    """Decode and check a node's value; `path` names it in errors.

    Raises:
        InvalidCursorNodeError: it is not JSON, has another format, or an invalid field.
    """
    try:
        return CursorNode.model_validate_json(value)
    except ValidationError as exc:
        problem = first_problem(exc, whole="the whole")
        raise InvalidCursorNodeError(
            f"{path} holds no cursor of this release: {problem}. Nothing was changed"
        ) from exc


def cursor_path(log_path: str, name: str) -> str:
    """Return the path of the node of the cursor `name`.

    Raises:
        InvalidCursorNameError: the name is empty, or has more than 1024 bytes.
    """
    encoded = name.encode("utf-8", "surrogatepass")
    if not 0 < len(encoded) <= _NAME_BYTES_MAX:
        raise InvalidCursorNameError(
            f"a cursor's name must have 1 to {_NAME_BYTES_MAX} bytes, got {len(encoded)}"
        )
    quoted = quote(encoded, safe="")
    # ZooKeeper takes these two names for relative paths.
    return f"{log_path}/{quoted.replace('.', '%2E') if name in ('.', '..') else quoted}"


async def list_cursors(store: MetadataStore, log_path: str) -> list[str]:
    """Return the names of the durable cursors of a log, sorted; none if the log does not exist.

    Raises:
        MetadataError: the store cannot be reached.
    """
    try:
        children = await store.children(log_path)
    except NoNodeError:
        return []
    return sorted(unquote(child) for child in children)


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """The position of a cursor that no owner has open, by its node alone."""

    mark_delete: Position
    """Mark-delete position in the node; a lower bound if `has_ledger`."""
    has_ledger: bool = False
    """Whether some or all of the cursor's state is in a ledger."""
    created_ms: int | None = None
    """When the node was created, by the store's clock; None if the store keeps no times."""


async def read_stored(store: MetadataStore, log_path: str, name: str) -> StoredCursor | None:
    """Return a cursor's position without opening it; None if the cursor does not exist.

    Raises:
        InvalidCursorNodeError
        MetadataError: the store cannot be reached.
    """
    path = cursor_path(log_path, name)
    try:
        stored = await store.get(path)
    except NoNodeError:
        return None
    node = decode_node(stored.value, path=path)
    return StoredCursor(
        Position(*node.mark_delete),
        node.cursor_ledger_id != NO_LEDGER,
        stored.created_ms,
    )


class OwnedNode:
    """The node as its owner, the only handle that may write it, knows it: value, version, doubts.

    A write with an unknown outcome leaves its value *in doubt*: it may be stored now, or appear
    later. Before the next write the node is read again. It then has one of those values, the old
    one, or another owner's. A successful write ends all doubts.
    """

    def __init__(self, store: MetadataStore, path: str, stored: Versioned) -> None:
        self._store = store
        self._path = path
        self._version = stored.version
        self._value = stored.value
        self._doubts: list[bytes] = []
        self.node = decode_node(stored.value, path=path)

    @property
    def is_in_doubt(self) -> bool:
        """Whether a value that this handle tried to write may have been stored, if only for a
        moment, or the node may be gone."""
        return bool(self._doubts)

    async def write(self, node: CursorNode) -> None:
        """Replace the node's value.

        Raises:
            CursorFencedError: another owner wrote or deleted the node.
            MetadataError: not written now; `is_in_doubt` tells whether it may have been.
        """
        value = encode_node(node)
        for _ in range(_WRITE_ATTEMPTS):
            if self._doubts:
                try:
                    await self._read_again()
                except NoNodeError as exc:
                    raise self._fenced() from exc
            if self._value == value or await self._try_write(value):
                self.node = node
                return
        raise UnknownOutcomeError(f"{self._path}: the store does not say whether it was written")

    async def _try_write(self, value: bytes) -> bool:
        self._doubts.append(value)
        try:
            self._version = await self._store.set(self._path, value, version=self._version)
        except UnknownOutcomeError:
            return False
        except (BadVersionError, NoNodeError) as exc:
            self._doubts.pop()
            if self._doubts:
                return False  # an earlier attempt may have succeeded after all
            raise self._fenced() from exc
        except MetadataError:
            self._doubts.pop()
            raise
        self._value = value
        self._doubts.clear()
        return True

    async def delete(self) -> None:
        """Delete the node; fine if it is gone.

        Raises:
            CursorFencedError: another owner wrote it.
            MetadataError: the store cannot be reached, or the outcome is unknown: call again.
        """
        ours = {self._value, *self._doubts}
        looks = 0

        async def gone(found: bytes | None) -> Deletion | None:
            nonlocal looks
            looks += 1
            if found is None:
                return None
            # Without a doubt of this handle, a second look means that another owner changed the
            # version.
            if found not in ours or (looks > 1 and not self._doubts):
                raise self._fenced()
            return GONE

        known = None if self._doubts else Stored(self._value, self._version)
        cell = bytes_cell(self._store, self._path, tries_max=_WRITE_ATTEMPTS)
        await cell.change_async(gone, known=known, is_sure=False, on_doubt=self._doubt_deletion)

    def _doubt_deletion(self) -> None:
        """Record that the node may be gone: a save must read it before it writes."""
        self._doubts.append(self._value)

    async def _read_again(self) -> None:
        """Adopt the value of an earlier attempt, if the store holds it.

        Raises:
            NoNodeError, CursorFencedError, MetadataError
        """
        stored = await self._store.get(self._path)
        if (stored.version, stored.value) == (self._version, self._value):
            return
        # The same version with another value: the node was deleted, and another owner made a new
        # one.
        if stored.version == self._version or stored.value not in self._doubts:
            # This handle's value may have been stored before. The doubts stay, so that the ledger
            # that the value named is not deleted.
            raise self._fenced()
        self._version, self._value = stored.version, stored.value
        self._doubts.clear()
        # The write that reads the node may fail. The saver then asks which ledger it names now.
        self.node = decode_node(stored.value, path=self._path)

    def _fenced(self) -> CursorFencedError:
        return CursorFencedError(f"cursor {self._path}: another owner wrote or deleted its node")


class DeletesLedgers(Protocol):
    """The part of the ledger client that is needed here."""

    async def delete(self, ledger_id: int) -> None: ...


async def copy_cursor(
    store: MetadataStore, from_log_path: str, to_log_path: str, name: str, *, now_ms: int
) -> bool:
    """Create a cursor of the same name and properties at the beginning of another log.

    An existing one there is left unchanged. Return False if the cursor to copy is gone; then none
    was created. `now_ms`: wall clock. The copy is new, and must not seem unused since the other
    one was written.

    Raises:
        NoNodeError: the other log does not exist, perhaps not any more.
        InvalidCursorNodeError, MetadataError
    """
    path = cursor_path(from_log_path, name)
    try:
        node = decode_node((await store.get(path)).value, path=path)
    except NoNodeError:
        return False
    copy = CursorNode(
        epoch=1,
        mark_delete=(EARLIEST.ledger_id, EARLIEST.entry_id),
        properties=node.properties,
        last_active_ms=now_ms,
    )
    cell = bytes_cell(store, cursor_path(to_log_path, name), needs_parent=True)
    await cell.create(encode_node(copy))
    return True


async def delete_unopened(
    client: DeletesLedgers,
    store: MetadataStore,
    log_path: str,
    name: str,
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Delete a cursor whose log is being deleted: its node first, then its ledger.

    That fences an owner that still has it open. Safe to call again.

    `check`: awaited between the read of the node and its deletion; it raises to leave the cursor as
    it is. What it allows is done to the cursor that was there before the check, and to no later
    one.

    Raises:
        InvalidCursorNodeError, LedgerError
        Every error of `check`.
    """
    path = cursor_path(log_path, name)
    cell = Cell(store, path, decode=lambda value: decode_node(value, path=path), encode=encode_node)

    async def delete(node: CursorNode | None) -> Deletion | None:
        if node is None:
            return None
        if check is not None:
            await check()
        return GONE

    deleted = await cell.change_async(delete)
    if deleted.is_written and deleted.before and deleted.before.cursor_ledger_id >= 0:
        try:
            await client.delete(deleted.before.cursor_ledger_id)
        except NoSuchLedgerError:
            pass


def cursor_refers(store: MetadataStore) -> IsReferred:
    """Return a check that asks the cursor of the ledger (component "cursor")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        log, cursor = (metadata.custom_metadata.get(name) for name in ("log", "cursor"))
        if log is None or cursor is None:
            raise OwnerUnclearError(
                f"ledger {metadata.ledger_id} does not say which cursor of which log it is of"
            )
        try:
            path = cursor_path(log, cursor)
            value = await owner_value(store, path)
            node = None if value is None else decode_node(value, path=path)
        except CursorError as error:
            raise OwnerUnclearError(f"cursor {cursor} of {log}: {error}") from error
        return node is not None and node.cursor_ledger_id == metadata.ledger_id

    return is_referred
