"""Common base of the Shared and Key_Shared dispatchers, which account for the entries of each
consumer.

Every sent entry is pending at one consumer until it is acknowledged (`PendingAccounts`). It is sent
again when the consumer requests that (its redelivery count rises) or leaves (the count does not
rise).

Source: protocol sheet sections 9 and 10.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.accounts import HASH_SHIFT, PendingAccounts
from magnetar.broker.topic.dispatch.base import DispatchContext, Dispatcher, Turn
from magnetar.broker.topic.dispatch.encoding import (
    CHECKSUM_VERSION_MIN,
    append_message,
    open_messages,
)
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.ledger.position import Position
from magnetar.sdk.wire import append_messages

Outgoing = dict[Consumer, list[bytes]]
"""Frames that a turn is about to write, for each consumer."""


_GIVEN_BACK_PER_TURN = 500
"""Entries returned for redelivery before other work gets a turn. One consumer may have as many as
`unacked_per_consumer_max` allows."""


def _unacked_limits(context: DispatchContext) -> tuple[int, int]:
    policies = context.policies()
    return policies.max_unacked_per_consumer, policies.max_unacked_per_subscription


class AccountedDispatcher(Dispatcher):
    """Sends entries of one subscription to several consumers, and tracks which consumer has which
    entry."""

    keeps_accounts = True
    heeds_delays = True

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.accounts = PendingAccounts(
            self.consumers,
            limits=partial(_unacked_limits, context),
            on_unblocked=weakly(self._wake_soon),
        )

    @abstractmethod
    def _send_later(self, entries: Sequence[tuple[Position, int]]) -> None:
        """Take entries back from a consumer, each with the hash of its key, to send them later."""

    def _send_one(
        self,
        consumer: Consumer,
        position: Position,
        entry: bytes,
        messages: int,
        turn: Turn,
        outgoing: Outgoing,
        *,
        is_chunk: bool,
        key_hash: int = 0,
    ) -> int:
        """Send an entry that may have been sent before; return the number of its unacknowledged
        messages."""
        words = self.context.cursor.remaining_words(position)
        size_bytes = append_message(
            outgoing.setdefault(consumer, []),
            consumer,
            position,
            entry,
            partition=self.context.partition,
            words=words,
            redelivery_count=self.accounts.redelivery_counts.get(position, 0),
        )
        messages = open_messages(messages, words)
        consumer.pending[position] = key_hash << HASH_SHIFT | messages
        self.accounts.charge(consumer, messages, size_bytes, entries=1, chunks=is_chunk)
        turn.spend(messages, size_bytes)
        turn.single_entries -= 1
        return messages

    def _append(
        self,
        parts: list[bytes],
        consumer: Consumer,
        ledger_id: int,
        ids: Sequence[int],
        entries: Sequence[bytes],
        words: Sequence[tuple[int, ...]] | None,
    ) -> int:
        """Append frames of entries; return their size as sent. `words`: the ack_set words of each
        entry."""
        partition = self.context.partition
        if words is None and consumer.peer.protocol_version >= CHECKSUM_VERSION_MIN:
            append_messages(
                parts,
                consumer.consumer_id,
                ledger_id=ledger_id,
                entry_ids=ids,
                payloads=entries,
                partition=partition,
                consumer_epoch=consumer.epoch,
            )
            return sum(map(len, entries))
        sent_bytes = 0
        for at, (entry_id, entry) in enumerate(zip(ids, entries, strict=True)):
            sent_bytes += append_message(
                parts,
                consumer,
                Position(ledger_id, entry_id),
                entry,
                partition=partition,
                words=words[at] if words is not None else (),
            )
        return sent_bytes

    def _end_turn(
        self, turn: Turn, outgoing: Outgoing, markers: Sequence[Position], *, wants_more: bool
    ) -> None:
        """Write the gathered frames, in one piece for each consumer."""
        if markers:
            self._ack_markers(markers)
        now_ms = self.context.wall_ms() if outgoing else 0
        for consumer, parts in outgoing.items():
            if parts:
                consumer.was_sent(now_ms)
                consumer.peer.write(b"".join(parts))
                if self.context.trace is not None:
                    self.context.trace.sent_pending(consumer)
        self.context.on_progress()
        self._end(turn, wants_more=wants_more)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Redeliver entries, in several turns if they are many; skip those acknowledged
        meanwhile."""
        asked = list(consumer.pending) if positions is None else positions
        now, later = asked[:_GIVEN_BACK_PER_TURN], asked[_GIVEN_BACK_PER_TURN:]
        self._send_later(self.accounts.give_back(consumer, now, is_counted=True))
        if later:
            loop, clears = asyncio.get_running_loop(), self.accounts.clears
            loop.call_soon(self._redeliver_more, consumer, later, clears)
        self.wake()

    def _redeliver_more(
        self, consumer: Consumer, positions: Sequence[Position], clears: int
    ) -> None:
        if clears == self.accounts.clears:  # otherwise everything is being sent again already
            self.redeliver(consumer, positions)

    def _take_back(self, gone: Iterable[Consumer]) -> None:
        """Take back the entries of consumers that have left, to send them later.

        Some are taken back at once, the rest in further turns. Until then no consumer has them, and
        their keys stay with the consumers that left.
        """
        is_going_on = bool(self.accounts.leaving)
        self.accounts.leaving.extend(gone)
        if not is_going_on:
            self._take_back_some()

    def _take_back_some(self) -> None:
        leaving = self.accounts.leaving
        left = _GIVEN_BACK_PER_TURN
        while leaving and left > 0:
            consumer = leaving[0]
            positions = list(islice(consumer.pending, left))
            self._send_later(self.accounts.give_back(consumer, positions, is_counted=False))
            left -= len(positions)
            if not consumer.pending:
                leaving.pop(0)
                consumer.pending.part()
        if leaving:
            asyncio.get_running_loop().call_soon(self._take_back_more)

    def _take_back_more(self) -> None:
        if self.accounts.leaving:
            self._take_back_some()
            self.wake()

    def partly_acked(self, position: Position) -> None:
        self.accounts.partly_acked(position, self.context.cursor)

    def limits_changed(self) -> None:
        self.accounts.limits_changed()
        super().limits_changed()

    def _why_not_sending(self) -> Reason | None:
        found = self.accounts.why_not_ready() or self._why_waiting()
        if found is not None:
            return found
        delays = self.context.delays
        if delays is not None and delays.withheld and self.source.is_at_end:
            return Reason.DELAYED
        return None

    @abstractmethod
    def _why_waiting(self) -> Reason | None:
        """Return why waiting entries are not sent, though some consumer could take more."""

    def check(self) -> None:
        self.accounts.check(self.context.cursor)
