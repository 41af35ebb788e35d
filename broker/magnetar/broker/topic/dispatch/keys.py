"""The keys of a Key_Shared subscription that are in use: which consumer holds each, and what waits.

Keys are identified by their hashes. One consumer at a time has entries of a key: its holder. When
the key is assigned to another consumer, new entries wait until the holder has acknowledged or given
back all of its entries: the key drains. A waiting entry makes the later ones of its key wait, too,
so the order of a key survives every join and leave.

A key is in this book while a consumer holds entries of it or some wait. Pure.
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
        """Consumer that the current assignment gives the key to; None if there is none."""
        self.holder: Consumer | None = None
        """Consumer that has unacknowledged entries of the key; None if there is none."""
        self.in_hand = 0
        """Number of entries at the holder."""
        self.waiting = 0
        """Number of waiting entries."""
        self.heap: list[Position] = []
        """Heap of the waiting entries, and of some that wait no more."""

    @property
    def is_draining(self) -> bool:
        """Whether the key is assigned to a consumer other than its holder."""
        return self.holder is not None and self.holder is not self.owner


class KeyBook:
    """All keys in use, and all waiting entries."""

    def __init__(
        self, select: Callable[[int], Consumer | None], *, is_unordered: bool = False
    ) -> None:
        """`is_unordered`: keys have no holders, and entries never wait for a key."""
        self._select = select
        self._is_unordered = is_unordered
        self.keys: dict[int, Key] = {}
        self.waiting: dict[Position, Key] = {}
        self.drained = 0
        """Number of keys that moved to another consumer after their former holder gave up its
        entries."""
        self._ready: dict[Consumer, list[Position]] = {}
        """For each consumer, a heap of the first waiting entry of each key that it can be sent."""
        self._is_stale = False
        """Whether the owners of keys are those of former consumers; see `owners_changed`."""

    # Sending

    def key(self, key_hash: int) -> Key:
        """Return the key, adding it if unknown; `forget_if_idle` removes it."""
        self.refresh()
        key = self.keys.get(key_hash)
        if key is None:
            key = self.keys[key_hash] = Key(key_hash, self._select(key_hash))
        return key

    def hand(self, key: Key, consumer: Consumer) -> None:
        """Note that the consumer was sent one more entry of the key."""
        if not self._is_unordered:
            key.holder = consumer
            key.in_hand += 1

    def forget_if_idle(self, key: Key) -> None:
        if not key.in_hand and not key.waiting:
            self.keys.pop(key.hash, None)

    # Releasing

    def released(self, hashes: Iterable[int]) -> bool:
        """Note that entries of these keys left their holders; return True if waiting ones can be
        sent now."""
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
        """Add a waiting entry: it waits for its key, for permits, or for redelivery."""
        if position in self.waiting:
            return
        key = self.key(key_hash)
        self.waiting[position] = key
        key.waiting += 1
        heapq.heappush(key.heap, position)
        if key.heap[0] == position:
            self._offer(key)

    def next_for(self, consumer: Consumer) -> Position | None:
        """Return the lowest waiting entry that the consumer can be sent."""
        self.refresh()
        ready = self._ready.get(consumer)
        while ready:
            key = self.waiting.get(ready[0])
            if key is not None and key.owner is consumer and self._can_go(key):
                return ready[0]
            heapq.heappop(ready)  # gone meanwhile, or offered to another consumer
        return None

    def upcoming(self, consumer: Consumer, count_max: int) -> list[Position]:
        """Return about the next waiting entries that the consumer can be sent; at least the next
        one."""
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
        """Remove a waiting entry; return its key, which may be idle now."""
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
        """Return the entries that wait at or before the position."""
        return [each for each in self.waiting if each <= position]

    # Membership

    def owners_changed(self) -> None:
        """Mark all owners as outdated, after consumers joined or left.

        `refresh` determines them anew before the next use: with many joins in one turn, doing it
        for each join would cost a pass over all keys each time.
        """
        self._is_stale = True

    def refresh(self) -> None:
        """Determine the owners anew, if outdated. Callers that read `keys` call it first."""
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
        """Note the first waiting entry of the key for its owner, if it can be sent."""
        if key.owner is not None and self._can_go(key):
            heapq.heappush(self._ready.setdefault(key.owner, []), key.heap[0])

    # Queries

    def draining(self) -> Iterator[Key]:
        """Return the keys that are assigned to a consumer other than their holder."""
        self.refresh()
        return (key for key in self.keys.values() if key.is_draining)

    def check(self, consumers: list[Consumer]) -> None:
        """Check the book for contradictions, in itself and with the pending entries.

        Raises:
            AccountsError: it contradicts itself or them.
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
