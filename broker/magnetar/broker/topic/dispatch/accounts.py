"""Accounts of the entries sent to Shared and Key_Shared consumers and not yet acknowledged.

Every sent entry is pending at one consumer until it is acknowledged or given back. A consumer, or a
whole subscription, with too many unacknowledged messages is sent nothing until half of them are
acknowledged or given back. Permits are kept meanwhile.

`Consumer.pending` has a number per entry: the number of its unacknowledged messages, and in the
bits above, the hash of its key (0 for Shared).

Source: protocol sheet sections 9 and 10. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.encoding import open_messages
from magnetar.broker.topic.dispatch.pending import PendingIndex
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.cursors import SubscriptionCursor
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MESSAGES_PER_ENTRY_MAX

HASH_SHIFT = MESSAGES_PER_ENTRY_MAX.bit_length()
MESSAGES_MASK = (1 << HASH_SHIFT) - 1


class AccountsError(AssertionError):
    """A contradiction in the accounts of a dispatcher: a defect of this program."""


class PendingAccounts:
    """The pending entries of one subscription's consumers, their limits, and redelivery counts."""

    def __init__(
        self,
        consumers: list[Consumer],
        *,
        limits: Callable[[], tuple[int, int]],
        on_unblocked: Callable[[], None],
    ) -> None:
        """`consumers`: the dispatcher's own list. `limits`: messages per consumer and per
        subscription, 0: no limit; read again by `limits_changed`."""
        self._consumers = consumers
        self._limits = limits
        self._per_consumer_max, self._per_subscription_max = limits()
        self._on_unblocked = on_unblocked
        self.unacked_messages = 0
        self.is_blocked = False
        """Whether the subscription has too many unacknowledged messages."""
        self.redelivery_counts: dict[Position, int] = {}
        self.clears = 0
        """How often all accounts were cleared."""
        self._index = PendingIndex()
        self.leaving: list[Consumer] = []
        """Consumers that have left, and whose entries are given back in portions. A list: every
        subscription has one, and an empty deque takes 760 bytes."""

    def joined(self, consumer: Consumer) -> None:
        """Register a new consumer, which has no entries yet."""
        consumer.pending.join(self._index, consumer)

    # Sending

    def allowance(self, consumer: Consumer) -> int:
        """Return how many messages may be sent to the consumer now; the last entry may exceed
        that."""
        if not consumer.is_ready or self.is_blocked:
            return 0
        allowed = consumer.permits
        if 0 < self._per_consumer_max < consumer.unacked_messages + allowed:
            allowed = max(1, self._per_consumer_max - consumer.unacked_messages)
        if 0 < self._per_subscription_max < self.unacked_messages + allowed:
            allowed = max(1, self._per_subscription_max - self.unacked_messages)
        return allowed

    def charge(
        self, consumer: Consumer, messages: int, size_bytes: int, *, entries: int, chunks: int
    ) -> None:
        """Account for what was sent to the consumer; the caller has put the entries into
        `pending`."""
        consumer.permits -= messages
        consumer.entries_out += entries
        consumer.chunks_out += chunks
        consumer.messages_out += messages
        consumer.bytes_out += size_bytes
        consumer.unacked_messages += messages
        self.unacked_messages += messages
        if 0 < self._per_consumer_max <= consumer.unacked_messages:
            consumer.is_blocked = True
        if 0 < self._per_subscription_max <= self.unacked_messages:
            self.is_blocked = True

    # Acknowledging and giving back

    def acked(
        self, likely: Consumer, positions: Sequence[Position]
    ) -> tuple[list[int], list[Position]]:
        """Remove entries that were acknowledged as a whole, most of them pending at the `likely`
        consumer.

        Return the key hashes of those that were pending at any consumer, and the positions of the
        others.
        """
        counts = self.redelivery_counts
        if counts:
            for position in positions:
                counts.pop(position, None)
        hashes: list[int] = []
        unknown: list[Position] = []
        messages = 0
        values = likely.pending.take(positions)
        if len(values) == 1 and values[0] >= 0:  # nearly always
            messages = values[0] & MESSAGES_MASK
            likely.messages_acked += messages
            self._release(likely, messages)
            return [values[0] >> HASH_SHIFT], unknown
        for position, value in zip(positions, values, strict=True):
            if value < 0:
                owner = self._owner(position)
                if owner is None:
                    unknown.append(position)
                    continue
                value = owner.pending.pop(position)
                owner.messages_acked += value & MESSAGES_MASK
                self._release(owner, value & MESSAGES_MASK)
            else:
                messages += value & MESSAGES_MASK
            hashes.append(value >> HASH_SHIFT)
        if messages:
            likely.messages_acked += messages
            self._release(likely, messages)
        return hashes, unknown

    def partly_acked(self, position: Position, cursor: SubscriptionCursor) -> None:
        """Account for an entry of which more batch indexes were acknowledged."""
        owner = self._owner(position)
        if owner is None:
            return
        value = owner.pending[position]
        before = value & MESSAGES_MASK
        remaining = min(before, open_messages(before, cursor.remaining_words(position)))
        owner.pending[position] = value - before + remaining
        owner.messages_acked += before - remaining
        self._release(owner, before - remaining)

    def acked_through(self, position: Position) -> Iterator[tuple[Consumer, int]]:
        """Remove what is pending at or before the position; yield its consumers and key hashes."""
        for consumer in [*self._consumers, *self.leaving]:
            passed = [each for each in consumer.pending if each <= position]
            for each in passed:
                value = consumer.pending.pop(each)
                self._release(consumer, value & MESSAGES_MASK)
                yield consumer, value >> HASH_SHIFT
        counts = self.redelivery_counts
        for each in [each for each in counts if each <= position]:
            del counts[each]

    def give_back(
        self, consumer: Consumer, positions: Iterable[Position] | None, *, is_counted: bool
    ) -> list[tuple[Position, int]]:
        """Remove the given entries, None: all, and return those to send again, with their key
        hashes.

        Entries that are not pending at this consumer are left out. `is_counted`: whether the client
        requested redelivery, which raises the redelivery count.
        """
        pending, counts = consumer.pending, self.redelivery_counts
        found: list[tuple[Position, int]] = []
        messages = 0
        asked = list(pending if positions is None else positions)
        for position, value in zip(asked, pending.take(asked), strict=True):
            if value < 0:
                continue
            found.append((position, value >> HASH_SHIFT))
            messages += value & MESSAGES_MASK
            if is_counted:
                counts[position] = counts.get(position, 0) + 1
        consumer.took_back()
        if is_counted:
            consumer.messages_redelivered += messages
        self._release(consumer, messages)
        return found

    def clear(self) -> None:
        """Clear all accounts, as after a seek."""
        for consumer in [*self._consumers, *self.leaving]:
            consumer.pending.clear()
            consumer.took_back()
            self._release(consumer, consumer.unacked_messages)
        for consumer in self.leaving:
            consumer.pending.part()
        self.leaving.clear()
        self.redelivery_counts.clear()
        self.clears += 1

    def _owner(self, position: Position) -> Consumer | None:
        """Return the consumer at which the entry is pending; any consumer may acknowledge it."""
        owner = self._index.owner(position)
        return owner if isinstance(owner, Consumer) else None

    def limits_changed(self) -> None:
        """Apply changed limits: block consumers that exceed the new ones, unblock the others."""
        self._per_consumer_max, self._per_subscription_max = self._limits()
        per_consumer = self._per_consumer_max
        for consumer in self._consumers:
            consumer.is_blocked = 0 < per_consumer <= consumer.unacked_messages
        self.is_blocked = 0 < self._per_subscription_max <= self.unacked_messages

    def _release(self, consumer: Consumer, messages: int) -> None:
        """Reduce the unacknowledged messages of a consumer; call back if that unblocks."""
        consumer.unacked_messages -= messages
        self.unacked_messages -= messages
        if consumer.is_blocked and consumer.unacked_messages * 2 <= self._per_consumer_max:
            consumer.is_blocked = False
            self._on_unblocked()
        if self.is_blocked and self.unacked_messages * 2 <= self._per_subscription_max:
            self.is_blocked = False
            self._on_unblocked()

    # Queries

    def is_pending(self, position: Position) -> bool:
        """Whether some consumer has the entry."""
        return self._owner(position) is not None

    def why_not_ready(self) -> Reason | None:
        """Return why nothing can be sent to any consumer; None if something can."""
        if self.is_blocked:
            return Reason.SUBSCRIPTION_UNACKED
        if any(consumer.is_ready for consumer in self._consumers):
            return None
        if all(consumer.is_blocked for consumer in self._consumers):
            return Reason.CONSUMERS_UNACKED
        if any(each.permits > 0 and not each.is_blocked for each in self._consumers):
            return Reason.NOT_WRITABLE
        return Reason.NO_PERMITS

    # Checking

    def check(self, cursor: SubscriptionCursor) -> None:
        """Check the accounts for contradictions.

        Raises:
            AccountsError: they contradict each other.
        """
        total = 0
        seen: set[Position] = set()
        for consumer in [*self._consumers, *self.leaving]:
            who = f"consumer {consumer.name!r}"
            unacked = sum(value & MESSAGES_MASK for value in consumer.pending.values())
            if unacked != consumer.unacked_messages:
                raise AccountsError(
                    f"{who}: {consumer.unacked_messages} unacknowledged, {unacked} pending"
                )
            if consumer.permits < -MESSAGES_PER_ENTRY_MAX:
                raise AccountsError(f"{who}: credit is {consumer.permits}, below one batch")
            if twice := seen & consumer.pending.keys():
                raise AccountsError(f"{who}: pending elsewhere, too: {sorted(twice)[:3]}")
            seen |= consumer.pending.keys()
            for position in consumer.pending:
                if cursor.is_acked(position):
                    raise AccountsError(f"{who}: {position} is pending and acknowledged")
            total += unacked
        if total != self.unacked_messages:
            raise AccountsError(f"{self.unacked_messages} unacknowledged, {total} at consumers")
