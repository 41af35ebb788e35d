"""Waits for an open ledger's LAC to move: long polls at members of the last ensemble.

While a caller waits, at least E - Qa + 1 members have one long poll each. An explicit LAC is stored
on at least Qa members, so one of any E - Qa + 1 has it. If a member answers with an error, another
one is polled, and the failed one is asked again later. A poll first waits for `long_poll_first_ms`
(1.5 s by default). The time doubles after each poll without news, up to `long_poll_ms_max`, and up
to a share of the request timeout (4 s by default). All waits on the handle share the polls. A LAC
that a reply proves always counts, even from a late reply or a replaced member, since a LAC is true
of the ledger.

At the end of a wait, "there is nothing new" needs the word of E - Qa + 1 members during the wait.
Members that have not answered are then asked once more, without waiting.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import PacketCodec, read_key
from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.ports import Clock
from magnetar.ledger.reading.bookie_requests import check_status
from magnetar.ledger.reading.read_bound import ReadBound, proven_lac
from magnetar.ledger.reading.read_errors import READ_ERRORS, is_negative
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import EntryBlock, Flag, Frame, Op
from magnetar.ledger.wire_bodies import LongPoll, decode_lac_reply, encode_long_poll

_REQUEST_TIMEOUT_SHARE = 0.8
"""Longest wait of a poll, as a share of the time after which a request counts as failed."""

_EARLIEST_SHARE = 0.5
"""Earliest time of the next poll after one without news, as a share of the requested wait."""


class _Member:
    """A member of the ensemble, and the state of its polls."""

    __slots__ = ("bookie_id", "is_polled", "not_before_s", "polled_at_s", "wait_ms")

    def __init__(self, bookie_id: str, wait_ms: int) -> None:
        self.bookie_id = bookie_id
        self.wait_ms = wait_ms
        self.is_polled = False
        self.polled_at_s = 0.0
        self.not_before_s = 0.0


class _Waiter:
    """A caller that waits for an entry to be confirmed."""

    __slots__ = ("entry_id", "future", "is_final", "silent", "timer")

    def __init__(self, entry_id: int) -> None:
        self.entry_id = entry_id
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.silent: dict[str, None] = {}
        """Bookies that had nothing new during this wait, as an ordered set."""
        self.is_final = False
        """Whether the time is up, and only the last answers are awaited."""
        self.timer: asyncio.TimerHandle | None = None


class LacPoller:
    """The waits of one read handle."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        codec: PacketCodec,
        bound: ReadBound,
        *,
        channels: ChannelPool,
        clock: Clock,
        settings: LedgerSettings,
        order: Callable[[list[str]], list[str]],
        on_entries: Callable[[int, list[bytes]], None],
    ) -> None:
        """Prepare the polls of a handle.

        Args:
            order: sorts bookies into the order in which they are asked.
            on_entries: called with confirmed entries that a reply carried: first id and payloads.
        """
        self._ledger_id = metadata.ledger_id
        self._key = read_key(metadata.password)
        self._codec = codec
        self._bound = bound
        self._channels = channels
        self._clock = clock
        self._settings = settings
        self._order = order
        self._on_entries = on_entries
        self._needed = metadata.ensemble_size - metadata.ack_quorum + 1
        share_ms = int(settings.request_timeout_s * 1000 * _REQUEST_TIMEOUT_SHARE)
        self._wait_ms_max = min(settings.long_poll_ms_max, share_ms)
        self._wait_ms_first = min(settings.long_poll_first_ms, self._wait_ms_max)
        self._members: dict[str, _Member] = {}
        self._waiters: dict[_Waiter, None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self.polls = 0
        """Number of long polls sent."""
        self.use_ensemble(metadata.last_fragment.bookies)

    def use_ensemble(self, bookies: tuple[str, ...]) -> None:
        """Set the members of the last fragment."""
        if tuple(self._members) == bookies:
            return
        known = self._members
        self._members = {
            bookie_id: known.get(bookie_id) or _Member(bookie_id, self._wait_ms_first)
            for bookie_id in bookies
        }
        self._poll()

    async def wait_beyond(self, entry_id: int, timeout_s: float) -> None:
        """Wait until the bound is above the entry or final, or until the time is up and enough
        members say that there is nothing new.

        Raises:
            BookieUnavailableError: the time is up, and too few members answered to tell.
            LedgerError: the error that was passed to `fail`.
        """
        if self._bound.last_entry_id > entry_id or self._bound.is_final:
            return
        waiter = _Waiter(entry_id)
        self._waiters[waiter] = None
        waiter.timer = asyncio.get_running_loop().call_later(timeout_s, self._on_time_up, waiter)
        self._poll()
        try:
            await waiter.future
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
            self._waiters.pop(waiter, None)
            if not self._waiters:
                self._stop_timer()

    def on_bound_moved(self) -> None:
        """End the waits that the new bound satisfies, after a reply or new metadata."""
        for waiter in list(self._waiters):
            if self._bound.last_entry_id > waiter.entry_id or self._bound.is_final:
                self._end(waiter, None)

    def fail(self, error: LedgerError) -> None:
        """Fail all waits: the handle is closed, or the ledger was deleted."""
        for waiter in list(self._waiters):
            self._end(waiter, error)
        self._stop_timer()

    # Polls

    def _poll(self) -> None:
        """Poll enough members, the best ones first."""
        if not self._waiters:
            return
        now_s = self._clock.monotonic_s()
        polled = sum(member.is_polled for member in self._members.values())
        retry_at_s: float | None = None
        wants_entries = True
        for bookie_id in self._order(list(self._members)):
            if polled >= self._needed:
                break
            member = self._members[bookie_id]
            if member.is_polled:
                continue
            if member.not_before_s > now_s:
                if retry_at_s is None or member.not_before_s < retry_at_s:
                    retry_at_s = member.not_before_s
                continue
            self._send(member, member.wait_ms, wants_entries=wants_entries)
            wants_entries = False  # one copy of the entries is enough
            polled += 1
        self._stop_timer()
        if polled < self._needed and retry_at_s is not None:
            loop = asyncio.get_running_loop()
            self._retry_timer = loop.call_later(retry_at_s - now_s, self._poll)

    def _send(self, member: _Member, wait_ms: int, *, wants_entries: bool) -> None:
        poll = LongPoll(
            self._bound.last_entry_id,
            wait_ms,
            self._settings.long_poll_entries_bytes if wants_entries else 0,
            self._key,
        )
        self.polls += 1
        if wait_ms:
            member.is_polled = True
            member.polled_at_s = self._clock.monotonic_s()
        self._channels.get(member.bookie_id).send(
            Op.READ_LAC,
            (encode_long_poll(poll),),
            partial(self._on_reply, member, poll),
            ledger_id=self._ledger_id,
            flags=Flag.LONG_POLL,
        )

    def _on_reply(
        self, member: _Member, poll: LongPoll, reply: Frame | BookieUnavailableError
    ) -> None:
        if poll.wait_ms:
            member.is_polled = False
        try:
            if isinstance(reply, BookieUnavailableError):
                raise reply
            self._judge(member, poll, reply)
        except READ_ERRORS as error:
            if is_negative(error):
                self._on_nothing_new(member, poll)
            else:
                self._on_error(member, error)
        self._end_final_waits()
        self._poll()

    def _judge(self, member: _Member, poll: LongPoll, frame: Frame) -> None:
        check_status(frame, member.bookie_id)
        reply = decode_lac_reply(frame.body)
        if not reply.last_packet and not reply.explicit_packet:
            self._on_nothing_new(member, poll)
            return
        heard, error = proven_lac(self._codec, reply)
        if heard <= poll.previous_lac:
            # The bookie reports news and proves none. If it were asked again at once, it would do
            # so again.
            raise error or BookieProtocolError(
                f"bookie {member.bookie_id} answered a long poll above {poll.previous_lac} with "
                f"last add confirmed {heard}"
            )
        member.wait_ms = self._wait_ms_first
        is_news = self._bound.learn(heard)
        if reply.block is not None:
            self._take_entries(reply.block, poll.previous_lac + 1)
        if is_news:
            self.on_bound_moved()

    def _take_entries(self, block: EntryBlock, first: int) -> None:
        entries_max = self._bound.last_entry_id - first + 1
        if entries_max <= 0:
            return
        payloads, _ = self._codec.open_payloads(block, first, entries_max)
        # A bad copy among them is found again, and reported, when it is read.
        if payloads:
            self._on_entries(first, payloads)

    def _on_nothing_new(self, member: _Member, poll: LongPoll) -> None:
        if poll.wait_ms:
            # A bookie may allow a shorter wait than requested. It is not polled more often for
            # that.
            member.not_before_s = member.polled_at_s + poll.wait_ms / 1000 * _EARLIEST_SHARE
            member.wait_ms = min(2 * member.wait_ms, self._wait_ms_max)
        for waiter in self._waiters:
            if poll.previous_lac <= waiter.entry_id:
                waiter.silent[member.bookie_id] = None

    def _on_error(self, member: _Member, error: LedgerError) -> None:
        is_damaged = isinstance(error, DigestMismatchError | BookieProtocolError)
        # A damaged answer stays so until the next entry; an unreachable bookie may be back soon.
        delay_s = self._wait_ms_first / 1000 if is_damaged else self._settings.reconnect_delay_s
        member.not_before_s = self._clock.monotonic_s() + delay_s

    # The end of a wait

    def _on_time_up(self, waiter: _Waiter) -> None:
        loop = asyncio.get_running_loop()
        waiter.is_final = True
        waiter.timer = loop.call_later(
            self._settings.long_poll_first_ms / 1000, self._on_undecided, waiter
        )
        if self._is_decided(waiter):
            self._end(waiter, None)
            return
        for member in list(self._members.values()):
            if member.bookie_id not in waiter.silent:
                self._send(member, 0, wants_entries=False)

    def _is_decided(self, waiter: _Waiter) -> bool:
        heard = sum(bookie_id in waiter.silent for bookie_id in self._members)
        return heard >= self._needed

    def _end_final_waits(self) -> None:
        for waiter in list(self._waiters):
            if waiter.is_final and self._is_decided(waiter):
                self._end(waiter, None)

    def _on_undecided(self, waiter: _Waiter) -> None:
        self._end(
            waiter,
            BookieUnavailableError(
                f"ledger {self._ledger_id}: nothing is known beyond entry {waiter.entry_id}; only "
                f"{len(waiter.silent)} of {len(self._members)} bookies told, {self._needed} are "
                f"needed"
            ),
        )

    def _end(self, waiter: _Waiter, error: LedgerError | None) -> None:
        self._waiters.pop(waiter, None)
        if waiter.future.done():
            return
        if error is None:
            waiter.future.set_result(None)
        else:
            waiter.future.set_exception(error)

    def _stop_timer(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
