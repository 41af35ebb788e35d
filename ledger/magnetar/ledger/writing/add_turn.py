"""The adds of all writers of one client in one turn of the event loop, in few frames.

A writer with new entries joins the turn. At the end of the turn, each writer prepares its adds and
puts them into the queues of its bookies. Then every bookie gets the adds of all ledgers together
(`ADDS`), or a single one as a plain `ADD`, through its channel. Thousands of ledgers with one add
each then cost one frame and one answer per bookie, not per add.

Adds that are sent again (to a new member of an ensemble, or to a member that failed them) and those
of recovery have frames of their own, outside the turn. So a frame never holds the same add twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from magnetar.ledger.channel import BookieChannel, ChannelPool
from magnetar.ledger.errors import BookieProtocolError, BookieUnavailableError, LedgerError
from magnetar.ledger.wire import EntryBlock, Frame, Op, Status
from magnetar.ledger.wire_adds import (
    ADDS_MAX,
    KEY_AT,
    NO_ID,
    PAIR_BYTES,
    decode_outcome,
    encode_count,
)

_ALONE_BYTES = 64 << 10
"""Bytes above which an add has a frame of its own, so that it is not copied again."""


OnDone = Callable[[LedgerError | None], None]
"""Called when an append is confirmed (None), or when its outcome is unknown (the error)."""


class PendingAdd:
    """A run of consecutive entries that is being written to one write set.

    With E = Qw it is a whole frame; with striping it is a single entry.
    """

    __slots__ = (
        "acked",
        "callbacks",
        "content",
        "failed",
        "first_entry_id",
        "is_released",
        "is_sent",
        "last_entry_id",
        "length_after",
        "size_bytes",
    )

    def __init__(
        self,
        first_entry_id: int,
        last_entry_id: int,
        *,
        content: EntryBlock | bytes,
        size_bytes: int,
        length_after: int,
        callbacks: list[OnDone],
    ) -> None:
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id
        self.content = content
        """The run as one block, or a single packet. Kept until every member of the write set has
        answered: a replacement needs it, and so does a member that failed (rule 4.5)."""
        self.size_bytes = size_bytes
        self.length_after = length_after
        """Length of the ledger up to and including `last_entry_id`, for the closing metadata."""
        self.callbacks = callbacks
        self.acked = 0
        """Bit set of the ensemble indices that stored the run."""
        self.failed = 0
        """Bit set of the ensemble indices that failed to store the run."""
        self.is_sent = False
        """False while the add waits for an ensemble change."""
        self.is_released = False

    def packets(self) -> list[bytes]:
        return [self.content] if isinstance(self.content, bytes) else self.content.packets()


@dataclass(frozen=True, slots=True)
class AddMember:
    """A member of a ledger's ensemble, with the callbacks for its answers."""

    ledger_id: int
    on_stored: Callable[[list[PendingAdd]], None]
    """Called when the bookie has stored the adds."""
    on_reply: Callable[[list[PendingAdd], Frame | BookieUnavailableError], None]
    """Called with any other reply of the bookie, or if it cannot be reached."""


_Item = tuple[AddMember, list[PendingAdd]]


class AddQueue:
    """The adds that leave for one bookie at the end of the turn of the event loop."""

    __slots__ = ("_items", "_parts", "_turn", "channel")

    def __init__(self, channel: BookieChannel, turn: "AddTurn") -> None:
        self.channel = channel
        self._turn = turn
        self._items: list[_Item] = []
        self._parts: list[bytes] = []
        """For each item, its head (`ADD_HEAD`) and the rest of the add."""

    def add(self, member: AddMember, adds: list[PendingAdd], head: bytes, content: bytes) -> None:
        """Queue adds of one ledger, to be sent together with those of others.

        `head` is an `ADD_HEAD`, and `content` is what follows it in the frame.
        """
        if not self._items:
            self._turn.enlist(self)
        self._items.append((member, adds))
        self._parts += (head, content)

    def take(self) -> tuple[list[_Item], list[bytes]]:
        """Return the queued items and parts, and empty the queue."""
        taken = self._items, self._parts
        self._items, self._parts = [], []
        return taken


