"""Shared dispatch: entries go round robin to any consumer with permits; order is not kept.

Redeliveries go before new entries. Consumers with a lower priority number are served first; others
get messages only when none of those can take any. When the last consumer leaves, dispatch starts
again at the first unacknowledged entry, and the redelivery counts are forgotten.

The chunks of a message go to the consumer that got the first one, out of turn if need be. While it
cannot take any, its chunks are parked, and everything else continues.

Source: protocol sheet sections 8 to 11.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from magnetar.broker.base.chunks import ChunkOf, chunk_of
from magnetar.broker.base.entry import MARKER
from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic.consumer import SHARED, Consumer
from magnetar.broker.topic.dispatch.accounted import AccountedDispatcher, Outgoing
from magnetar.broker.topic.dispatch.accounts import AccountsError
from magnetar.broker.topic.dispatch.affinity import ChunkAffinity
from magnetar.broker.topic.dispatch.base import DispatchContext, Turn
from magnetar.broker.topic.dispatch.encoding import open_messages
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.replay import ReplayLoader
from magnetar.broker.topic.run import Run
from magnetar.ledger.position import Position


class _Picked(NamedTuple):
    """Entries of a run for one consumer: unacknowledged messages, bytes and ack_set words of
    each."""

    stop: int
    """Index after the last entry that was examined."""
    ids: Sequence[int]
    messages: Sequence[int]
    entries: Sequence[bytes]
    words: Sequence[tuple[int, ...]] | None
    """Words of each entry; None if no entry is partly acknowledged."""


def _all_of(run: Run, consumer: Consumer) -> _Picked:
    ids = range(run.first_entry_id, run.last_entry_id + 1)
    entries = run.entries
    if run.prefixes is not None and consumer.peer.takes_entry_metadata:
        entries = list(map(run.stored, range(len(entries))))
    return _Picked(len(run.entries), ids, run.messages, entries, None)


class SharedDispatcher(AccountedDispatcher):
    """Spreads entries over consumers and accounts for the entries of each."""

    sub_type = SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._levels: dict[int, deque[Consumer]] = {}
        self._replay = ReplayLoader(
            context.log,
            context.cache,
            context.settings,
            label=context.label,
            on_ready=weakly(self.wake),
        )
        self._affinity = ChunkAffinity(context.settings.chunked_messages_max)
        self._parked: dict[Consumer, dict[Position, None]] = {}
        """Chunks whose consumer could not take them; acknowledged ones leave in constant time."""

    # Membership

    def add(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self.accounts.joined(consumer)
        self._levels.setdefault(consumer.priority, deque()).append(consumer)
        self._levels = dict(sorted(self._levels.items()))

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        gone = set(self._without(consumers))
        if not gone:
            return
        for priority in {consumer.priority for consumer in gone}:
            # The order is kept: the first consumer is the next to be served.
            level = deque(each for each in self._levels[priority] if each not in gone)
            if level:
                self._levels[priority] = level
            else:
                del self._levels[priority]
        self._affinity.forget(gone)
        ordered = [each for each in consumers if each in gone]
        self._take_back(ordered)
        for consumer in ordered:
            self._unpark(consumer)
        if not self.consumers:
            self._reset()
        else:
            self.wake()

    # Sending

    def wake(self) -> None:
        if not self.consumers:
            return
        turn = self._begin()
        if turn is None:
            return
        accounts = self.accounts
        turn_max = self.context.settings.round_robin_messages_max
        if self._parked:
            for consumer in [each for each in self._parked if accounts.allowance(each) > 0]:
                self._unpark(consumer)
        outgoing: Outgoing = {}
        markers: list[Position] = []
        has_more = may_go_on = True
        while may_go_on and not turn.is_over:
            ready = self._next_ready()
            if ready is None:
                has_more = False
                break
            credit = min(accounts.allowance(ready), turn_max, turn.messages)
            before = turn.messages
            if self._replay.waiting and not self._send_again(ready, credit, turn, outgoing):
                break  # redeliveries are being read, and go first
            if turn.messages == before:
                may_go_on = self._send_new(ready, credit, turn, outgoing, markers)
                if turn.messages == before:
                    break
            self._levels[ready.priority].rotate(-1)
        self._end_turn(turn, outgoing, markers, wants_more=has_more)

    def _next_ready(self) -> Consumer | None:
        """Return the next consumer in turn: the first one of its level that can take an entry."""
        if self.accounts.is_blocked:
            return None
        for level in self._levels.values():
            for _ in range(len(level)):
                if level[0].is_ready:
                    return level[0]
                level.rotate(-1)
        return None

    def _send_again(self, consumer: Consumer, credit: int, turn: Turn, outgoing: Outgoing) -> bool:
        """Send waiting entries up to the credit; return False if nothing was sent and a read is
        awaited."""
        waiting = self._replay.waiting
        cursor = self.context.cursor
        last = turn.messages - credit
        before = turn.messages
        while turn.messages > last and not turn.is_over and len(waiting):
            loaded = self._replay.next_entry()
            if loaded is None:
                return turn.messages != before or not self._replay.is_reading
            position, entry, messages = loaded
            waiting.discard(position)
            if cursor.is_acked(position) or messages == MARKER:
                self.accounts.redelivery_counts.pop(position, None)
                continue
            to = consumer
            chunk = chunk_of(entry)
            if chunk is not None and (chosen := self._chosen(chunk, consumer, position)):
                to = chosen
            elif chunk is not None:
                continue
            is_chunk = chunk is not None
            self._send_one(to, position, entry, messages, turn, outgoing, is_chunk=is_chunk)
            if not self.accounts.allowance(consumer):
                break
        return True

    def _send_new(
        self,
        consumer: Consumer,
        credit: int,
        turn: Turn,
        outgoing: Outgoing,
        markers: list[Position],
    ) -> bool:
        """Send new entries up to the credit; return False if there are no more now."""
        cursor = self.context.cursor
        while credit > 0 and turn.room > 0:
            found = self.source.next_run()
            if found is None:
                return False
            run, index = found
            has_holes = cursor.has_holes and not cursor.is_untouched(
                run.ledger_id, run.first_entry_id + index, run.last_entry_id
            )
            if (
                run.is_plain
                and index == 0
                and not has_holes
                and sum(run.messages) <= credit
                and run.size_bytes <= turn.room
            ):
                # Nearly always so at the tail: there is nothing to choose.
                picked = _all_of(run, consumer)
            else:
                picked = self._pick(
                    run, index, consumer, credit, turn, outgoing, markers, has_holes=has_holes
                )
            self.source.advance(run, picked.stop)
            if picked.ids:
                sent_bytes = self._append(
                    outgoing.setdefault(consumer, []),
                    consumer,
                    run.ledger_id,
                    picked.ids,
                    picked.entries,
                    picked.words,
                )
                consumer.pending.put(run.ledger_id, picked.ids, picked.messages)
                sent_messages = sum(picked.messages)
                credit -= sent_messages
                self.accounts.charge(
                    consumer,
                    sent_messages,
                    sent_bytes,
                    entries=len(picked.ids),
                    chunks=run.chunks_among(picked.ids) if run.chunks else 0,
                )
                turn.spend(sent_messages, sent_bytes)
            if turn.is_over or not consumer.is_ready or self.accounts.is_blocked:
                break
        return True

    def _pick(
        self,
        run: Run,
        index: int,
        consumer: Consumer,
        credit: int,
        turn: Turn,
        outgoing: Outgoing,
        markers: list[Position],
        *,
        has_holes: bool,
    ) -> _Picked:
        """Return the entries from an index on to send to the consumer, up to the credit."""
        cursor, delays = self.context.cursor, self.context.delays
        entries, counts = run.entries, run.messages
        entry_of = run.getter(with_prefixes=consumer.peer.takes_entry_metadata)
        is_plain = not has_holes and (
            run.is_plain or not (run.chunks or (delays is not None and run.delayed))
        )
        ids: list[int] = []
        messages_of: list[int] = []
        picked: list[bytes] = []
        words: list[tuple[int, ...]] | None = [] if has_holes else None
        room = turn.room
        stop = index
        for stop in range(index, len(entries)):
            if credit <= 0 or room <= 0:
                break
            messages = counts[stop]
            if messages == MARKER:  # passed once more, even if acknowledged
                markers.append(Position(run.ledger_id, run.first_entry_id + stop))
                continue
            if not is_plain:
                position = Position(run.ledger_id, run.first_entry_id + stop)
                if has_holes and cursor.is_acked(position):
                    continue
                if self._goes_elsewhere(run, stop, consumer, turn, outgoing):
                    continue
                if words is not None:
                    words.append(cursor.remaining_words(position))
                    messages = open_messages(messages, words[-1])
            ids.append(run.first_entry_id + stop)
            messages_of.append(messages)
            picked.append(entry_of(stop))
            credit -= messages
            room -= len(entries[stop])
        else:
            stop = len(entries)
        return _Picked(stop, ids, messages_of, picked, words)

    def _goes_elsewhere(
        self,
        run: Run,
        index: int,
        consumer: Consumer,
        turn: Turn,
        outgoing: Outgoing,
    ) -> bool:
        """Whether an entry is not for this consumer now: delayed, or a chunk that belongs to
        another.

        If so, it is withheld, sent or parked here.
        """
        position = Position(run.ledger_id, run.first_entry_id + index)
        messages = run.messages[index]
        delays = self.context.delays
        if delays is not None and index in run.delayed and delays.withholds(run, index):
            return True
        chunk = run.chunks.get(index)
        if chunk is None:
            return False
        to = self._chosen(chunk, consumer, position)
        if to is not None and to is not consumer:
            entry = run.stored(index)
            self._send_one(to, position, entry, messages, turn, outgoing, is_chunk=True)
        return to is not consumer

    def _chosen(self, chunk: ChunkOf, consumer: Consumer, position: Position) -> Consumer | None:
        """Return the consumer for a chunk; None if it cannot take it now, and the chunk is
        parked."""
        to = self._affinity.consumer_of(chunk) or consumer
        if to is not consumer and not self.accounts.allowance(to):
            self._parked.setdefault(to, {})[position] = None
            return None
        self._affinity.sent(chunk, to)
        return to

    # Acknowledgements and redelivery

    def acked(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        _, unknown = self.accounts.acked(consumer, positions)
        for position in unknown:
            self.forget(position)

    def acked_through(self, position: Position) -> None:
        for _ in self.accounts.acked_through(position):
            pass
        self._replay.waiting.discard_through(position)
        for consumer, parked in self._parked.items():
            self._parked[consumer] = {each: None for each in parked if each > position}

    def deliver(self, positions: Sequence[Position]) -> None:
        is_pending = self.accounts.is_pending
        for position in positions:
            if not is_pending(position):
                self._replay.waiting.add(position)
        self.wake()

    def rewind(self) -> None:
        self.accounts.clear()
        self._reset()
        self.source.rewind()

    def pause(self) -> None:
        super().pause()
        self._replay.clear()
        self._parked.clear()

    def _reset(self) -> None:
        self._replay.clear()
        self._parked.clear()
        self._affinity.clear()
        self.accounts.clear()
        self.source.close()

    def _send_later(self, entries: Sequence[tuple[Position, int]]) -> None:
        for position, _ in entries:
            self._replay.waiting.add(position)

    def _unpark(self, consumer: Consumer) -> None:
        for position in self._parked.pop(consumer, ()):
            self._replay.waiting.add(position)

    # Queries

    @property
    def waiting_entries(self) -> int:
        """Entries that wait for redelivery, or for their consumer."""
        return len(self._replay.waiting) + sum(map(len, self._parked.values()))

    @property
    def is_reading_again(self) -> bool:
        return self._replay.is_reading

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        return self._replay.unreadable or super().unreadable

    def forget(self, position: Position) -> None:
        self._replay.waiting.discard(position)
        for parked in self._parked.values():
            parked.pop(position, None)

    def _why_waiting(self) -> Reason | None:
        if self._replay.unreadable is not None:
            return Reason.UNREADABLE
        return Reason.READING if self._replay.is_reading else None

    def check(self) -> None:
        super().check()
        waiting = self._replay.waiting
        for consumer in self.consumers:
            for position in consumer.pending:
                if position in waiting or position in self._parked.get(consumer, ()):
                    raise AccountsError(f"{position} is pending at {consumer.name!r} and waits")
