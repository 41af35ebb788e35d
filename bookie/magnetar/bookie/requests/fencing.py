"""Fences, master keys and LACs: what the bookie knows of a ledger while it is in use.

A fence is one-way. It is set in memory at once, so that no ordinary add passes any more, and it is
*visible in replies* only when it is durable, because a fence that was confirmed and then lost in a
crash lets an acknowledged entry slip behind the end of a recovered ledger (defects D13, D18, D20).
States of a ledger's fence:

    OPEN       not fenced
    PENDING    fenced in memory, the record is on its way to the journal; whoever asks waits for it
    UNWRITTEN  fenced in memory, the record could not be written (disk full); the next request
               writes again
    DURABLE    fenced for ever

The same holds for the master key: it is journalled ahead of the first record of the ledger by this
process, and once more if that failed. Without it replay would drop the entries as those of a
deleted ledger.

The table is a cache over the states of the storage. A descriptor may go when it is settled: the
storage holds exactly what it says, its key is in the journal, its fence is on no way. Until then it
stays, however many there are; who comes later finds the same facts in the storage.

All of it is in memory. The event loop owns every descriptor; since nothing awaits between a check,
the storage and the hand-over to the journal, the loop is the lock of the critical section (rule
2.3). Only `put_changed_states` takes several turns of it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from hmac import compare_digest

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.requests.past_ledgers import LossHorizon, Tombstones
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.digest import master_key
from magnetar.ledger.wire_bodies import LAC_PACKET_HEADER

_NO_PASSWORD = master_key(b"")

_LOOKS_MAX = 4
"""Of the oldest descriptors looked at when one more comes: more than one, so that a table which
grew over its bound gets back to it."""

_STEP_STATES = 500
"""States that are put into the storage at once, about a millisecond."""


class FenceState(Enum):
    """See the module."""

    OPEN = auto()
    PENDING = auto()
    UNWRITTEN = auto()
    DURABLE = auto()


class FenceEvent(Enum):
    """What happens to a fence."""

    REQUESTED = auto()
    WRITTEN = auto()
    FAILED = auto()


TRANSITIONS: Mapping[tuple[FenceState, FenceEvent], FenceState] = {
    (FenceState.OPEN, FenceEvent.REQUESTED): FenceState.PENDING,
    (FenceState.PENDING, FenceEvent.REQUESTED): FenceState.PENDING,  # shares the write
    (FenceState.PENDING, FenceEvent.WRITTEN): FenceState.DURABLE,
    (FenceState.PENDING, FenceEvent.FAILED): FenceState.UNWRITTEN,
    (FenceState.UNWRITTEN, FenceEvent.REQUESTED): FenceState.PENDING,
    (FenceState.DURABLE, FenceEvent.REQUESTED): FenceState.DURABLE,
}
"""A missing pair is a bug: a write has one outcome, and only a pending fence has a write."""

FenceWaiter = Callable[[JournalFullError | None], None]
"""Called when the fence is durable (None), or could not be written."""


class LedgerDescriptor:
    """One ledger in use: its fence, its key, its LAC."""

    __slots__ = (
        "_waiters",
        "explicit_lac",
        "fence",
        "is_changed",
        "is_in_limbo",
        "is_key_durable",
        "is_key_journalled",
        "last_add_confirmed",
        "ledger_id",
        "master_key",
    )

    def __init__(self, ledger_id: int, state: LedgerState, *, is_key_journalled: bool) -> None:
        self.ledger_id = ledger_id
        self.master_key = state.master_key
        self.last_add_confirmed = state.last_add_confirmed
        self.explicit_lac = state.explicit_lac
        self.is_in_limbo = state.limbo
        self.fence = FenceState.DURABLE if state.fenced else FenceState.OPEN
        self.is_key_journalled = is_key_journalled
        """Handed over to the journal. It may fail there."""
        self.is_key_durable = is_key_journalled
        """The journal said that it has it, or nobody needs to ask."""
        self.is_changed = False
        """A LAC moved since the state was last put into the storage."""
        self._waiters: list[FenceWaiter] | None = None  # a list for each would be a third more

    @property
    def state(self) -> LedgerState:
        """As it is in memory. The storage may hold it: the journal makes it durable in time."""
        is_fenced = self.fence is not FenceState.OPEN
        return LedgerState(
            self.master_key,
            is_fenced,
            self.last_add_confirmed,
            self.explicit_lac,
            self.is_in_limbo,
        )

    @property
    def is_settled(self) -> bool:
        """Whether another descriptor, made of the storage's state, would say and do the same."""
        return (
            self.is_key_durable
            and not self.is_changed
            # PENDING has waiters; UNWRITTEN is DURABLE for one who sees the storage alone.
            and self.fence in (FenceState.OPEN, FenceState.DURABLE)
        )

    @property
    def explicit_last_add_confirmed(self) -> int:
        """What the explicit LAC packet says; -1 if there is none."""
        packet = self.explicit_lac
        return LAC_PACKET_HEADER.unpack_from(packet)[1] if packet else -1

    def request_fence(self) -> bool:
        """Fence the ledger in memory; True if the caller must now write the record."""
        before = self.fence
        self.fence = TRANSITIONS[before, FenceEvent.REQUESTED]
        return self.fence is not before

    def replace_key(self, master_key: bytes) -> None:
        """Take another key, which the journal is to have too."""
        self.master_key = master_key
        self.is_key_journalled = self.is_key_durable = False

    def on_key_written(self, error: JournalFullError | None) -> None:
        """The journal has the key, or could not write it: then the next record brings it along."""
        self.is_key_journalled = self.is_key_durable = error is None

    def wait_for_fence(self, waiter: FenceWaiter) -> None:
        """Call `waiter` once, when the pending write has ended."""
        assert self.fence is FenceState.PENDING
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)

    def on_fence_written(self, error: JournalFullError | None) -> None:
        """The write has ended; everyone who waits hears of it."""
        event = FenceEvent.WRITTEN if error is None else FenceEvent.FAILED
        self.fence = TRANSITIONS[self.fence, event]
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter(error)


