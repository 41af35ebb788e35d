"""Key_Shared: every entry goes to the consumer that has the hash of its key, in the key's order.

Runs are cut into slices; a slice is sorted by consumers in one pass, and each gets its share in one
go. An entry whose consumer can take nothing, or whose key is still in the hands of a former one,
is left behind and waits (`KeyBook`), and the rest goes on: up to the look-ahead limits, in entries.
The bytes of what waits are kept up to a bound; beyond it they are read again. What is sent again
waits in the same book. A new entry that waits keeps the later ones of its key behind itself.

With out-of-order delivery keys do not drain, and nothing waits behind another entry.

Source: protocol sheet section 11.
"""

import asyncio
from collections.abc import Sequence

from magnetar.broker.consumer import KEY_SHARED, Consumer, HashRange, KeySharedMode
from magnetar.broker.dispatch.accounts import HASH_SHIFT, PendingAccounts
from magnetar.broker.dispatch.base import DispatchContext, Dispatcher, Turn
from magnetar.broker.dispatch.encoding import (
    CHECKSUM_VERSION_MIN,
    append_message,
    open_messages,
)
from magnetar.broker.dispatch.keys import Key, KeyBook
from magnetar.broker.dispatch.reasons import Reason
from magnetar.broker.dispatch.replay import ENTRIES_PER_LOAD_MAX, LoadedEntry, ReplayReader
from magnetar.broker.dispatch.selectors import HashRanges, HashRing, Selector
from magnetar.broker.entry import MARKER, messages_of
from magnetar.broker.run import Run
from magnetar.broker.sticky_key import key_hash_of
from magnetar.ledger.position import Position
from magnetar.sdk.wire import encode_message_prefix

_SLICE_ENTRIES_MAX = 256

_Outgoing = dict[Consumer, list[bytes]]


