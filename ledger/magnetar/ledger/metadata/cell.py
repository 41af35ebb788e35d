"""A cell: one value of the metadata store that several writers change by comparing versions.

A change reads the value, computes the new one by a function, and writes it if the node still has
the version that was read. Three things can go wrong, and each is handled here, once:

- *Conflict*: another writer was faster. The value is read again and the function called again.
- *Doubt*: the connection broke, so the write may have happened. The store catches up with all
  finished writes and the value is read again. The write counts as done if the stored bytes equal
  the bytes that were tried. Writers that may try equal values and must tell them apart put a token
  into the value. A try that another writer has overwritten meanwhile looks like a conflict, so the
  function must be able to run again on its own result.
- *Absence*: the server that answered may be behind the others. Before a change concludes from
  absence, the store catches up and the value is read once more.

The number of tries is bounded. A change that fails says whether it may have happened:

- `UnknownOutcomeError`: a try of this change may have happened, or may yet.
- `ContendedError`: others changed the node at each try; nothing was changed.
- `MetadataUnavailableError`: the store did not answer; nothing was changed.

The cell depends on no component: functions decode and encode the values. Errors of these and of the
change function pass through and leave the node as it is. The cell does not guard a value that only
one owner may write: an owner that finds a foreign value is fenced and must not try again
(`managed_log/log_list.py`).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from magnetar.ledger.errors import (
    BadVersionError,
    ContendedError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore

TRIES_MAX = 40
"""Most tries of one change. Of several concurrent changes, one succeeds in each round; brokers fan
out to 16 requests."""

V = TypeVar("V")

_ENDS = (MetadataUnavailableError, SessionExpiredError)
"""Errors that end a change and say nothing about its earlier tries."""


def bytes_cell(
    store: MetadataStore,
    path: str,
    *,
    ephemeral: bool = False,
    needs_parent: bool = False,
    tries_max: int = TRIES_MAX,
) -> "Cell[bytes]":
    """Return a cell whose value is the node's bytes as they are."""
    return Cell(
        store,
        path,
        decode=bytes,
        encode=bytes,
        ephemeral=ephemeral,
        needs_parent=needs_parent,
        tries_max=tries_max,
    )


class Deletion(Enum):
    """Result of a change function that deletes the node."""

    GONE = "gone"


GONE: Final = Deletion.GONE

Change = Callable[[V | None], V | Deletion | None]
"""Function from the present value (None if there is none) to the new value, to `GONE`, which
deletes the node, or to None, which leaves it as it is. May be called several times."""

