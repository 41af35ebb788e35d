"""A log of messages without a broker: append messages as the owner, read them from anywhere.

A thin face on `ManagedLog` and `LogReader`: the messages of one `append` become one entry, and a
message's id is its entry and its place in it. Many appends may be under way at once; their outcomes
come in the order of the calls.

Who owns a log is decided by opening it: the last one to open it for writing is the owner, and every
earlier one fails with LogFencedError from then on. Opening it again is up to the application.

Source: managed ledger, section 9.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LogError, UnknownMessageFormatError
from magnetar.ledger.log import LogEntry, ManagedLog
from magnetar.ledger.log_message import Message, MessageId, decode_messages, encode_messages
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig

_ANY = MessageId(-1, -1, -1)


class StoredMessage(NamedTuple):
    """A message and its place in the log."""

    id: MessageId
    message: Message


class _Append:
    """One entry on its way; its outcome as a future."""

    def __init__(self, entry: bytes) -> None:
        self.payloads = (entry,)
        self.outcome: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        if not self.outcome.done():
            self.outcome.set_result(Position(ledger_id, first_entry_id))

    def on_failed(self, error: LogError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class MessageLog:
    """The owner's handle of a log of messages. Make one with `open` or `create`."""

    def __init__(self, log: ManagedLog) -> None:
        self._log = log

    @classmethod
    async def create(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
    ) -> "MessageLog":
        """Create a log, which must not exist, and own it.

        Raises:
            LogExistsError: open it, or choose another path.
            As `ManagedLog.open`.
        """
        return cls(await ManagedLog.create(client, store, path, config, clock=clock, random=random))

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        config: LogConfig,
        *,
        clock: Clock,
        random: random.Random,
        must_exist: bool = True,
    ) -> "MessageLog":
        """Own a log: whoever owned it before can append nothing more.

        Raises:
            NoSuchLogError: there is none, and it `must_exist`.
            As `ManagedLog.open`.
        """
        return cls(
            await ManagedLog.open(
                client, store, path, config, clock=clock, random=random, must_exist=must_exist
            )
        )

    @property
    def managed_log(self) -> ManagedLog:
        """The log below: positions, ledgers, the owner's reads."""
        return self._log

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner has taken the log over."""
        self._log.on_fenced(callback)

    async def append(self, messages: Sequence[Message]) -> list[MessageId]:
        """Append messages as one entry: all of them, or none. Returns their ids, durable.

        Raises:
            MessageTooLargeError: they do not fit an entry; nothing was appended.
            LogFencedError, LogClosedError, LogTerminatedError: this handle appends nothing.
            LogUnavailableError: not just now. They may be in the log nevertheless.
        """
        append = _Append(encode_messages(messages))
        self._log.append(append)
        ledger_id, entry_id = await append.outcome
        return [MessageId(ledger_id, entry_id, at) for at in range(len(messages))]

    async def rotate(self) -> None:
        """Go on in a new ledger; see `ManagedLog.rotate`."""
        await self._log.rotate()

    async def shrink(self, before: MessageId) -> int:
        """Remove whole ledgers that end before that message; see `ManagedLog.shrink`."""
        return await self._log.shrink(before.position)

    async def terminate(self) -> None:
        """End the log for good; see `ManagedLog.terminate`."""
        await self._log.terminate()

    async def close(self) -> None:
        """Finish what is under way and close the log; see `ManagedLog.close`."""
        await self._log.close()


class MessageReader:
    """Reads the messages of a log, as its owner or not. Make one with `open`."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._ahead: list[StoredMessage] = []
        """Read and not returned yet, the next one last."""
        self._start = _ANY
        """Messages before it were asked not to be read."""

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        *,
        clock: Clock,
        start: MessageId | Position = EARLIEST,
        password: bytes | None = None,
    ) -> "MessageReader":
        """Open a log for reading from `start` on: a message, an entry, EARLIEST or LATEST.

        Raises:
            As `LogReader.open`.
        """
        position = start.position if isinstance(start, MessageId) else start
        reader = cls(
            await LogReader.open(
                client, store, path, clock=clock, start=position, password=password
            )
        )
        reader._begin_at(start)
        return reader

    @property
    def is_at_end(self) -> bool:
        """Whether the log was terminated, and every message was read."""
        return self._reader.is_at_end and not self._ahead

    async def seek(self, start: MessageId | Position) -> None:
        """Go on reading at `start`.

        Raises:
            As `LogReader.seek`.
        """
        await self._reader.seek(start.position if isinstance(start, MessageId) else start)
        self._begin_at(start)

    def _begin_at(self, start: MessageId | Position) -> None:
        self._start = start if isinstance(start, MessageId) else _ANY
        self._ahead.clear()

    async def read(self, *, messages_max: int = 1000, wait_s: float = 0.0) -> list[StoredMessage]:
        """The next messages; waits up to `wait_s` for one. None: there is none so far.

        Raises:
            UnknownMessageFormatError: the next entry holds no messages of a known format. Seek
                behind it to pass it over.
            As `LogReader.read`.
        """
        while not self._ahead:
            entries = await self._reader.read(entries_max=messages_max, wait_s=wait_s)
            if not entries:
                return []
            found = await self._decode(entries)
            self._ahead = [stored for stored in found if stored.id >= self._start][::-1]
        taken = self._ahead[-messages_max:][::-1]
        del self._ahead[-messages_max:]
        return taken

    async def _decode(self, entries: Sequence[LogEntry]) -> list[StoredMessage]:
        """The messages of the entries up to one that is not understood, which is read again."""
        found: list[StoredMessage] = []
        for position, payload in entries:
            try:
                messages = decode_messages(payload)
            except UnknownMessageFormatError as error:
                await self._reader.seek(position)
                if found:
                    break
                raise UnknownMessageFormatError(
                    f"{self._reader.path}: entry {position}: {error}"
                ) from error
            found += [
                StoredMessage(MessageId(*position, at), message)
                for at, message in enumerate(messages)
            ]
        return found

    async def close(self) -> None:
        """End watches."""
        await self._reader.close()
