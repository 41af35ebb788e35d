"""Reads the closed ledgers of a log wherever they are: on bookies, in an object store, or both.

While a ledger is in both, one of them is asked first, and the other if that fails. So a slow or
unavailable store does not prevent reads from the bookies. If a ledger moves during a read, the list
says so, and the read continues at its new place.

Source: tiered storage, section 19, and defects 14.6 and 14.13.
"""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    LedgerError,
    LogDataLossError,
    NoSuchLedgerError,
    ObjectError,
    ObjectStoreRefusedError,
)
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase
from magnetar.ledger.ports import ObjectLedger, ObjectPlace
from magnetar.ledger.reader import LedgerReader

_HANDLES_MAX = 16


class Source(Enum):
    """Where entries of a closed ledger are read."""

    BOOKIES = "bookies"
    OBJECT = "object"


class _Key(NamedTuple):
    ledger_id: int
    source: Source
    attempt: str = ""
    """Attempt of the object: a damaged object is replaced by another attempt."""
    next_id: int = 0
    """For an object: the entry behind the last ones that this handle read, which it may have
    fetched already. So each of several readers of a ledger has its own handle."""


class LedgerList(Protocol):
    """The part of a log's list that is needed here: values of the node when last read."""

    @property
    def ledgers(self) -> tuple[LogLedger, ...]: ...

    @property
    def object_bases(self) -> tuple[ObjectBase, ...]: ...


