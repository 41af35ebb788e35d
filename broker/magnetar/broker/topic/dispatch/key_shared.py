"""Key_Shared dispatch: every entry goes to the consumer that has its key's hash, in the key's
order.

Runs are cut into slices. A slice is sorted by consumers in one pass, and each consumer gets its
share at once. An entry is left behind and waits (`KeyBook`) if its consumer can take nothing, or if
a former consumer still holds its key. Dispatch of other entries continues up to the look-ahead
limits, which count entries. The bytes of waiting entries are kept up to a bound; beyond it they are
read again. Redeliveries wait in the same book. A new entry that waits makes the later ones of its
key wait.

With out-of-order delivery keys do not drain, and no entry waits for another.

Source: protocol sheet section 11.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from magnetar.broker.base.chunks import chunk_of
from magnetar.broker.base.entry import MARKER, messages_of
from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic.consumer import KEY_SHARED, Consumer, HashRange, KeySharedMode
from magnetar.broker.topic.dispatch.accounted import AccountedDispatcher, Outgoing
from magnetar.broker.topic.dispatch.accounts import HASH_SHIFT
from magnetar.broker.topic.dispatch.base import DispatchContext, Turn
from magnetar.broker.topic.dispatch.encoding import open_messages
from magnetar.broker.topic.dispatch.keys import Key, KeyBook
from magnetar.broker.topic.dispatch.left_behind import LeftBehind
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.replay import ENTRIES_PER_LOAD_MAX
from magnetar.broker.topic.dispatch.selectors import selector_of
from magnetar.broker.topic.run import Run
from magnetar.ledger.position import Position

_SLICE_ENTRIES_MAX = 256


class KeySharedDispatcher(AccountedDispatcher):
    """Sends each key to one consumer at a time, in order."""

    sub_type = KEY_SHARED

    def __init__(self, context: DispatchContext, mode: KeySharedMode) -> None:
        """`mode`: that of the first consumer; the others have the same.

        Consumers of entry buckets share a segment that one consumer would otherwise read alone, in
        order. Delays are ignored for both. Otherwise the order of a key would depend on how many
        consumers share the segment, and a delayed message would hold back everything that follows
        from it after a split.
        """
        super().__init__(replace(context, delays=None) if mode.by_buckets else context)
        self.mode = mode
        self.selector = selector_of(
            mode, splits_ranges=not context.settings.key_shared_consistent_hashing
        )
        self.book = KeyBook(self.selector.select, is_unordered=mode.is_unordered)
        self.left = LeftBehind(
            self.context, self.book, hash_in=self.selector.hash_in, wake=weakly(self.wake)
        )

    # Membership

    def add(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self.accounts.joined(consumer)
        self.selector.add(consumer)
        self.book.owners_changed()

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        gone = self._without(consumers)
        if not gone:
            return
        self._take_back(gone)
        for consumer in gone:
            self.selector.remove(consumer)
        self.book.owners_changed()
        if not self.consumers:
            self._reset()
        else:
            self.wake()

    def conflict_of(self, ranges: Sequence[HashRange]) -> Consumer | None:
        """Return a consumer that excludes a newcomer with these hash ranges."""
        return self.selector.conflict_of(ranges)

    # Sending

    def wake(self) -> None:
        if not self.consumers:
            return
        turn = self._begin()
        if turn is None:
            return
        self.book.refresh()
        outgoing: Outgoing = {}
        markers: list[Position] = []
        if self._send_waiting(turn, outgoing):
            self._send_new(turn, outgoing, markers)
        self._end_turn(turn, outgoing, markers, wants_more=self.accounts.why_not_ready() is None)

    def _send_waiting(self, turn: Turn, outgoing: Outgoing) -> bool:
        """Send waiting entries that can be sent; return False if some are being read, and go
        first."""
        book, accounts, left = self.book, self.accounts, self.left
        missing = left.find_due()
        if book.waiting:
            for consumer in self.consumers:
                allowed = min(accounts.allowance(consumer), turn.messages)
                while allowed > 0 and not turn.is_over:
                    found = left.next_for(consumer)
                    if found is None:
                        break
                    position, entry = found
                    if entry is None:
                        missing += book.upcoming(consumer, ENTRIES_PER_LOAD_MAX)
                        break
                    allowed -= self._send_waited(consumer, position, entry, turn, outgoing)
        if missing:
            left.read(missing)
        return not missing

    def _send_waited(
        self, consumer: Consumer, position: Position, entry: bytes, turn: Turn, outgoing: Outgoing
    ) -> int:
        """Send a waiting entry, or drop it; return the messages sent."""
        key = self.left.take(position)
        messages = messages_of(entry)
        if messages == MARKER or self.context.cursor.is_acked(position):
            self.accounts.redelivery_counts.pop(position, None)
            sent = 0
        else:
            sent = self._send_one(
                consumer,
                position,
                entry,
                messages,
                turn,
                outgoing,
                is_chunk=chunk_of(entry) is not None,
                key_hash=key.hash,
            )
            self.book.hand(key, consumer)
        self.book.forget_if_idle(key)
        return sent

    def _send_new(self, turn: Turn, outgoing: Outgoing, markers: list[Position]) -> None:
        """Send new entries; leave behind those that cannot be sent."""
        while not turn.is_over and self.accounts.why_not_ready() is None:
            ahead = self.left.room(len(self.consumers))
            if ahead <= 0:
                return
            found = self.source.next_run()
            if found is None:
                return
            run, index = found
            stop = min(len(run.entries), index + min(ahead, _SLICE_ENTRIES_MAX, turn.messages))
            stop = self._send_slice(run, index, stop, turn, outgoing, markers)
            self.source.advance(run, stop)

    def _send_slice(
        self,
        run: Run,
        start: int,
        stop: int,
        turn: Turn,
        outgoing: Outgoing,
        markers: list[Position],
    ) -> int:
        """Send or leave behind the entries of a slice; return where it ends, at most `stop`."""
        cursor, delays, book = self.context.cursor, self.context.delays, self.book
        entries, counts = run.entries, run.messages
        delayed = run.delayed if delays is not None else ()
        ledger_id, first_entry_id = run.ledger_id, run.first_entry_id
        has_holes = cursor.has_holes and not cursor.is_untouched(
            ledger_id, first_entry_id + start, first_entry_id + stop - 1
        )
        hashes = self.selector.hashes_in(run, start, stop)
        keys, select, is_unordered = book.keys, self.selector.select, self.mode.is_unordered
        shares: dict[Consumer, list[tuple[int, Key]]] = {}
        room = turn.room
        at = start
        for index, key_hash in enumerate(hashes, start):
            if room <= 0:
                break
            at = index + 1
            if counts[index] == MARKER:
                markers.append(Position(ledger_id, first_entry_id + index))
                continue
            if has_holes and cursor.is_acked(Position(ledger_id, first_entry_id + index)):
                continue
            if delayed and index in delayed:
                assert delays is not None
                if delays.withholds(run, index):
                    continue
            key = keys.get(key_hash)
            if key is None:
                owner = select(key_hash)
                key = keys[key_hash] = Key(key_hash, owner)
            else:
                owner = key.owner
                if not is_unordered and (key.waiting or key.holder not in (None, owner)):
                    owner = None
            if owner is None:
                self._leave(run, index, key)
                continue
            share = shares.get(owner)
            if share is None:
                share = shares[owner] = []
            share.append((index, key))
            room -= len(entries[index])
        for consumer, share in shares.items():
            self._send_share(consumer, run, share, turn, outgoing)
        return at

    def _send_share(
        self,
        consumer: Consumer,
        run: Run,
        share: list[tuple[int, Key]],
        turn: Turn,
        outgoing: Outgoing,
    ) -> None:
        """Send a consumer its entries of a slice, as far as it can take them; leave the rest
        behind."""
        first_entry_id, counts = run.first_entry_id, run.messages
        ids = [first_entry_id + index for index, _ in share]
        costs = [counts[index] for index, _ in share]
        words = self._open_words(run.ledger_id, ids)
        if words is not None:
            costs = list(map(open_messages, costs, words))
        done = _affordable(costs, min(self.accounts.allowance(consumer), turn.messages))
        if done:
            del ids[done:], costs[done:]
            entry_of = run.getter(with_prefixes=consumer.peer.takes_entry_metadata)
            entries = [entry_of(index) for index, _ in share[:done]]
            parts = outgoing.setdefault(consumer, [])
            sent_bytes = self._append(parts, consumer, run.ledger_id, ids, entries, words)
            self._hand_out(consumer, run.ledger_id, ids, costs, [key for _, key in share[:done]])
            messages = sum(costs)
            chunks = run.chunks_among(ids) if run.chunks else 0
            self.accounts.charge(consumer, messages, sent_bytes, entries=len(ids), chunks=chunks)
            turn.spend(messages, sent_bytes)
        for index, key in share[done:]:
            self._leave(run, index, key)

    def _open_words(self, ledger_id: int, ids: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Return the ack_set words of ascending entries; None if none is partly acknowledged."""
        cursor = self.context.cursor
        if not cursor.has_holes or cursor.is_untouched(ledger_id, ids[0], ids[-1]):
            return None
        return [cursor.remaining_words(Position(ledger_id, each)) for each in ids]

    def _hand_out(
        self,
        consumer: Consumer,
        ledger_id: int,
        ids: Sequence[int],
        costs: Sequence[int],
        keys: Sequence[Key],
    ) -> None:
        """Account for what was sent to the consumer."""
        values = [key.hash << HASH_SHIFT | cost for key, cost in zip(keys, costs, strict=True)]
        consumer.pending.put(ledger_id, ids, values)
        if self.mode.is_unordered:
            for key in keys:
                self.book.forget_if_idle(key)
            return
        for key in keys:
            key.holder = consumer
            key.in_hand += 1

    def _leave(self, run: Run, index: int, key: Key) -> None:
        position = Position(run.ledger_id, run.first_entry_id + index)
        self.left.leave(position, key.hash, run.stored(index))

    # Acknowledgements and redelivery

    def _send_later(self, entries: Sequence[tuple[Position, int]]) -> None:
        """Make entries wait that come back from a consumer."""
        for position, key_hash in entries:
            self.book.wait(position, key_hash)
        self.book.released([key_hash for _, key_hash in entries])

    def acked(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        hashes, unknown = self.accounts.acked(consumer, positions)
        for position in unknown:
            self.left.discard(position)
        if self.book.released(hashes):
            self._wake_soon()

    def acked_through(self, position: Position) -> None:
        self.book.released([each for _, each in self.accounts.acked_through(position)])
        self.left.discard_through(position)
        self._wake_soon()

    def deliver(self, positions: Sequence[Position]) -> None:
        is_pending = self.accounts.is_pending
        self.left.fall_due(each for each in positions if not is_pending(each))
        self.wake()

    def rewind(self) -> None:
        self._reset()
        self.source.rewind()

    def pause(self) -> None:
        super().pause()
        self._reset()

    def _reset(self) -> None:
        self.accounts.clear()
        self.left.clear()
        self.source.close()

    # Queries

    @property
    def waiting_entries(self) -> int:
        return len(self.left)

    @property
    def is_reading_again(self) -> bool:
        return self.left.is_reading

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        return self.left.unreadable or super().unreadable

    def forget(self, position: Position) -> None:
        self.left.forget(position)

    def _why_waiting(self) -> Reason | None:
        self.book.refresh()
        if self.left.unreadable is not None:
            return Reason.UNREADABLE
        if self.left.is_reading:
            return Reason.READING
        is_full = self.left.room(len(self.consumers)) <= 0
        if self.book.waiting and (is_full or self.source.is_at_end):
            keys = set(self.book.waiting.values())
            if all(key.is_draining for key in keys):
                return Reason.DRAINING
            if all(key.owner is None for key in keys):
                return Reason.NO_OWNER
            if is_full:
                return Reason.LOOK_AHEAD
        return None

    def check(self) -> None:
        super().check()
        self.book.check(self.consumers)


def _affordable(costs: Sequence[int], allowed: int) -> int:
    """Return how many entries of these costs can be sent: each as long as some credit is left."""
    if allowed > 0 and sum(costs) <= allowed:
        return len(costs)
    for at, cost in enumerate(costs):
        if allowed <= 0:
            return at
        allowed -= cost
    return len(costs)