class LedgerTable:
    """The descriptors by ledger id, backed by the states of the storage.

    A descriptor may be used until the next await; later only one that is not settled is certainly
    still that of its ledger.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        tombstones: Tombstones | None = None,
        horizon: LossHorizon | None = None,
        *,
        descriptors_max: int = 100_000,
    ) -> None:
        """Beyond `descriptors_max` the oldest that are settled go."""
        assert descriptors_max > 0
        self._storage = storage
        self._descriptors_max = descriptors_max
        self.tombstones = Tombstones() if tombstones is None else tombstones
        self._horizon = LossHorizon() if horizon is None else horizon
        self.on_deleted: list[Callable[[int], None]] = []
        """Called with each ledger that was deleted here, when nothing knows it any more."""
        self._ledgers: OrderedDict[int, LedgerDescriptor] = OrderedDict()
        """In order of arrival. A use does not move one: it would cost every add."""
        self._changed: deque[LedgerDescriptor] = deque()
        self._changes_noted = self._changes_put = 0
        """Ever put into that queue, and taken out of it."""

    def __len__(self) -> int:
        """Descriptors in memory."""
        return len(self._ledgers)

    def find(self, ledger_id: int) -> LedgerDescriptor | None:
        """The ledger's descriptor; None if this bookie does not know the ledger.

        States of the storage are taken for durable: those that this process put there have a
        descriptor still, or had one that was settled; those before it were flushed or replayed.
        """
        descriptor = self._ledgers.get(ledger_id)
        if descriptor is None:
            state = self._storage.state(ledger_id)
            if state is not None:
                descriptor = LedgerDescriptor(ledger_id, state, is_key_journalled=True)
                self._keep(descriptor)
        return descriptor

    def admit(self, ledger_id: int, master_key: bytes) -> LedgerDescriptor | None:
        """The descriptor for a request with this key; None if it is not the ledger's key.

        First contact makes the ledger known to the storage, with this key. The key is yet to be
        journalled then. An empty key (of an integrity pass) is replaced by the first real one.
        """
        descriptor = self.find(ledger_id)
        if descriptor is None:
            state = LedgerState(master_key, fenced=False, last_add_confirmed=-1)
            descriptor = LedgerDescriptor(ledger_id, state, is_key_journalled=False)
            self._keep(descriptor)
            self._storage.put_state(ledger_id, state)
        elif descriptor.master_key != master_key:
            if descriptor.master_key:
                return None
            descriptor.replace_key(master_key)
            self._storage.put_state(ledger_id, descriptor.state)
        return descriptor

    def may_read(self, ledger_id: int, master_key: bytes) -> bool:
        """Whether this key, or none, opens the ledger for reading.

        None is the key of the empty password, which ledgers of older releases have: their readers
        show none. Where the key is not known (the index was made anew, and no add or fence came
        since) every reader is served, since nobody could tell a good one.
        """
        descriptor = self.find(ledger_id)
        if descriptor is None or not descriptor.master_key:
            return True
        return compare_digest(master_key or _NO_PASSWORD, descriptor.master_key)

    def is_durably_fenced(self, ledger_id: int) -> bool:
        """Whether replies may say that the ledger is fenced."""
        descriptor = self.find(ledger_id)
        return descriptor is not None and descriptor.fence is FenceState.DURABLE

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Whether entries of the ledger may have been lost here.

        One that the horizon hides is not in limbo any more when it is known again, by a fence or an
        add of recovery: it was not open, and no entry of it belonged here, when the loss was noted.
        So no recovery that asks here can still close it, and what re-replication brings has to be
        listed, and completed where it was cut; what is unknown for ever would never be.
        """
        descriptor = self.find(ledger_id)
        if descriptor is None:
            return self._horizon.hides(ledger_id)
        return descriptor.is_in_limbo

    def leave_limbo(self, ledger_id: int, master_key: bytes) -> None:
        """All that the ledger lost is stored again; its key counts if the lost state was all that
        knew it. Durable after the next flush, which makes the entries durable too; a crash before
        it finds the ledger in limbo."""
        descriptor = self.find(ledger_id)
        if descriptor is not None and descriptor.is_in_limbo:
            descriptor.is_in_limbo = False
            descriptor.master_key = descriptor.master_key or master_key
            self._storage.put_state(ledger_id, descriptor.state)

    def last_add_confirmed(self, ledger_id: int) -> int:
        """The highest LAC seen of the ledger; -1 if none."""
        descriptor = self.find(ledger_id)
        return -1 if descriptor is None else descriptor.last_add_confirmed

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether the ledger was deleted here a while ago, or its fence may be among what was lost:
        it takes no adds but those of recovery, whether or not it is known again since (defects B13
        and D16)."""
        return ledger_id in self.tombstones or self._horizon.hides(ledger_id)

    def delete(self, ledger_id: int, now_s: float) -> bool:
        """Forget the ledger and its entries, also in the storage; durable after the next flush.

        False, and nothing happens, while its fence is being written: who asked for it waits.
        """
        descriptor = self._ledgers.get(ledger_id)
        if descriptor is not None:
            if descriptor.fence is FenceState.PENDING:
                return False
            del self._ledgers[ledger_id]
        self._storage.delete_ledger(ledger_id)
        self.tombstones.put(ledger_id, now_s)
        for callback in self.on_deleted:
            callback(ledger_id)
        return True

    def raise_last_add_confirmed(self, descriptor: LedgerDescriptor, value: int) -> bool:
        """Rule 2.4: by max; whether it moved. The storage hears of it with the next checkpoint."""
        if value <= descriptor.last_add_confirmed:
            return False
        descriptor.last_add_confirmed = value
        self._note_change(descriptor)
        return True

    def keep_explicit_lac(self, descriptor: LedgerDescriptor, packet: bytes) -> None:
        """Keep a LAC packet if its LAC is above the one that is kept."""
        if LAC_PACKET_HEADER.unpack_from(packet)[1] > descriptor.explicit_last_add_confirmed:
            descriptor.explicit_lac = packet
            self._note_change(descriptor)

    async def put_changed_states(self) -> None:
        """Before a flush: give the storage the LACs that moved, explicit ones too.

        On return everything that had changed before the call is in the storage, whoever put it
        there: two calls may run at a time, and the mark of the later covers the changes of both
        (rule 8.4). What changes meanwhile may wait for the next flush.
        """
        until = self._changes_noted
        while self._changes_put < until:
            self._put_some(min(_STEP_STATES, until - self._changes_put))
            if self._changes_put < until:
                await asyncio.sleep(0)

    def _put_some(self, count: int) -> None:
        for _ in range(count):
            descriptor = self._changed.popleft()
            self._changes_put += 1
            descriptor.is_changed = False
            if self._ledgers.get(descriptor.ledger_id) is not descriptor:
                continue  # deleted since: putting its state would bring it back
            self._storage.put_state(descriptor.ledger_id, descriptor.state)
        self._evict(room=0, looks_max=2 * count)

    def _note_change(self, descriptor: LedgerDescriptor) -> None:
        if not descriptor.is_changed:
            descriptor.is_changed = True
            self._changes_noted += 1
            self._changed.append(descriptor)

    def _keep(self, descriptor: LedgerDescriptor) -> None:
        self._evict(room=1, looks_max=_LOOKS_MAX)
        self._ledgers[descriptor.ledger_id] = descriptor

    def _evict(self, *, room: int, looks_max: int) -> None:
        """Make room for so many more, as far as a few looks at the oldest go."""
        ledgers, most = self._ledgers, self._descriptors_max - room
        for _ in range(min(looks_max, len(ledgers))):
            if len(ledgers) <= most:
                return
            ledger_id, descriptor = ledgers.popitem(last=False)
            if not descriptor.is_settled:
                ledgers[ledger_id] = descriptor  # the newest now; its turn comes again
