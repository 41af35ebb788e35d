"""Table view: the newest value of each key of a topic, as a mapping that follows the topic.

view = await client.table_view("prices")
view["apples"]
async for change in view.changes():
    ...

Keys are as their producers gave them: a key of bytes is bytes here, too, and differs from the text
that is its base64. Messages without a key, and unreadable ones, are left out. A message without a
value (or with an empty one) removes its key. By default the view reads the compacted topic first,
which has one message per key.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from magnetar.sdk.closing import Closing
from magnetar.sdk.errors import AlreadyClosedError, CorruptMessageError, SdkError, TooSlowError
from magnetar.sdk.message import Message, detached
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.reader import Reader
from magnetar.sdk.settings import ReaderSettings

_log = logging.getLogger("magnetar.sdk")

_READ_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one key: its new value, or None if it was removed."""

    key: str | bytes
    value: bytes | None
    message: Message


class OpenReader(Protocol):
    """Opens the reader of the view."""

    def __call__(self, settings: ReaderSettings) -> Awaitable[Reader]: ...


class TableView(Mapping[str | bytes, bytes], Closing):
    """A mapping of the newest value of each key. Made by `Client.table_view`.

    Reading it does no I/O: a task keeps a dict current.
    """

    def __init__(
        self, open_reader: OpenReader, settings: ReaderSettings, *, changes_max: int
    ) -> None:
        """Create an empty view.

        Args:
            changes_max: changes that may wait for one `changes()`; a slower one gets TooSlowError.

        Raises:
            ValueError: `changes_max` is below 1.
        """
        if changes_max < 1:
            raise ValueError(f"changes_max is {changes_max}; allowed are 1 and more")
        self._open_reader = open_reader
        self._settings = settings
        self._changes_max = changes_max
        self._reader: Reader | None = None
        self._messages: dict[str | bytes, Message] = {}
        self._read_to: dict[str, MessageId] = {}
        self._listeners: dict[_Listener, None] = {}
        self._progress = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._failure: SdkError | None = None

    # -- as a mapping

    def __getitem__(self, key: str | bytes) -> bytes:
        return self._messages[key].data

    def __iter__(self) -> Iterator[str | bytes]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def message(self, key: str | bytes) -> Message | None:
        """Return the newest message of a key, with its properties, times and id; None if there is
        none."""
        return self._messages.get(key)

    # -- as a stream

    async def changes(self) -> AsyncIterator[Change]:
        """Iterate over the changes from now on, without end.

        Raises:
            TooSlowError: more than `changes_max` changes waited.
            SdkError: the view is closed, or has lost its topic.
        """
        listener = _Listener(self._changes_max)
        self._listeners[listener] = None
        try:
            while True:
                yield await listener.next(self._check)
        finally:
            self._listeners.pop(listener, None)

    async def refresh(self) -> None:
        """Wait until the view has everything that the topics held at the time of the call.

        Raises:
            SdkError: the view is closed, or the brokers could not be asked.
        """
        reader = self._require_reader()
        last = await reader.last_message_ids()
        while any(not self._has_read(topic, message_id) for topic, message_id in last.items()):
            self._check()
            self._progress.clear()
            # Messages removed by compaction or retention do not come: stop when nothing is left to
            # read.
            if not await reader.has_message_available():
                return
            try:
                async with asyncio.timeout(0.1):
                    await self._progress.wait()
            except TimeoutError:
                pass  # look again

    def _has_read(self, topic: str, message_id: MessageId) -> bool:
        if message_id.entry_id < 0:
            return True
        read = self._read_to.get(topic)
        return read is not None and read >= message_id

    # -- starting and closing

    async def start(self) -> None:
        """Read what the topic holds. The client calls this once.

        Raises:
            SdkError: the topic cannot be read.
        """
        self._reader = reader = await self._open_reader(self._settings)
        try:
            while await reader.has_message_available():
                await self._read(reader, timeout_s=1)
        except BaseException:
            await reader.close()
            raise
        self._following = asyncio.create_task(self._follow(reader), name="magnetar table view")

    async def close(self) -> None:
        """Stop following the topic; the values read so far stay readable."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if self._failure is None:
            self._failure = AlreadyClosedError("the table view is closed")
        self._wake()
        if self._reader is not None:
            await self._reader.close()

    async def _follow(self, reader: Reader) -> None:
        while True:
            try:
                await self._read(reader)
            except SdkError as error:
                self._failure = error
                self._wake()
                return

    async def _read(self, reader: Reader, *, timeout_s: float | None = None) -> None:
        """Apply the next messages, and skip unreadable ones.

        Raises:
            SdkError: the view has lost its topic.
        """
        try:
            self._take(await reader.read_many(_READ_MAX, timeout_s=timeout_s))
        except CorruptMessageError as error:
            _log.warning("table_view_message_corrupt topic=%s: %s", reader.topic, error)

    def _take(self, messages: list[Message]) -> None:
        for received in messages:
            self._read_to[received.topic] = received.message_id
            key = received.given_key
            if key is None:
                continue
            # Kept as received, each key would keep the whole batch of its newest message.
            message = detached(received)
            if message.is_null or not message.data:
                gone = self._messages.pop(key, None) is not None
                change = Change(key, None, message) if gone else None
            else:
                self._messages[key] = message
                change = Change(key, message.data, message)
            if change is not None:
                for listener in self._listeners:
                    listener.put(change)
        self._progress.set()

    def _wake(self) -> None:
        self._progress.set()
        for listener in self._listeners:
            listener.wake()

    def _require_reader(self) -> Reader:
        self._check()
        assert self._reader is not None, "made by Client.table_view"
        return self._reader

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


class _Listener:
    """Pending changes of one `changes()` call."""

    def __init__(self, changes_max: int) -> None:
        self._changes_max = changes_max
        self._changes: deque[Change] = deque()
        self._is_too_slow = False
        self._news = asyncio.Event()

    def put(self, change: Change) -> None:
        if len(self._changes) >= self._changes_max:
            self._is_too_slow = True
        else:
            self._changes.append(change)
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    async def next(self, check: Callable[[], None]) -> Change:
        while not self._changes:
            if self._is_too_slow:
                raise TooSlowError(
                    f"more than {self._changes_max} changes were waiting; read the view itself, "
                    "and ask for changes again"
                )
            check()
            self._news.clear()
            await self._news.wait()
        return self._changes.popleft()
