"""The keys of a Key_Shared subscription that are in use: who has entries of them, and what waits.

A key stands for its hash here. Its entries are in the hands of one consumer at a time: the holder.
When the key is assigned to another one, new entries wait until the holder has acknowledged or given
back all it has: the key drains. An entry that waits makes the later ones of its key wait, too, so
that the order of a key survives every join and leave.

A key is known here while somebody holds entries of it or some wait. Pure.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.accounts import HASH_SHIFT, AccountsError
from magnetar.ledger.position import Position


class Key:
    """One key in use."""

    __slots__ = ("hash", "heap", "holder", "in_hand", "owner", "waiting")

    def __init__(self, key_hash: int, owner: Consumer | None) -> None:
        self.hash = key_hash
        self.owner = owner
        """Consumer that the present assignment gives the key to; None: none."""
        self.holder: Consumer | None = None
        """Consumer that has unacknowledged entries of the key."""
        self.in_hand = 0
        """Entries at the holder."""
        self.waiting = 0
        """Entries that wait."""
        self.heap: list[Position] = []
        """Heap of the waiting entries, and of some that do not wait any more."""

    @property
    def is_draining(self) -> bool:
        """Whether the key is assigned to another consumer than its holder."""
        return self.holder is not None and self.holder is not self.owner


class KeyBook:
    """All keys in use, and all entries that wait."""

    def __init__(
        self, select: Callable[[int], Consumer | None], *, is_unordered: bool = False
    ) -> None:
        """`is_unordered`: nobody holds a key, and nothing waits for it."""
        self._select = select
        self._is_unordered = is_unordered
        self.keys: dict[int, Key] = {}
        self.waiting: dict[Position, Key] = {}
        self.drained = 0
        """How many keys have changed hands after their former holder gave up what it had."""
        self._ready: dict[Consumer, list[Position]] = {}
        """For each consumer a heap: the first waiting entry of each key that it can be sent."""
        self._is_stale = False
        """The owners of keys are those of former consumers; see `owners_changed`."""

    # Sending

    def key(self, key_hash: int) -> Key:
        """The key, known from now on; `forget_if_idle` ends that."""
        self.refresh()
        key = self.keys.get(key_hash)
        if key is None:
            key = self.keys[key_hash] = Key(key_hash, self._select(key_hash))
        return key

    def hand(self, key: Key, consumer: Consumer) -> None:
        """The consumer was sent one more entry of the key."""
        if not self._is_unordered:
            key.holder = consumer
            key.in_hand += 1

    def forget_if_idle(self, key: Key) -> None:
        if not key.in_hand and not key.waiting:
            self.keys.pop(key.hash, None)

    # Coming back

    def released(self, hashes: Iterable[int]) -> bool:
        """Entries of these keys left their holders; True if some that waited for it can go now."""
        if self._is_unordered:
            return False
        self.refresh()
        is_freed = False
        keys = self.keys
        for key_hash in hashes:
            key = keys[key_hash]
            key.in_hand -= 1
            if key.in_hand:
                continue
            holder, was_draining = key.holder, key.holder is not key.owner
            key.holder = None
            if was_draining and holder is not None:
                holder.drained_hashes += 1
                self.drained += 1
            if not key.waiting:
                del keys[key_hash]
            elif was_draining:
                self._offer(key)
                is_freed = True
        return is_freed

    # Waiting

    def wait(self, position: Position, key_hash: int) -> None:
        """An entry waits: for its key, for credit, or to be sent again."""
        if position in self.waiting:
            return
        key = self.key(key_hash)
        self.waiting[position] = key
        key.waiting += 1
        heapq.heappush(key.heap, position)
        if key.heap[0] == position:
            self._offer(key)

    def next_for(self, consumer: Consumer) -> Position | None:
        """The lowest waiting entry that the consumer can be sent."""
        self.refresh()
        ready = self._ready.get(consumer)
        while ready:
            key = self.waiting.get(ready[0])
            if key is not None and key.owner is consumer and self._can_go(key):
                return ready[0]
            heapq.heappop(ready)  # gone meanwhile, or offered to somebody else
        return None

    def upcoming(self, consumer: Consumer, count_max: int) -> list[Position]:
        """About the next waiting entries that the consumer can be sent; at least the next one."""
        found: list[Position] = []
        first = self.next_for(consumer)
        if first is None:
            return found
        seen: set[int] = set()
        for position in heapq.nsmallest(count_max, self._ready[consumer]):
            key = self.waiting.get(position)
            if key is None or key.owner is not consumer or key.hash in seen:
                continue
            seen.add(key.hash)
            of_key = heapq.nsmallest(count_max, key.heap)
            found += [each for each in of_key if self.waiting.get(each) is key]
            if len(found) >= count_max:
                break
        return sorted(set(found))[:count_max] if found else [first]

    def discard(self, position: Position) -> Key | None:
        """The entry does not wait any more; returns its key, which may be idle now."""
        self.refresh()
        key = self.waiting.pop(position, None)
        if key is None:
            return None
        key.waiting -= 1
        heap = key.heap
        was_first = heap[0] == position
        while heap and self.waiting.get(heap[0]) is not key:
            heapq.heappop(heap)
        if was_first and heap:
            self._offer(key)
        return key

    def waiting_through(self, position: Position) -> list[Position]:
        """What waits at or before the position."""
        return [each for each in self.waiting if each <= position]

    # Membership

    def owners_changed(self) -> None:
        """Consumers came or went: every key has its owner determined anew before it is used.

        Not at once: of many who come in one turn each would cost a look at all keys.
        """
        self._is_stale = True

    def refresh(self) -> None:
        """Determine the owners anew, if they changed. Whoever looks at `keys` calls it first."""
        if not self._is_stale:
            return
        self._is_stale = False
        self._ready.clear()
        for key in self.keys.values():
            key.owner = self._select(key.hash)
            if key.waiting:
                self._offer(key)

    def clear(self) -> None:
        self.keys.clear()
        self.waiting.clear()
        self._ready.clear()

    def _can_go(self, key: Key) -> bool:
        return key.owner is not None and (self._is_unordered or not key.is_draining)

    def _offer(self, key: Key) -> None:
        """Note for its owner the first waiting entry of the key, if it can be sent."""
        if key.owner is not None and self._can_go(key):
            heapq.heappush(self._ready.setdefault(key.owner, []), key.heap[0])

    # Questions

    def draining(self) -> Iterator[Key]:
        """Keys that are assigned to somebody else than their holder."""
        self.refresh()
        return (key for key in self.keys.values() if key.is_draining)

    def check(self, consumers: list[Consumer]) -> None:
        """Compare the books with each other and with what is pending.

        Raises:
            AccountsError: they contradict themselves.
        """
        self.refresh()
        counted: dict[int, int] = {}
        for key in self.waiting.values():
            counted[key.hash] = counted.get(key.hash, 0) + 1
        for key in self.keys.values():
            if key.waiting != counted.get(key.hash, 0):
                raise AccountsError(f"key {key.hash}: {key.waiting} wait, by its own count")
            if not key.waiting and not key.in_hand:
                raise AccountsError(f"key {key.hash} is idle and known")
            if key.owner is not self._select(key.hash):
                raise AccountsError(f"key {key.hash} has an owner of former times")
            if key.waiting and self._can_go(key):
                assert key.owner is not None
                if self.next_for(key.owner) is None:
                    raise AccountsError(f"key {key.hash} waits and is offered to nobody")
        for consumer in consumers:
            held: dict[int, int] = {}
            for position, value in consumer.pending.items():
                if position in self.waiting:
                    raise AccountsError(f"{position} is pending and waits")
                held[value >> HASH_SHIFT] = held.get(value >> HASH_SHIFT, 0) + 1
            if self._is_unordered:
                continue
            for key_hash, count in held.items():
                known = self.keys.get(key_hash)
                if known is None or known.holder is not consumer or known.in_hand != count:
                    raise AccountsError(
                        f"key {key_hash}: {count} entries at {consumer.name!r}, who does not hold "
                        "it by the book"
                    )
