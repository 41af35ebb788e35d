"""What a topic promises, said in the plainest way: a log, and per subscription what is still open.

The model decides everything that is decided (which entry an Exclusive consumer gets next, what a
seek opens again, whose credit is gone) and checks what is free (which Shared consumer gets what).
It is told of every command before its effects arrive, and of every frame that arrives. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from magnetar.ledger.position import Position

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)

UNACKED_PER_CONSUMER_MAX = 12
UNACKED_PER_SUBSCRIPTION_MAX = 20
BATCH_MAX = 70


@dataclass
class Entry:
    """One entry of the log: a message by itself, or a batch."""

    position: Position
    messages: int
    time_ms: int
    key: str

    @property
    def bits(self) -> int:
        """All messages open."""
        return (1 << self.messages) - 1


@dataclass(eq=False)
class Member:
    """A consumer, as its client knows it."""

    client: int
    consumer_id: int
    name: str
    subscription: "SubscriptionModel"
    permits: int = 0
    seen: list[Position] = field(default_factory=list)
    """What it was sent, in order; what it names in acknowledgements comes from here."""
    pending: set[Position] = field(default_factory=set)
    """Shared and Key_Shared: sent and not acknowledged."""
    is_blocked: bool = False
    is_told_end: bool = False

    @property
    def unacked(self) -> int:
        opened = self.subscription.open
        return sum(opened[each].bit_count() for each in self.pending)

    @property
    def is_ready(self) -> bool:
        return self.permits > 0 and not self.is_blocked and not self.subscription.is_blocked


class LogModel:
    """The entries of a topic, and the ledgers they are in."""

    def __init__(self) -> None:
        self.ledgers: dict[int, int] = {7: 0}
        """Number of entries by ledger id."""
        self.entries: dict[Position, Entry] = {}
        self.subscriptions: dict[str, SubscriptionModel] = {}
        self.is_terminated = False

    def append(self, messages: int, time_ms: int, key: str) -> Entry:
        ledger_id = next(reversed(self.ledgers))
        entry = Entry(Position(ledger_id, self.ledgers[ledger_id]), messages, time_ms, key)
        self.ledgers[ledger_id] += 1
        self.entries[entry.position] = entry
        for subscription in self.subscriptions.values():
            subscription.open[entry.position] = subscription.saved[entry.position] = entry.bits
        return entry

    def roll(self) -> int:
        ledger_id = next(reversed(self.ledgers)) + 1
        self.ledgers[ledger_id] = 0
        return ledger_id

    def may_trim(self) -> bool:
        """Whether every durable cursor has passed the first ledger, stored or not."""
        first = next(iter(self.ledgers))
        return len(self.ledgers) > 1 and not any(
            position.ledger_id == first
            for each in self.subscriptions.values()
            if each.is_durable
            for position in (*each.open, *each.saved)
        )

    def trim(self) -> None:
        first = next(iter(self.ledgers))
        del self.ledgers[first]
        for position in [each for each in self.entries if each.ledger_id == first]:
            del self.entries[position]
            for subscription in self.subscriptions.values():
                subscription.open.pop(position, None)
                subscription.saved.pop(position, None)

    def from_position(self, position: Position) -> dict[Position, int]:
        """Everything open from there on."""
        return {each: entry.bits for each, entry in self.entries.items() if each >= position}

    def newest_before(self, time_ms: int) -> Position | None:
        older = [each for each, entry in self.entries.items() if entry.time_ms < time_ms]
        return older[-1] if older else None

    def first_at(self, time_ms: int) -> Position:
        for position, entry in self.entries.items():
            if entry.time_ms >= time_ms:
                return position
        return Position(1 << 62, 0)


class SubscriptionModel:
    """A cursor and its consumers. `open`: the messages of each entry that are not acknowledged."""

    def __init__(
        self, log: LogModel, name: str, *, is_durable: bool, opened: dict[Position, int]
    ) -> None:
        self.log = log
        self.name = name
        self.is_durable = is_durable
        self.type = EXCLUSIVE
        self.is_unordered = False
        self.open = opened
        self.saved = dict(opened)
        """Open messages as they are stored, with everything that was published since."""
        self.members: list[Member] = []
        self.active: Member | None = None
        self.after = Position(-1, -1)
        """Exclusive and Failover: what was sent or skipped last."""
        self.counts: dict[Position, int] = {}
        self.is_blocked = False
        self.left_together = False
        """In this step several consumers have left; messages were sent in between, or not."""

    # Membership

    @property
    def is_single(self) -> bool:
        return self.type in (EXCLUSIVE, FAILOVER)

    def join(self, member: Member, sub_type: int, *, is_unordered: bool) -> None:
        if not self.members:
            self.type, self.is_unordered = sub_type, is_unordered
        self.members.append(member)
        if sub_type == EXCLUSIVE:
            self.activate(member)

    def activate(self, member: Member) -> None:
        """Make a member active: it gets everything that is open, from the first entry on."""
        if self.active is not member:
            self.active = member
            self.rewind()

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self._release(member, list(member.pending))
        if self.active is member:
            self.active = None
        if not self.members:
            self.forget_sent()

    def rewind(self) -> None:
        self.after = Position(-1, -1)

    def forget_sent(self) -> None:
        """Nothing was sent to anybody, and nothing ever came back."""
        for member in self.members:
            self._release(member, list(member.pending))
        self.counts.clear()
        self.rewind()

    # Delivery

    def delivered(
        self, member: Member, position: Position, words: Sequence[int], redelivery_count: int
    ) -> None:
        """A MESSAGE came."""
        assert member in self.members, f"{member.name} has left, and is sent {position}"
        assert position in self.open, f"{position} is acknowledged, and is sent again"
        bits = self.open[position]
        is_whole = bits == self.log.entries[position].bits
        assert bits_of(words) == (0 if is_whole else bits), f"{position}: open {bits:b}, {words}"
        assert member.permits > 0, f"{member.name} gets {position} without credit"
        if self.is_single:
            assert member is self.active, f"{member.name} is not active, and is sent {position}"
            assert position == self.next_to_send(), f"{position} before {self.next_to_send()}"
            assert redelivery_count == 0
            self.after = position
        else:
            self._take(member, position, redelivery_count)
        member.permits -= bits.bit_count()
        member.seen.append(position)
        if not self.is_single:
            member.is_blocked |= member.unacked >= UNACKED_PER_CONSUMER_MAX

    def _take(self, member: Member, position: Position, redelivery_count: int) -> None:
        assert not member.is_blocked, f"{member.name} has {member.unacked} unacknowledged"
        assert not self.is_blocked, f"{self.unacked} are unacknowledged"
        assert self.unacked < UNACKED_PER_SUBSCRIPTION_MAX + BATCH_MAX
        for other in self.members:
            assert position not in other.pending, f"{position} is pending at {other.name}"
        expected = self.counts.get(position, 0)
        assert redelivery_count == expected, f"{position}: count {redelivery_count}, not {expected}"
        if self.type == KEY_SHARED and not self.is_unordered:
            key = self.log.entries[position].key
            for each in self.undelivered():
                is_overtaken = each < position and self.log.entries[each].key == key
                assert not is_overtaken, f"{position} of key {key} overtakes {each}"
            for other in self.members:
                holds = any(self.log.entries[each].key == key for each in other.pending)
                assert other is member or not holds, f"{other.name} has messages of key {key}"
        member.pending.add(position)

    def next_to_send(self) -> Position | None:
        for position in self.open:
            if position > self.after:
                return position
        return None

    @property
    def unacked(self) -> int:
        return sum(member.unacked for member in self.members)

    def undelivered(self) -> Iterator[Position]:
        pending = set[Position]().union(*(member.pending for member in self.members))
        return (each for each in self.open if each not in pending)

    def come_to_rest(self, *, is_blocked: bool) -> None:
        """Nothing more comes: who has credit must have everything that could be sent.

        `is_blocked`: the broker says that the subscription has too many unacknowledged messages.
        """
        # Frames of several clients are not looked at in the order in which they were sent, and the
        # last batch may go over the limit: only the sum counts.
        self.is_blocked |= not self.is_single and self.unacked >= UNACKED_PER_SUBSCRIPTION_MAX
        if self.left_together:
            # What the first one had may have reached the limit again, before the others had left.
            self.is_blocked |= is_blocked and self.unacked * 2 > UNACKED_PER_SUBSCRIPTION_MAX
            self.left_together = False
        if self.is_single:
            if self.members:
                assert self.active is not None, "nobody is active"
                waiting = self.next_to_send()
                assert self.active.permits <= 0 or waiting is None, f"{waiting} is not sent"
            return
        ready = [each for each in self.members if each.is_ready]
        if self.type == SHARED and ready:
            waiting = next(self.undelivered(), None)
            assert waiting is None, f"{waiting} is not sent, {ready[0].name} is ready"
        elif self.type == KEY_SHARED and ready and len(ready) == len(self.members):
            held = {self.log.entries[at].key for each in self.members for at in each.pending}
            for waiting in self.undelivered():
                is_draining = self.log.entries[waiting].key in held
                may_drain = len(self.members) > 1 and not self.is_unordered
                assert is_draining, f"{waiting} is not sent, and nobody has its key"
                assert may_drain, f"{waiting} is not sent"

    # Acknowledgements

    def ack(self, positions: Iterable[Position]) -> None:
        """Whole entries; what does not exist, or is acknowledged, changes nothing."""
        for position in positions:
            if position in self.log.entries:
                self.counts.pop(position, None)
            self._close(position)

    def ack_through(self, position: Position, bits: int | None = None) -> None:
        """Everything before the entry, and it: all of it, or what is not open in `bits`."""
        for each in [each for each in self.open if each <= position]:
            if each < position or bits is None:
                self._close(each)
        if bits is not None:
            self.ack_messages(position, bits)

    def expire_through(self, position: Position) -> None:
        self.ack_through(position)
        for each in [each for each in self.counts if each <= position]:
            del self.counts[each]

    def ack_messages(self, position: Position, bits: int) -> None:
        """Messages of a batch; `bits`: what stays open."""
        if position not in self.open:
            return
        remaining = self.open[position] & bits
        if not remaining:
            self.ack([position])
        elif remaining != self.open[position]:
            self.open[position] = remaining
            for member in self.members:
                if position in member.pending:
                    self._unblock(member)

    def _close(self, position: Position) -> None:
        for member in self.members:
            if position in member.pending:
                self._release(member, [position])
        self.open.pop(position, None)

    def redeliver(self, member: Member, positions: Sequence[Position] | None) -> None:
        if self.is_single:
            if member is self.active:
                self.rewind()
            return
        back = [
            each
            for each in dict.fromkeys(sorted(member.pending) if positions is None else positions)
            if each in member.pending
        ]
        for position in back:
            self.counts[position] = self.counts.get(position, 0) + 1
        self._release(member, back)

    def _release(self, member: Member, positions: Sequence[Position]) -> None:
        member.pending.difference_update(positions)
        self._unblock(member)

    def _unblock(self, member: Member) -> None:
        if member.unacked * 2 <= UNACKED_PER_CONSUMER_MAX:
            member.is_blocked = False
        if self.unacked * 2 <= UNACKED_PER_SUBSCRIPTION_MAX:
            self.is_blocked = False

    # Places

    def seek(self, asking: Member, position: Position, bits: int | None) -> list[Member]:
        """Returns whom that closes. `bits`: what is open of the entry."""
        closing = [
            each
            for each in self.members
            if not self.is_single or each is asking or each is self.active
        ]
        for each in closing:
            self.leave(each)
        self.open = self.log.from_position(position)
        if bits is not None and position in self.open:
            self.ack_messages(position, bits)
        self.forget_sent()
        self.save()
        return closing

    def save(self) -> None:
        self.saved = dict(self.open)

    def restore(self) -> None:
        """What is open after a crash."""
        self.open = dict(self.saved)


def words_of(bits: int) -> list[int]:
    """ack_set words."""
    words = []
    while bits:
        word = bits & ((1 << 64) - 1)
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words


def bits_of(words: Sequence[int]) -> int:
    return sum((word & ((1 << 64) - 1)) << (64 * at) for at, word in enumerate(words))