class SharedAdds:
    """The adds of one ADDS request in progress, and those that have no answer yet."""

    __slots__ = ("_items", "_left", "_pairs")

    def __init__(self, items: list[_Item], pairs: bytes) -> None:
        """`pairs`: the ids of the adds, encoded as in a reply to all of them."""
        self._items = items
        self._pairs = pairs
        self._left: dict[bytes, _Item] | None = None
        """Unanswered adds by their encoded ids; None until the first partial reply."""

    def on_frame(self, frame: Frame) -> bool:
        """Pass a reply on to the adds that it names; return whether all have an answer now.

        Raises:
            BookieProtocolError: the reply names adds that are not of this request, or not waiting.
        """
        is_ok = frame.status == Status.OK
        if is_ok and self._left is None and frame.body == self._pairs:
            items, self._items = self._items, []
            for member, adds in items:
                try:
                    member.on_stored(adds)
                except Exception as error:  # noqa: BLE001  # handed on to the loop's handler
                    _hand_on(error)
            return True
        left = self._by_pair()
        pairs, text = decode_outcome(frame.body)
        named = dict.fromkeys(pairs)
        # All or none: a peer that mixes up answers is not trusted in part.
        if not pairs or len(named) < len(pairs) or not named.keys() <= left.keys():
            raise BookieProtocolError(
                f"a reply names {len(pairs)} adds, and not such as wait for an answer"
            )
        for pair in pairs:
            member, adds = left.pop(pair)
            if is_ok:
                _tell(member.on_stored, adds)
            else:
                answer = frame._replace(
                    op=Op.ADD,
                    ledger_id=member.ledger_id,
                    entry_id=adds[0].first_entry_id,
                    body=text,
                )
                _tell(partial(member.on_reply, adds), answer)
        return not left

    def on_error(self, error: Frame | BookieUnavailableError) -> None:
        """Report an error to all adds that still wait for an answer."""
        left, self._left = list(self._by_pair().values()), {}
        for member, adds in left:
            _tell(partial(member.on_reply, adds), error)

    def _by_pair(self) -> dict[bytes, _Item]:
        if self._left is None:
            pairs = decode_outcome(self._pairs).pairs
            self._left = dict(zip(pairs, self._items, strict=True))
            self._items = []
        return self._left


class AddFrame:
    """A range of the queued adds in one frame, with the bodies of its request and full reply."""

    __slots__ = ("body", "is_alone", "pairs", "start", "stop")

    def __init__(self, start: int, stop: int, parts: Sequence[bytes]) -> None:
        self.start = start
        self.stop = stop
        self.body: tuple[bytes, ...]
        self.is_alone = stop == start + 1
        """Whether the frame holds a single add; it is sent as an ADD, without ids in its body."""
        parts = parts[2 * start : 2 * stop]
        if self.is_alone:
            self.body = (parts[0][KEY_AT:], parts[1])
            self.pairs = b""
        else:
            head = encode_count(stop - start)
            self.body = (b"".join((head, *parts)),)
            self.pairs = b"".join((head, *[part[:PAIR_BYTES] for part in parts[::2]]))