AsyncChange = Callable[[V | None], Awaitable[V | Deletion | None]]
"""A change function that awaits other answers before it decides."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[V]):
    """Value of a node, and its version, on which the next write is based."""

    value: V | None
    """None if the node has no value of its own and exists only for its children."""
    version: int


@dataclass(frozen=True, slots=True)
class Changed(Generic[V]):
    """Result of a change."""

    before: V | None
    """Value that the last try started from."""
    after: V | None
    """Value of the node when the change ended."""
    version: int | None
    """Version of the node at the end; None if there is no node."""
    is_written: bool
    """Whether this change wrote the value; False if there was nothing to do."""


@dataclass(frozen=True, slots=True)
class _Try(Generic[V]):
    """A write whose outcome is unknown."""

    before: V | None
    data: bytes | None
    """The bytes written; None for a deletion."""


def _ignore() -> None:
    """Do nothing about an unknown outcome."""


class Cell(Generic[V]):
    """One node of the store. Keeps nothing in memory: several cells may refer to one node."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        *,
        decode: Callable[[bytes], V | None],
        encode: Callable[[V], bytes],
        ephemeral: bool = False,
        needs_parent: bool = False,
        tries_max: int = TRIES_MAX,
    ) -> None:
        """Make the cell of one path; reads nothing.

        Args:
            decode: returns None for a node that holds no value of its own.
            ephemeral: whether nodes that the cell creates are deleted with the store's session.
            needs_parent: whether `create` and `have` raise NoNodeError instead of making a missing
                parent. Persistent nodes only.
        """
        assert not (ephemeral and needs_parent)
        self._store = store
        self._path = path
        self._decode = decode
        self._encode = encode
        self._ephemeral = ephemeral
        self._needs_parent = needs_parent
        self._tries_max = tries_max

    async def read(self, *, is_sure: bool = False) -> Stored[V] | None:
        """Return the stored value, or None if there is no node. With `is_sure`, an absent node is
        read twice: the server that answered first may have been behind.

        Raises:
            MetadataUnavailableError, and every error of `decode`.
        """
        found = await self._get()
        if found is None and is_sure:
            await self._store.catch_up()
            found = await self._get()
        if found is None:
            return None
        return Stored(self._decode(found[0]), found[1])

    async def create(self, value: V) -> bool:
        """Create the node without reading it first. Return False if it exists and this call did not
        create it.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError, ValueTooLargeError
            NoNodeError: with `needs_parent`.
        """
        data = self._encode(value)
        is_in_doubt = False
        for _ in range(self._tries_max):
            try:
                await self._create(data)
            except NodeExistsError:
                if not is_in_doubt:
                    return False
                found = await self._look_after_doubt()
                return found is not None and found[0] == data
            except UnknownOutcomeError:
                is_in_doubt = True
            except _ENDS as error:
                if is_in_doubt:
                    raise self._unknown(error) from error
                raise
            else:
                return True
        raise self._unknown(None)

    async def have(self, value: V) -> tuple[Stored[V], bool]:
        """Return the stored value, and whether this call created it; create it from `value` if
        there is no node.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError, ContendedError, ValueTooLargeError, and
            every error of `decode`.
            NoNodeError: with `needs_parent`.
        """
        data = self._encode(value)
        is_in_doubt = False
        for _ in range(self._tries_max):
            found = await self._look_after_doubt() if is_in_doubt else await self._get()
            if found is not None:
                is_made = is_in_doubt and found[0] == data
                return Stored(self._decode(found[0]), found[1]), is_made
            try:
                await self._create(data)
            except NodeExistsError:
                continue
            except UnknownOutcomeError:
                is_in_doubt = True
            except _ENDS as error:
                if is_in_doubt:
                    raise self._unknown(error) from error
                raise
            else:
                return Stored(value, 0), True
        raise self._unknown(None) if is_in_doubt else self._contended()

    async def change(
        self, change: Change[V], *, known: Stored[V] | None = None, is_sure: bool = True
    ) -> Changed[V]:
        """Replace the value by the result of `change`.

        Args:
            known: a value that was read before; the first try starts from it.
            is_sure: whether an absent node is read twice. Not needed where absence leads to a
                creation, which fails if the node exists.

        Raises:
            UnknownOutcomeError: a try of this change may have happened, or may yet.
            ContendedError: others changed the node at each try; nothing was changed.
            MetadataUnavailableError: the store did not answer; nothing was changed.
            NotEmptyError: the node to be deleted has children.
            ValueTooLargeError
            Every error of `decode` and `change`.
        """

        async def changed(before: V | None) -> V | Deletion | None:
            return change(before)

        return await self.change_async(changed, known=known, is_sure=is_sure)

    async def change_async(
        self,
        change: AsyncChange[V],
        *,
        known: Stored[V] | None = None,
        is_sure: bool = True,
        on_doubt: Callable[[], None] = _ignore,
    ) -> Changed[V]:
        """Replace the value by the result of a function that awaits other answers.

        Args:
            known, is_sure: see `change`.
            on_doubt: called when the outcome of a try is unknown, before the next read.

        Raises:
            Every error of `change`.
        """
        doubts: list[_Try[V]] = []
        for _ in range(self._tries_max):
            version: int | None
            if known is not None:
                before, version = known.value, known.version
                known = None
            else:
                found = await self._look(doubts, is_sure=is_sure)
                data = found[0] if found is not None else None
                version = found[1] if found is not None else None
                before = self._decode(data) if data is not None else None
                for doubt in doubts:
                    if doubt.data == data:
                        return Changed(doubt.before, before, version, is_written=True)
            after = await change(before)
            if after is None or (after is GONE and version is None):
                return Changed(before, before, version, is_written=False)
            new = None if isinstance(after, Deletion) else after
            new_data = None if new is None else self._encode(new)
            try:
                new_version = await self._write(new_data, version)
            except UnknownOutcomeError:
                doubts.append(_Try(before, new_data))
                on_doubt()
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue  # Another writer was faster, or an earlier try came late: look again.
            except _ENDS as error:
                if doubts:
                    raise self._unknown(error) from error
                raise
            else:
                return Changed(before, new, new_version, is_written=True)
        raise self._unknown(None) if doubts else self._contended()

    async def _create(self, data: bytes) -> None:
        if self._ephemeral:
            await self._store.create(self._path, data, ephemeral=True)
        elif self._needs_parent:
            await self._store.create_child(self._path, data)
        else:
            await self._store.create(self._path, data)

    async def _write(self, data: bytes | None, version: int | None) -> int | None:
        """Create, replace or delete the node; return the new version."""
        if version is None:
            assert data is not None, "there is nothing to delete"
            await self._create(data)
            return 0
        if data is None:
            await self._store.delete(self._path, version=version)
            return None
        return await self._store.set(self._path, data, version=version)

    async def _look(self, doubts: list[_Try[V]], *, is_sure: bool) -> tuple[bytes, int] | None:
        if doubts:
            return await self._look_after_doubt()
        found = await self._get()
        if found is None and is_sure:
            await self._store.catch_up()
            found = await self._get()
        return found

    async def _look_after_doubt(self) -> tuple[bytes, int] | None:
        """Read the node, including every write that had finished before.

        Raises:
            UnknownOutcomeError: the store does not answer, so the doubt remains.
        """
        try:
            await self._store.catch_up()
            return await self._get()
        except _ENDS as error:
            raise self._unknown(error) from error

    async def _get(self) -> tuple[bytes, int] | None:
        try:
            node = await self._store.get(self._path)
        except NoNodeError:
            return None
        return node.value, node.version

    def _unknown(self, error: Exception | None) -> UnknownOutcomeError:
        why = f"{self._tries_max} tries had no certain outcome" if error is None else str(error)
        return UnknownOutcomeError(
            f"{self._path}: the metadata store does not say whether it was written; look, and try "
            f"again: {why}"
        )

    def _contended(self) -> ContendedError:
        return ContendedError(
            f"{self._path} was not changed: others changed it {self._tries_max} times meanwhile; "
            f"try again"
        )
