"""A log of messages without a broker: the owner appends messages, any process reads them.

A thin interface over `ManagedLog` and `LogReader`. The messages of one `append` become one entry. A
message's id is its entry and its index in that entry. Many appends may be pending at once; their
outcomes come in the order of the calls.

Opening a log decides who owns it: the last process to open it for writing is the owner. Every
earlier owner fails with LogFencedError from then on. The application decides whether to open it
again.

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
    """A message and its id in the log."""

    id: MessageId
    message: Message


class _Append:
    """The append of one entry; its outcome is a future."""

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
            LedgerError: see `ManagedLog.open`.
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
        """Take ownership of a log: the previous owner can append nothing more.

        Raises:
            NoSuchLogError: the log does not exist, and `must_exist` is set.
            LedgerError: see `ManagedLog.open`.
        """
        return cls(
            await ManagedLog.open(
                client, store, path, config, clock=clock, random=random, must_exist=must_exist
            )
        )

    @property
    def managed_log(self) -> ManagedLog:
        """The underlying log: positions, ledgers, the owner's reads."""
        return self._log

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner has taken the log over."""
        self._log.on_fenced(callback)

    async def append(self, messages: Sequence[Message]) -> list[MessageId]:
        """Append messages as one entry, all or none; return their ids once they are durable.

        Raises:
            MessageTooLargeError: they do not fit an entry; nothing was appended.
            LogFencedError, LogClosedError, LogTerminatedError: this handle takes no appends.
            LogUnavailableError: a temporary failure. The messages may be in the log nevertheless.
        """
        append = _Append(encode_messages(messages))
        self._log.append(append)
        ledger_id, entry_id = await append.outcome
        return [MessageId(ledger_id, entry_id, at) for at in range(len(messages))]

    async def rotate(self) -> None:
        """Switch to a new ledger; see `ManagedLog.rotate`."""
        await self._log.rotate()

    async def shrink(self, before: MessageId) -> int:
        """Remove whole ledgers that end before that message; see `ManagedLog.shrink`."""
        return await self._log.shrink(before.position)

    async def terminate(self) -> None:
        """End the log for good; see `ManagedLog.terminate`."""
        await self._log.terminate()

    async def close(self) -> None:
        """Finish pending appends and close the log; see `ManagedLog.close`."""
        await self._log.close()


class MessageReader:
    """Reads the messages of a log; it need not be the owner. Make one with `open`."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._ahead: list[StoredMessage] = []
        """Messages that were read and not returned yet, the next one last."""
        self._undecoded: list[LogEntry] = []
        """Entries that were read and not decoded yet, the next one last."""
        self._start = _ANY
        """Where reading starts: earlier messages of the first entry are skipped."""

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
            LedgerError: see `LogReader.open`.
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
        return self._reader.is_at_end and not self._ahead and not self._undecoded

    async def seek(self, start: MessageId | Position) -> None:
        """Continue at `start`.

        Raises:
            LedgerError: see `LogReader.seek`.
        """
        await self._reader.seek(start.position if isinstance(start, MessageId) else start)
        self._begin_at(start)

    def _begin_at(self, start: MessageId | Position) -> None:
        self._start = start if isinstance(start, MessageId) else _ANY
        self._ahead.clear()
        self._undecoded.clear()

    async def read(self, *, messages_max: int = 1000, wait_s: float = 0.0) -> list[StoredMessage]:
        """Return the next messages; wait up to `wait_s` for one. Empty if there is none so far.

        Raises:
            UnknownMessageFormatError: the next entry holds no messages of a known format. Seek
                behind it to skip it.
            LedgerError: see `LogReader.read`.
        """
        while not self._ahead:
            if not self._undecoded:
                entries = await self._reader.read(entries_max=messages_max, wait_s=wait_s)
                if not entries:
                    return []
                self._undecoded = entries[::-1]
            found = self._decode()
            self._ahead = [stored for stored in found if stored.id >= self._start][::-1]
        taken = self._ahead[-messages_max:][::-1]
        del self._ahead[-messages_max:]
        return taken

    def _decode(self) -> list[StoredMessage]:
        """Decode the entries up to the first unreadable one, which stays for the next call.

        The reader is not moved back to it: if that failed, the entries behind it would be lost.
        """
        found: list[StoredMessage] = []
        while self._undecoded:
            position, payload = self._undecoded[-1]
            try:
                messages = decode_messages(payload)
            except UnknownMessageFormatError as error:
                if found:
                    break
                raise UnknownMessageFormatError(
                    f"{self._reader.path}: entry {position}: {error}"
                ) from error
            self._undecoded.pop()
            found += [
                StoredMessage(MessageId(*position, at), message)
                for at, message in enumerate(messages)
            ]
        return found

    async def close(self) -> None:
        """Close the reader, and end its watches."""
        await self._reader.close()
