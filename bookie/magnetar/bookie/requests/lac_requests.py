"""Last add confirmed: READ_LAC, WRITE_LAC, and the readers that wait for it to move.

A LAC is a claim of the writer about the entries it has seen confirmed. It is true even if this
bookie loses the packet that carried it, so readers get it at once; only the reply to a WRITE_LAC
waits for the journal. Requests that memory can answer need no task, and neither do waiting
requests.

A ledger in limbo may have lost its last entry, and a reader counts every bookie that returns a LAC.
So such a ledger is fenced on request, but the reply is UNKNOWN_LEDGER_STATE. A long poll is still
answered when the LAC exceeds the one it knows.
"""

import asyncio
from functools import partial

from magnetar.bookie.errors import BookieServiceError, LedgerInLimboError
from magnetar.bookie.journaling.journal_format import NewRecord, RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import FenceState, LedgerDescriptor, LedgerTable
from magnetar.bookie.requests.long_polls import LongPolls, WaitingPoll
from magnetar.bookie.requests.read_requests import ReadRequests
from magnetar.bookie.requests.replies import Batch, Connection, Replies, journal_key
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import FRAME_BYTES_MAX, Flag, Frame, Status, encode_block
from magnetar.ledger.wire_bodies import (
    LAC_PACKET_HEADER,
    decode_long_poll,
    decode_write_lac,
    encode_lac_reply,
)

_ANY_LAC = 1 << 63
"""A value above every LAC."""
_REPLY_ROOM_BYTES = 1024
"""Bytes for header, lengths and explicit LAC packet of a reply."""