class ClosedLedgers:
    """Handles of the closed ledgers of one log: a limited number, the most recently used."""

    def __init__(
        self,
        client: LedgerClient,
        path: str,
        listed: Callable[[], LedgerList],
        *,
        password: bytes | None,
    ) -> None:
        """`password`: of the log's ledgers; None uses the one in their metadata."""
        self._client = client
        self._path = path
        self._listed = listed
        self._password = password
        self.prefers_objects = False
        """Whether the object is asked first if a ledger is in both."""
        self._handles: OrderedDict[_Key, LedgerReader | ObjectLedger] = OrderedDict()
        self._indexed: tuple[LogLedger, ...] = ()
        self._by_id: dict[int, LogLedger] = {}
        self._is_closed = False
        self.turned_away = 0
        """Number of reads that the first source could not serve, and the other did."""

    async def read(self, ledger_id: int, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        """Read payloads of a ledger from entry `first` on: at least one, at most up to `last`.

        Raises:
            LogDataLossError: the list says that bookies have the ledger, and its metadata is gone.
            ObjectError: the ledger is in an object only, and cannot be read there.
            LedgerError: no replica could serve it just now.
        """
        while True:
            sources = self._sources(ledger_id)
            errors: list[LedgerError] = []
            for source in sources:
                try:
                    if source is Source.BOOKIES:
                        reader = await self._reader(ledger_id)
                        payloads = await reader.read(first, last, bytes_max=bytes_max)
                    else:
                        payloads = await self._read_object(ledger_id, first, last, bytes_max)
                except LedgerError as error:
                    if isinstance(error, NoSuchLedgerError):
                        await self._drop(_Key(ledger_id, source))
                    errors.append(error)
                else:
                    self.turned_away += len(errors)
                    return payloads
            if self._sources(ledger_id) == sources:
                raise self._why(ledger_id, errors)

    async def entries_after(self, ledger_id: int, publish_ms: int) -> range | None:
        """Return entries that include the first one published at or after a time, by the index of
        the ledger's object; see `ObjectLedger`. None if the bookies are asked first for its
        entries, or the object cannot be opened just now.

        A ledger in an object costs one request, and none if it was opened lately. A search by
        reading entries would cost one request for each entry.
        """
        ledger = self._ledger(ledger_id)
        if ledger is None or ledger.object is None:
            return None
        if self._sources(ledger_id)[0] is not Source.OBJECT:
            return None
        try:
            handle = await self._open_object(ledger_id, ledger.object)
        except ObjectError:
            return None  # a read of its entries reports why, or bookies serve it
        try:
            return handle.entries_after(publish_ms)
        finally:
            await handle.close()

    def created_ms(self, ledger_id: int) -> int:
        """Return a ledger's creation time, ms since 1970; 0 if bookies were not read lately."""
        handle = self._handles.get(_Key(ledger_id, Source.BOOKIES))
        return handle.metadata.created_ms if isinstance(handle, LedgerReader) else 0

    async def forget_but(self, listed: Callable[[int], bool]) -> None:
        """Close the handles of ledgers that are no longer listed."""
        for key in [key for key in self._handles if not listed(key.ledger_id)]:
            await self._drop(key)

    async def close(self) -> None:
        """Close all handles; further reads still work, each with its own handle."""
        self._is_closed = True
        await self.forget_but(lambda _: False)

    def _sources(self, ledger_id: int) -> tuple[Source, ...]:
        ledger = self._ledger(ledger_id)
        if ledger is None or not ledger.is_in_object:
            return (Source.BOOKIES,)
        if ledger.is_in_object_only:
            return (Source.OBJECT,)
        if self.prefers_objects:
            return (Source.OBJECT, Source.BOOKIES)
        return (Source.BOOKIES, Source.OBJECT)

    def _ledger(self, ledger_id: int) -> LogLedger | None:
        ledgers = self._listed().ledgers
        if ledgers is not self._indexed:  # there may be ten thousand, and each read looks one up
            self._indexed = ledgers
            self._by_id = {ledger.ledger_id: ledger for ledger in ledgers}
        return self._by_id.get(ledger_id)

    def _why(self, ledger_id: int, errors: list[LedgerError]) -> LedgerError:
        """Return the error of a read that no source could serve: that of the first source."""
        error = errors[0]
        if not isinstance(error, NoSuchLedgerError) or self._ledger(ledger_id) is None:
            return error
        loss = LogDataLossError(
            f"{self._path}: ledger {ledger_id} is listed, but its metadata is gone; bring it back "
            "from a backup of the metadata store"
        )
        loss.__cause__ = error
        return loss

    async def _reader(self, ledger_id: int) -> LedgerReader:
        key = _Key(ledger_id, Source.BOOKIES)
        handle = self._handles.get(key)
        if handle is None:
            handle = await self._client.open(ledger_id, password=self._password)
            await self._keep(key, handle)
        else:
            self._handles.move_to_end(key)
        assert isinstance(handle, LedgerReader)
        return handle

    async def _read_object(
        self, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> list[bytes]:
        ledger = self._ledger(ledger_id)
        if ledger is None or ledger.object is None:
            raise NoSuchLedgerError(f"{self._path}: ledger {ledger_id} left the log")
        key = _Key(ledger_id, Source.OBJECT, ledger.object.attempt, first)
        handle = self._handles.pop(key, None)
        if handle is None:
            handle = await self._open_object(ledger_id, ledger.object)
        try:
            payloads = await handle.read(first, last, bytes_max=bytes_max)
        except BaseException:
            await handle.close()
            raise
        await self._keep(key._replace(next_id=first + len(payloads)), handle)
        return payloads

    async def _keep(self, key: _Key, handle: LedgerReader | ObjectLedger) -> None:
        """Keep a handle for the next read; the least recently used one is closed."""
        if self._is_closed:
            await handle.close()
            return
        # Kept before anything is awaited: a concurrent `close` must find the handle.
        replaced = self._handles.pop(key, None)
        self._handles[key] = handle
        if replaced is not None:
            await replaced.close()
        while len(self._handles) > _HANDLES_MAX:
            await self._drop(next(iter(self._handles)))

    async def _open_object(self, ledger_id: int, found: LedgerObject) -> ObjectLedger:
        base = self._listed().object_bases[found.base]
        if self._client.objects is None:
            raise ObjectStoreRefusedError(
                f"{self._path}: ledger {ledger_id} lies in the object store {base.store!r}, and "
                "this process knows no object store; name it in its settings"
            )
        place = ObjectPlace(
            base.store, base.key(ledger_id, found.attempt), ledger_id, found.attempt
        )
        return await self._client.objects.open(place, password=self._password or b"")

    async def _drop(self, key: _Key) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            await handle.close()