class AddTurn:
    """The turns of the event loop of one client."""

    def __init__(self, channels: ChannelPool, frame_bytes_max: int) -> None:
        self._channels = channels
        self._frame_bytes_max = frame_bytes_max
        self._queues: dict[str, AddQueue] = {}
        """Queues by bookie id; as many as there are channels."""
        self._writers: list[Callable[[], None]] = []
        self._filled: list[AddQueue] = []
        self._is_due = False
        self._is_sending = False

    def queue_to(self, bookie_id: str) -> AddQueue:
        """Return the queue of a bookie, for this turn and all others."""
        queue = self._queues.get(bookie_id)
        if queue is None:
            queue = self._queues[bookie_id] = AddQueue(self._channels.get(bookie_id), self)
        return queue

    def join(self, send: Callable[[], None]) -> None:
        """Call `send` at the end of the turn; its adds leave together with those of others."""
        self._writers.append(send)
        self._schedule()

    def enlist(self, queue: AddQueue) -> None:
        """Register a queue that has its first add of this turn."""
        self._filled.append(queue)
        if not self._is_sending:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """End the turn: collect the adds of all writers, and send them."""
        self._is_due = False
        self._is_sending = True
        writers, self._writers = self._writers, []
        for send in writers:
            _run(send)
        self._is_sending = False
        filled, self._filled = self._filled, []
        parts: list[bytes] = []
        frames: list[AddFrame] = []
        for queue in filled:
            items, queued = queue.take()
            try:
                # Usually the bookies get the same adds, so their frames are built once.
                if queued != parts:
                    frames, parts = self._cut(queued), queued
            except Exception as error:  # noqa: BLE001  # handed on to the loop's handler
                _hand_on(error)
                _give_up(queue.channel, items, error)
            else:
                _send(queue.channel, items, frames)

    def _cut(self, parts: Sequence[bytes]) -> list[AddFrame]:
        """Return the frames of a queue; a large add has its own, without being copied."""
        count = len(parts) // 2
        if sum(map(len, parts)) <= _ALONE_BYTES and count <= ADDS_MAX:
            return [AddFrame(0, count, parts)]
        frames: list[AddFrame] = []
        start = size = 0
        for at in range(count):
            added = len(parts[2 * at]) + len(parts[2 * at + 1])
            is_alone = added > _ALONE_BYTES
            is_full = size + added > self._frame_bytes_max or at - start >= ADDS_MAX
            if at > start and (is_alone or is_full):
                frames.append(AddFrame(start, at, parts))
                start, size = at, 0
            size += added
            if is_alone:
                frames.append(AddFrame(at, at + 1, parts))
                start, size = at + 1, 0
        if start < count:
            frames.append(AddFrame(start, count, parts))
        return frames


def _send(channel: BookieChannel, items: list[_Item], frames: Sequence[AddFrame]) -> None:
    """Send a bookie its adds in these frames."""
    for frame in frames:
        try:
            _send_frame(channel, items[frame.start : frame.stop], frame)
        except Exception as error:  # noqa: BLE001  # must keep nothing from other bookies
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"adds to bookie {channel.bookie_id}", "exception": error}
            )


def _send_frame(channel: BookieChannel, items: list[_Item], frame: AddFrame) -> None:
    if frame.is_alone:
        ((member, adds),) = items
        channel.send(
            Op.ADD,
            frame.body,
            partial(member.on_reply, adds),
            ledger_id=member.ledger_id,
            entry_id=adds[0].first_entry_id,
        )
    else:
        shared = SharedAdds(items, frame.pairs)
        channel.send(
            Op.ADDS,
            frame.body,
            shared.on_error,
            ledger_id=NO_ID,
            entry_id=NO_ID,
            on_part=shared.on_frame,
        )


def _give_up(channel: BookieChannel, items: list[_Item], error: Exception) -> None:
    """Fail adds for which no frame could be built; their callbacks run later, as usual."""
    loop = asyncio.get_running_loop()
    reason = BookieUnavailableError(f"bookie {channel.bookie_id}: cannot send adds: {error!r}")
    for member, adds in items:
        loop.call_soon(member.on_reply, adds, reason)


def _tell(hear: Callable[..., None], what: object) -> None:
    """Run a callback. A bug in one ledger must not keep others from getting their outcomes."""
    try:
        hear(what)
    except Exception as error:  # noqa: BLE001  # handed on to the loop's handler
        _hand_on(error)


def _run(send: Callable[[], None]) -> None:
    try:
        send()
    except Exception as error:  # noqa: BLE001  # as above
        _hand_on(error)


def _hand_on(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "the adds of a ledger", "exception": error}
    )