class LacRequests:
    """The READ_LAC and WRITE_LAC requests of all connections."""

    def __init__(
        self,
        storage: LedgerStorage,
        ledgers: LedgerTable,
        fences: FenceRequests,
        reads: ReadRequests,
        replies: Replies,
        *,
        clock: Clock,
        metrics: BookieMetrics,
        settings: BookieSettings,
    ) -> None:
        self._storage = storage
        self._ledgers = ledgers
        self._fences = fences
        self._reads = reads
        self._replies = replies
        self._clock = clock
        self._metrics = metrics
        self._reply_bytes_max = settings.read_reply_bytes_max
        self.polls = LongPolls(settings)
        """The waiting long polls. Adds check their number before they report a LAC."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        ledgers.on_deleted.append(self.on_deleted)

    # Requests

    def write_lac(self, frame: Frame, batch: Batch) -> None:
        """Handle a WRITE_LAC.

        Raises:
            BookieProtocolError: the body is no key and LAC packet.
        """
        key, packet = decode_write_lac(frame.body)
        connection, ledger_id = batch.context.connection, frame.ledger_id
        found_id, last_add_confirmed = LAC_PACKET_HEADER.unpack_from(packet)
        if ledger_id < 0 or found_id != ledger_id or not 0 <= last_add_confirmed == frame.entry_id:
            text = (
                f"a WRITE_LAC of {frame.entry_id} to ledger {ledger_id} has a packet with LAC "
                f"{last_add_confirmed} of ledger {found_id}"
            )
            self._replies.put_error(connection, frame, Status.BAD_REQUEST, text)
            return
        self._metrics.write_lac_requests += 1
        if self._ledgers.was_deleted(ledger_id):
            self._fences.refuse_deleted(connection, frame)
            return
        ledger = self._fences.admit(connection, frame, key)
        if ledger is None:
            return
        if ledger.fence is not FenceState.OPEN:
            self._fences.refuse(connection, frame, ledger)
            return
        journal_key(ledger, batch)
        batch.add(NewRecord(RecordType.EXPLICIT_LAC, ledger_id, packet))
        batch.context.lacs.append((frame.request_id, ledger_id, last_add_confirmed))
        self._ledgers.keep_explicit_lac(ledger, packet)
        if self._ledgers.raise_last_add_confirmed(ledger, last_add_confirmed):
            self.on_raised(ledger)

    def read_lac(self, frame: Frame, batch: Batch) -> None:
        """Handle a READ_LAC.

        Raises:
            BookieProtocolError: the body cannot be decoded.
        """
        connection, ledger_id = batch.context.connection, frame.ledger_id
        is_poll, is_fence = frame.flags & Flag.LONG_POLL, frame.flags & Flag.FENCE
        if ledger_id < 0 or (is_poll and is_fence):
            text = f"ledger id {ledger_id} must be >= 0, and a long poll cannot fence"
            self._replies.put_error(connection, frame, Status.BAD_REQUEST, text)
            return
        self._metrics.read_lac_requests += 1
        if is_poll:
            self._poll(WaitingPoll(connection, frame, decode_long_poll(frame.body)))
            return
        proceed = partial(self._reply_lac, connection, frame)
        if is_fence:
            self._fences.after_fence(frame, frame.body, batch, 0, proceed)
        elif self._storage.state(ledger_id) is None:
            self._refuse_unknown(connection, frame)
        elif self._fences.admit_read(connection, frame, frame.body):
            proceed()

    def _reply_lac(self, connection: Connection, frame: Frame) -> None:
        ledger_id = frame.ledger_id
        if self._ledgers.is_in_limbo(ledger_id):
            self._reads.put_failure(connection, frame, LedgerInLimboError(ledger_id))
            return

        def reply(packet: bytes) -> None:
            ledger = self._ledgers.find(ledger_id)
            explicit = b"" if ledger is None else ledger.explicit_lac
            self._replies.put(connection, frame, encode_lac_reply(packet, explicit))

        packet = self._storage.last_packet_now(ledger_id)
        if packet is not None:
            reply(packet)
            return

        async def read() -> None:
            reply(await self._storage.last_packet(ledger_id) or b"")

        self._reads.start(connection, frame, 0, read)

    def _refuse_unknown(self, connection: Connection, frame: Frame) -> None:
        if self._ledgers.is_in_limbo(frame.ledger_id):
            self._reads.put_failure(connection, frame, LedgerInLimboError(frame.ledger_id))
            return
        text = f"ledger {frame.ledger_id} is not known here"
        self._replies.put_error(connection, frame, Status.NO_SUCH_LEDGER, text)

    # Long polls

    def on_raised(self, ledger: LedgerDescriptor) -> None:
        """Answer the long polls for which the ledger's new LAC is news; replies are ready on
        return."""
        if not self.polls.count:
            return
        for waiting in self.polls.take(ledger.ledger_id, ledger.last_add_confirmed):
            if self._is_admitted(waiting):
                self._answer_news(waiting, ledger)
            self._replies.send_much(waiting.connection)  # it may congest the connection
        self._metrics.long_polls = self.polls.count

    def on_deleted(self, ledger_id: int) -> None:
        """Answer the long polls of a deleted ledger: the ledger is not known."""
        for waiting in self.polls.take(ledger_id, _ANY_LAC):
            self._answer_nothing_new(waiting)
        self._metrics.long_polls = self.polls.count
        self._replies.send()

    def forget(self, connection: Connection) -> None:
        """Drop the long polls of a closed connection."""
        self.polls.forget(connection)
        self._metrics.long_polls = self.polls.count

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self, waiting: WaitingPoll) -> None:
        ledger = self._ledgers.find(waiting.frame.ledger_id)
        if not self._is_admitted(waiting):
            return
        if ledger is not None and ledger.last_add_confirmed > waiting.poll.previous_lac:
            self._answer_news(waiting, ledger)
        elif waiting.poll.wait_ms == 0:
            self._answer_nothing_new(waiting)
        elif self.polls.add(waiting, self._clock.monotonic_s()):
            self._metrics.long_polls = self.polls.count
            self._watch_deadlines()
        else:
            text = (
                f"{self.polls.count} long polls are waiting: the limit of the bookie or of the "
                "connection is reached"
            )
            self._replies.put_error(
                waiting.connection, waiting.frame, Status.TOO_MANY_REQUESTS, text
            )

    def _is_admitted(self, waiting: WaitingPoll) -> bool:
        """Return whether the long poll may be answered; if not, reply with the reason.

        Checked on arrival and before the answer, since the ledger may have been unknown on arrival.
        """
        key = waiting.poll.master_key
        return self._fences.admit_read(waiting.connection, waiting.frame, key)

    def _answer_news(self, waiting: WaitingPoll, ledger: LedgerDescriptor) -> None:
        connection, frame = waiting.connection, waiting.frame
        if connection.is_congested:
            # Thousands of its polls may be waiting: their replies must not pile up here.
            text = "the client does not take its replies"
            self._replies.put_error(connection, frame, Status.TOO_MANY_REQUESTS, text)
            return
        if ledger.explicit_last_add_confirmed >= ledger.last_add_confirmed:
            self._reply_news(waiting, ledger, b"")
            return
        packet = self._storage.last_packet_now(ledger.ledger_id)
        if packet is not None:
            self._reply_news(waiting, ledger, packet)
            return

        async def read() -> None:
            found = await self._storage.last_packet(ledger.ledger_id)
            self._reply_news(waiting, ledger, found or b"")

        self._reads.start(connection, frame, 0, read)

    def _reply_news(self, waiting: WaitingPoll, ledger: LedgerDescriptor, packet: bytes) -> None:
        block = self._entries_behind(waiting, ledger, room=FRAME_BYTES_MAX - len(packet))
        body = encode_lac_reply(packet, ledger.explicit_lac, block)
        self._replies.put(waiting.connection, waiting.frame, body)

    def _entries_behind(
        self, waiting: WaitingPoll, ledger: LedgerDescriptor, *, room: int
    ) -> bytes:
        """Return an entry block, or empty bytes: the client then reads the entries itself."""
        poll = waiting.poll
        bytes_max = min(poll.entries_bytes_max, self._reply_bytes_max)
        if bytes_max == 0:
            return b""
        first, last = poll.previous_lac + 1, ledger.last_add_confirmed
        try:
            packets = self._storage.read_now(ledger.ledger_id, max(0, first), last, bytes_max)
        except BookieServiceError:
            return b""
        if packets is None:
            return b""
        block = encode_block(packets).data
        return block if len(block) + _REPLY_ROOM_BYTES <= room else b""

    def _answer_nothing_new(self, waiting: WaitingPoll) -> None:
        connection, frame = waiting.connection, waiting.frame
        if self._storage.state(frame.ledger_id) is None:
            self._refuse_unknown(connection, frame)
        elif self._ledgers.is_in_limbo(frame.ledger_id):
            self._reads.put_failure(connection, frame, LedgerInLimboError(frame.ledger_id))
        else:
            self._replies.put(connection, frame, encode_lac_reply(b"", b""))

    def _watch_deadlines(self) -> None:
        """Keep one timer, set to the earliest deadline."""
        at_s = self.polls.next_deadline_s()
        if at_s is None or (self._timer is not None and self._timer_at_s <= at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        delay_s = max(0.0, at_s - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        for waiting in self.polls.expire(self._clock.monotonic_s()):
            self._answer_nothing_new(waiting)
        self._metrics.long_polls = self.polls.count
        self._watch_deadlines()
        self._replies.send()
