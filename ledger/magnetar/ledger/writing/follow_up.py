"""From the ack quorum to the write quorum: resends confirmed adds that a bookie lacks.

An add is confirmed at Qa copies, yet the metadata promises Qw. If a bookie fails a confirmed add,
the add is kept and sent to it again for `time_s`. If the bookie still lacks it then, it is recorded
as a hole, and published as under-replicated (rule 4.5, D22). `bytes_max` limits the kept bytes;
beyond it, holes are recorded at once. A retry is an ordinary add: a ledger that is fenced meanwhile
refuses it, and the hole is recorded.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.errors import BookieUnavailableError
from magnetar.ledger.ports import Clock
from magnetar.ledger.wire import Frame, Op, Status, encode_block

_WINDOW = 64
"""Maximum number of retries sent to one bookie each `retry_delay_s`."""

_CLOSED = "the client was closed"

OnHole = Callable[[int, int, int, str, str], None]
"""Arguments: ledger id, first and last entry id, bookie id, reason."""


class MissedAdd:
    """A run of confirmed entries that one bookie lacks."""

    __slots__ = ("deadline_s", "first_entry_id", "key", "last_entry_id", "ledger_id", "packets")

    def __init__(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        packets: list[bytes],
        key: bytes,
        deadline_s: float,
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id
        self.packets = packets
        self.key = key
        self.deadline_s = deadline_s

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.packets))


class WriteQuorumFollowUp:
    """The missed adds of all writers of one client."""

    def __init__(
        self,
        channels: ChannelPool,
        clock: Clock,
        *,
        time_s: float,
        retry_delay_s: float,
        bytes_max: int,
        on_hole: OnHole,
    ) -> None:
        self._channels = channels
        self._clock = clock
        self._time_s = time_s
        self._retry_delay_s = retry_delay_s
        self._bytes_max = bytes_max
        self._on_hole = on_hole
        self._queues: dict[str, deque[MissedAdd]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False
        self.kept_bytes = 0

    def take(
        self,
        bookie_id: str,
        ledger_id: int,
        first: int,
        last: int,
        packets: list[bytes],
        key: bytes,
    ) -> None:
        """Keep confirmed entries that the bookie failed to store, and send them again."""
        missed = MissedAdd(
            ledger_id, first, last, packets, key, self._clock.monotonic_s() + self._time_s
        )
        size = missed.size_bytes
        if self._is_closed:
            self._on_hole(ledger_id, first, last, bookie_id, _CLOSED)
            return
        if self.kept_bytes + size > self._bytes_max:
            reason = f"{self.kept_bytes} bytes wait already; the bound is {self._bytes_max}"
            self._on_hole(ledger_id, first, last, bookie_id, reason)
            return
        self.kept_bytes += size
        self._queue(bookie_id, missed)

    def _queue(self, bookie_id: str, missed: MissedAdd) -> None:
        self._queues.setdefault(bookie_id, deque()).append(missed)
        if bookie_id not in self._timers:
            self._timers[bookie_id] = asyncio.get_running_loop().call_later(
                self._retry_delay_s, self._retry, bookie_id
            )

    def _retry(self, bookie_id: str) -> None:
        del self._timers[bookie_id]
        queue = self._queues.pop(bookie_id)
        now_s = self._clock.monotonic_s()
        for at, missed in enumerate(list(queue)):
            if missed.deadline_s <= now_s:
                self._give_up(bookie_id, missed, f"not stored within {self._time_s} s")
            elif at >= _WINDOW:
                self._queue(bookie_id, missed)
            else:
                self._channels.get(bookie_id).send(
                    Op.ADD,
                    (missed.key, encode_block(missed.packets).data),
                    partial(self._on_reply, bookie_id, missed),
                    ledger_id=missed.ledger_id,
                    entry_id=missed.first_entry_id,
                )

    def _on_reply(
        self, bookie_id: str, missed: MissedAdd, reply: Frame | BookieUnavailableError
    ) -> None:
        if isinstance(reply, BookieUnavailableError):
            if self._is_closed:
                self._give_up(bookie_id, missed, _CLOSED)
            else:
                self._queue(bookie_id, missed)
        elif reply.status == Status.OK:
            self.kept_bytes -= missed.size_bytes
        elif reply.status in (Status.FENCED, Status.UNAUTHORIZED, Status.BAD_REQUEST):
            self._give_up(bookie_id, missed, f"refused with status {reply.status}")
        elif self._is_closed:
            self._give_up(bookie_id, missed, _CLOSED)
        else:
            self._queue(bookie_id, missed)

    def _give_up(self, bookie_id: str, missed: MissedAdd, reason: str) -> None:
        self.kept_bytes -= missed.size_bytes
        self._on_hole(
            missed.ledger_id, missed.first_entry_id, missed.last_entry_id, bookie_id, reason
        )

    def close(self) -> None:
        """Record the waiting adds as holes; retries in progress, when their channel closes."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        queues, self._queues = self._queues, {}
        for bookie_id, queue in queues.items():
            for missed in queue:
                self._give_up(bookie_id, missed, _CLOSED)