class KeySharedDispatcher(Dispatcher):
    """Sends each key to one consumer at a time, in order."""

    sub_type = KEY_SHARED
    keeps_accounts = True
    heeds_delays = True

    def __init__(self, context: DispatchContext, mode: KeySharedMode) -> None:
        """`mode`: that of the first consumer; the others have the same."""
        super().__init__(context)
        self.mode = mode
        self.selector: Selector = HashRanges() if mode.is_sticky else HashRing()
        self.accounts = PendingAccounts(
            self.consumers,
            per_consumer_max=lambda: context.policies().max_unacked_per_consumer,
            per_subscription_max=lambda: context.policies().max_unacked_per_subscription,
            on_unblocked=self._wake_soon,
        )
        self.book = KeyBook(self.selector.select, is_unordered=mode.is_unordered)
        self._kept: dict[Position, bytes] = {}
        """Entries that wait, as far as there is room to keep them."""
        self._kept_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._is_impatient = False
        """Slower consumers got nothing for a while: what is left behind need not be kept."""
        self._due: dict[Position, None] = {}
        """Entries that were withheld and are due; their keys are not known before they are read."""
        self._reader = ReplayReader(
            context.log,
            context.limits.reads,
            label=context.label,
            on_read=self._on_read,
            on_ready=self.wake,
        )

    # Membership

    def add(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self.selector.add(consumer)
        self.book.reassign()

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        self._send_later(self.accounts.give_back(consumer, None, is_counted=False))
        self.consumers.remove(consumer)
        self.selector.remove(consumer)
        if not self.consumers:
            self._reset()
        else:
            self.book.reassign()
            self.wake()

    def conflict_of(self, ranges: Sequence[HashRange]) -> Consumer | None:
        """A consumer that has some of these hashes already."""
        return self.selector.conflict_of(ranges) if isinstance(self.selector, HashRanges) else None

    # Sending

    def wake(self) -> None:
        if not self.consumers:
            return
        turn = self._begin()
        if turn is None:
            return
        outgoing: _Outgoing = {}
        markers: list[Position] = []
        if self._send_waiting(turn, outgoing):
            self._send_new(turn, outgoing, markers)
        if markers:
            self._ack_markers(markers)
        for consumer, parts in outgoing.items():
            consumer.peer.write(b"".join(parts))
        self.context.on_progress()
        self._end(turn, wants_more=self.accounts.why_not_ready() is None)

    def _send_waiting(self, turn: Turn, outgoing: _Outgoing) -> bool:
        """Send what waits and can go; False: some of it is being read, and goes first."""
        missing: list[Position] = []
        if self._due:
            self._take_due(missing)
        book, accounts = self.book, self.accounts
        if book.waiting:
            for consumer in self.consumers:
                allowed = min(accounts.allowance(consumer), turn.messages)
                while allowed > 0 and turn.room > 0:
                    position = book.next_for(consumer)
                    if position is None:
                        break
                    entry = self._entry_at(position)
                    if entry is None:
                        missing += book.upcoming(consumer, ENTRIES_PER_LOAD_MAX)
                        break
                    allowed -= self._send_waited(consumer, position, entry, turn, outgoing)
        if not missing:
            return True
        if not self._reader.is_busy:
            wanted = sorted(set(missing) - self._kept.keys())
            self._reader.read(wanted[:ENTRIES_PER_LOAD_MAX])
        return False

    def _send_waited(
        self,
        consumer: Consumer,
        position: Position,
        entry: bytes,
        turn: Turn,
        outgoing: _Outgoing,
    ) -> int:
        """Send an entry that waited, or forget it; returns the messages sent."""
        key = self.book.discard(position)
        assert key is not None
        self._forget_kept(position)
        cursor = self.context.cursor
        messages = messages_of(entry)
        if messages == MARKER or cursor.is_acked(position):
            self.accounts.redelivery_counts.pop(position, None)
            self.book.forget_if_idle(key)
            return 0
        words = cursor.remaining_words(position)
        messages = open_messages(messages, words)
        size_bytes = append_message(
            outgoing.setdefault(consumer, []),
            consumer,
            position,
            entry,
            partition=self.context.partition,
            words=words,
            redelivery_count=self.accounts.redelivery_counts.get(position, 0),
        )
        consumer.pending[position] = key.hash << HASH_SHIFT | messages
        self.book.hand(key, consumer)
        self.book.forget_if_idle(key)
        self.accounts.charge(consumer, messages, size_bytes)
        turn.spend(messages, size_bytes)
        return messages

    def _send_new(self, turn: Turn, outgoing: _Outgoing, markers: list[Position]) -> None:
        """Send entries that nobody had yet; leave behind what cannot go."""
        while not turn.is_over and self.accounts.why_not_ready() is None:
            ahead = self._look_ahead()
            if ahead <= 0:
                return
            found = self.source.next_run()
            if found is None:
                return
            run, index = found
            stop = min(len(run.entries), index + min(ahead, _SLICE_ENTRIES_MAX, turn.messages))
            stop = self._send_slice(run, index, stop, turn, outgoing, markers)
            self.source.advance(run, stop)

    def _look_ahead(self) -> int:
        """How many entries more may be left behind.

        When no more of them can be kept, slower consumers get some time first to take theirs: most
        have more credit in a moment, and nothing is read twice.
        """
        limits = self.context.limits
        is_full = self._kept_bytes >= limits.look_ahead_bytes_max
        if is_full and self.book.waiting and not self._is_impatient:
            if self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(
                    limits.look_ahead_patience_ms / 1000, self._lose_patience
                )
            return 0
        return min(
            limits.look_ahead_per_consumer_max * len(self.consumers),
            limits.look_ahead_per_subscription_max,
        ) - len(self.book.waiting)

    def _lose_patience(self) -> None:
        self._patience = None
        self._is_impatient = True
        self.wake()

    def _have_patience(self) -> None:
        """Somebody took what waited."""
        self._is_impatient = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _send_slice(
        self,
        run: Run,
        start: int,
        stop: int,
        turn: Turn,
        outgoing: _Outgoing,
        markers: list[Position],
    ) -> int:
        """Send or leave behind the entries of a slice; returns where it ends, at most `stop`."""
        cursor, delays, book = self.context.cursor, self.context.delays, self.book
        entries, counts = run.entries, run.messages
        delayed = run.delayed if delays is not None else ()
        ledger_id, first_entry_id = run.ledger_id, run.first_entry_id
        has_holes = cursor.has_holes and not cursor.is_untouched(
            ledger_id, first_entry_id + start, first_entry_id + stop - 1
        )
        hashes = self.selector.hashes_of(run.key_hashes[start:stop])
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
        outgoing: _Outgoing,
    ) -> None:
        """Send a consumer its entries of a slice, as far as it can take them; leave the rest."""
        cursor, book = self.context.cursor, self.book
        is_unordered = self.mode.is_unordered
        partition = self.context.partition
        entries, counts = run.entries, run.messages
        ledger_id, first_entry_id = run.ledger_id, run.first_entry_id
        has_holes = cursor.has_holes and not cursor.is_untouched(
            ledger_id, first_entry_id + share[0][0], first_entry_id + share[-1][0]
        )
        pending = consumer.pending
        allowed = min(self.accounts.allowance(consumer), turn.messages)
        before = allowed
        sent_bytes = done = 0
        words: tuple[int, ...] = ()
        consumer_id, epoch = consumer.consumer_id, consumer.epoch
        is_old = consumer.peer.protocol_version < CHECKSUM_VERSION_MIN
        if allowed > 0:
            parts = outgoing.setdefault(consumer, [])
            for index, key in share:
                if allowed <= 0:
                    break
                done += 1
                position = Position(ledger_id, first_entry_id + index)
                messages = counts[index]
                if has_holes and (words := cursor.remaining_words(position)):
                    messages = open_messages(messages, words)
                entry = entries[index]
                if words or is_old:
                    sent_bytes += append_message(
                        parts, consumer, position, entry, partition=partition, words=words
                    )
                else:
                    size = len(entry)
                    parts += (
                        encode_message_prefix(
                            consumer_id,
                            ledger_id=ledger_id,
                            entry_id=position[1],
                            payload_bytes=size,
                            partition=partition,
                            consumer_epoch=epoch,
                        ),
                        entry,
                    )
                    sent_bytes += size
                pending[position] = key.hash << HASH_SHIFT | messages
                allowed -= messages
                if is_unordered:
                    book.forget_if_idle(key)
                else:
                    key.holder = consumer
                    key.in_hand += 1
            self.accounts.charge(consumer, before - allowed, sent_bytes)
            turn.spend(before - allowed, sent_bytes)
        for index, key in share[done:]:
            self._leave(run, index, key)

    def _leave(self, run: Run, index: int, key: Key) -> None:
        """Leave an entry behind, with its bytes if there is room for them."""
        position = Position(run.ledger_id, run.first_entry_id + index)
        self.book.wait(position, key.hash)
        self._keep(position, run.entries[index])

    # What waits

    def _entry_at(self, position: Position) -> bytes | None:
        entry = self._kept.get(position)
        if entry is None:
            run = self.context.cache.find(position)
            if run is not None:
                entry = run.entries[run.index_of(position)]
        return entry

    def _keep(self, position: Position, entry: bytes) -> None:
        if (
            position not in self._kept
            and self._kept_bytes + len(entry) <= self.context.limits.look_ahead_bytes_max
        ):
            self._kept[position] = entry
            self._kept_bytes += len(entry)

    def _forget_kept(self, position: Position) -> None:
        entry = self._kept.pop(position, None)
        if entry is not None:
            self._kept_bytes -= len(entry)
            if self._kept_bytes * 2 <= self.context.limits.look_ahead_bytes_max:
                self._have_patience()

    def _on_read(
        self, found: list[LoadedEntry], gone: list[Position], left: list[Position]
    ) -> None:
        """Entries that wait were read. They are kept beyond the bound: they are about to go."""
        for position, entry, _ in found:
            if position in self._due:
                self._wait_due(position, entry)
            elif position in self.book.waiting and position not in self._kept:
                self._kept[position] = entry
                self._kept_bytes += len(entry)
        for position in gone:
            self._due.pop(position, None)
            self._discard(position)

    def _take_due(self, missing: list[Position]) -> None:
        """Find the keys of what is due."""
        for position in sorted(self._due)[:ENTRIES_PER_LOAD_MAX]:
            entry = self._entry_at(position)
            if entry is None:
                missing.append(position)
            else:
                self._wait_due(position, entry)

    def _wait_due(self, position: Position, entry: bytes) -> None:
        del self._due[position]
        self.book.wait(position, self.selector.hash_of(key_hash_of(entry)))
        self._keep(position, entry)

    def _discard(self, position: Position) -> None:
        """The entry need not be sent any more."""
        key = self.book.discard(position)
        if key is not None:
            self._forget_kept(position)
            self.book.forget_if_idle(key)

    def _send_later(self, entries: Sequence[tuple[Position, int]]) -> None:
        """Entries come back from a consumer."""
        for position, key_hash in entries:
            self.book.wait(position, key_hash)
        self.book.released([key_hash for _, key_hash in entries])

    def limits_changed(self) -> None:
        self.accounts.limits_changed()
        super().limits_changed()

    # Acknowledgements and redelivery

    def acked(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        hashes, unknown = self.accounts.acked(consumer, positions)
        for position in unknown:
            self._discard(position)
        if self.book.released(hashes):
            self._wake_soon()

    def acked_through(self, position: Position) -> None:
        self.book.released([each for _, each in self.accounts.acked_through(position)])
        for each in self.book.waiting_through(position):
            self._discard(each)
        for each in [each for each in self._due if each <= position]:
            del self._due[each]
        self._wake_soon()

    def partly_acked(self, position: Position) -> None:
        self.accounts.partly_acked(position, self.context.cursor)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        self._send_later(self.accounts.give_back(consumer, positions, is_counted=True))
        self.wake()

    def deliver(self, positions: Sequence[Position]) -> None:
        for position in positions:
            if position not in self.book.waiting and not self.accounts.is_pending(position):
                self._due[position] = None
        self.wake()

    def rewind(self) -> None:
        self._reset()
        self.source.rewind()

    def pause(self) -> None:
        super().pause()
        self._reset()

    def _reset(self) -> None:
        self.accounts.clear()
        self.book.clear()
        self._reader.stop()
        self._kept.clear()
        self._kept_bytes = 0
        self._due.clear()
        self._have_patience()
        self.source.close()

    # Questions

    @property
    def waiting_entries(self) -> int:
        """Entries that wait: to be sent again, for credit, or for their keys."""
        return len(self.book.waiting) + len(self._due)

    def _why_not_sending(self) -> Reason | None:
        found = self.accounts.why_not_ready()
        if found is not None:
            return found
        if self._reader.is_busy:
            return Reason.READING
        is_stuck = self._look_ahead() <= 0 or self.source.is_at_end
        if is_stuck and self.book.waiting:
            keys = set(self.book.waiting.values())
            if all(key.is_draining for key in keys):
                return Reason.DRAINING
            if all(key.owner is None for key in keys):
                return Reason.NO_OWNER
            if self._look_ahead() <= 0:
                return Reason.LOOK_AHEAD
        delays = self.context.delays
        if delays is not None and delays.withheld and self.source.is_at_end:
            return Reason.DELAYED
        return None

    def check(self) -> None:
        self.accounts.check(self.context.cursor)
        self.book.check(self.consumers)
