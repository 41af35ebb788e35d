"""Fences, master keys and LACs: the state of ledgers in use.

A fence is one-way. It takes effect in memory at once, so that no ordinary add passes any more. It
is *visible in replies* only when it is durable: if a confirmed fence were lost in a crash, an
acknowledged entry could slip behind the end of a recovered ledger (defects D13, D18, D20). States
of a ledger's fence:

    OPEN       not fenced
    PENDING    fenced in memory, the record is not durable yet; fence requests wait for it
    UNWRITTEN  fenced in memory, the record could not be written (disk full); the next request
               writes again
    DURABLE    fenced for ever

The master key follows a similar rule: this process journals it ahead of its first record of the
ledger, and again if that failed. Without the key, replay would drop the entries as those of a
deleted ledger.

The table is a cache over the states in the storage. A descriptor can be evicted when it is settled:
the storage holds the same state, the key is in the journal, and no fence is being written. Until
then it stays, even beyond the limit. A later request finds the evicted state in the storage.

Everything is in memory, and the event loop owns every descriptor. Nothing awaits between a check,
the storage and the hand-over to the journal, so the loop is the lock of the critical section (rule
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
"""Descriptors examined for eviction when one is added; more than one, so that a table over its
limit shrinks back to it."""

_STEP_STATES = 500
"""States put into the storage in one go, which takes about a millisecond."""


class FenceState(Enum):
    """State of a ledger's fence; the module docstring explains each."""

    OPEN = auto()
    PENDING = auto()
    UNWRITTEN = auto()
    DURABLE = auto()


class FenceEvent(Enum):
    """Event of a fence: requested, written durably, or failed to be written."""

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
"""Called when the fence is durable (None), or could not be written (the error)."""


class LedgerDescriptor:
    """Fence, key and LAC of one ledger in use."""

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
        """Whether the key was handed over to the journal, where the write may still fail."""
        self.is_key_durable = is_key_journalled
        """Whether the journal has reported the key as durable, or the key came from the storage."""
        self.is_changed = False
        """Whether a LAC moved since the state was last put into the storage."""
        self._waiters: list[FenceWaiter] | None = None  # an empty list takes a third more memory

    @property
    def state(self) -> LedgerState:
        """The state in memory. The storage may have it, since the journal makes it durable in
        time."""
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
        """Whether a new descriptor, made from the storage's state, would behave the same."""
        return (
            self.is_key_durable
            and not self.is_changed
            # PENDING has waiters; UNWRITTEN would look DURABLE in the storage's state.
            and self.fence in (FenceState.OPEN, FenceState.DURABLE)
        )

    @property
    def explicit_last_add_confirmed(self) -> int:
        """LAC of the explicit LAC packet; -1 if there is none."""
        packet = self.explicit_lac
        return LAC_PACKET_HEADER.unpack_from(packet)[1] if packet else -1

    def request_fence(self) -> bool:
        """Fence the ledger in memory; return True if the caller must now write the record."""
        before = self.fence
        self.fence = TRANSITIONS[before, FenceEvent.REQUESTED]
        return self.fence is not before

    def replace_key(self, master_key: bytes) -> None:
        """Replace the key; the journal must get the new one, too."""
        self.master_key = master_key
        self.is_key_journalled = self.is_key_durable = False

    def on_key_written(self, error: JournalFullError | None) -> None:
        """Note whether the key is in the journal; if it failed, the next record writes the key
        again."""
        self.is_key_journalled = self.is_key_durable = error is None

    def wait_for_fence(self, waiter: FenceWaiter) -> None:
        """Call `waiter` once, when the pending write has ended."""
        assert self.fence is FenceState.PENDING
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)

    def on_fence_written(self, error: JournalFullError | None) -> None:
        """Note the outcome of the write, and call every waiter."""
        event = FenceEvent.WRITTEN if error is None else FenceEvent.FAILED
        self.fence = TRANSITIONS[self.fence, event]
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter(error)


class LedgerTable:
    """The descriptors by ledger id, backed by the states of the storage.

    A descriptor may be used until the next await. After that, only an unsettled descriptor is
    certain to be still the one of its ledger.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        tombstones: Tombstones | None = None,
        horizon: LossHorizon | None = None,
        *,
        descriptors_max: int = 100_000,
    ) -> None:
        """Beyond `descriptors_max`, the oldest settled descriptors are evicted."""
        assert descriptors_max > 0
        self._storage = storage
        self._descriptors_max = descriptors_max
        self.tombstones = Tombstones() if tombstones is None else tombstones
        self._horizon = LossHorizon() if horizon is None else horizon
        self.on_deleted: list[Callable[[int], None]] = []
        """Called with each ledger deleted here, after table and storage have forgotten it."""
        self._ledgers: OrderedDict[int, LedgerDescriptor] = OrderedDict()
        """In order of arrival. A use does not move a descriptor, which would cost every add."""
        self._changed: deque[LedgerDescriptor] = deque()
        self._changes_noted = self._changes_put = 0
        """Descriptors ever appended to `_changed`, and ever taken from it."""

    def __len__(self) -> int:
        """Return the number of descriptors in memory."""
        return len(self._ledgers)

    def find(self, ledger_id: int) -> LedgerDescriptor | None:
        """Return the ledger's descriptor; None if this bookie does not know the ledger.

        States of the storage count as durable. Those that this process put there still have a
        descriptor, or had a settled one; older states were flushed or replayed.
        """
        descriptor = self._ledgers.get(ledger_id)
        if descriptor is None:
            state = self._storage.state(ledger_id)
            if state is not None:
                descriptor = LedgerDescriptor(ledger_id, state, is_key_journalled=True)
                self._keep(descriptor)
        return descriptor

    def admit(self, ledger_id: int, master_key: bytes) -> LedgerDescriptor | None:
        """Return the descriptor for a request with this key; None if the key is wrong.

        The first contact makes the ledger known to the storage, with this key, which is not
        journalled yet. An empty key (of an integrity pass) is replaced by the first real one.
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
        """Return whether this key, or none, opens the ledger for reading.

        No key counts as the key of the empty password, which ledgers of older releases have: their
        readers send none. If the key is not known (the index was rebuilt, and no add or fence has
        arrived since), every reader is served, since no key can be checked.
        """
        descriptor = self.find(ledger_id)
        if descriptor is None or not descriptor.master_key:
            return True
        return compare_digest(master_key or _NO_PASSWORD, descriptor.master_key)

    def is_durably_fenced(self, ledger_id: int) -> bool:
        """Return whether replies may say that the ledger is fenced."""
        descriptor = self.find(ledger_id)
        return descriptor is not None and descriptor.fence is FenceState.DURABLE

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Return whether entries of the ledger may have been lost here.

        A ledger that the horizon hides leaves limbo when a fence or a recovery add makes it known
        again. When the loss was noted it was not open, and no entry of it belonged here. So no
        recovery that asks here can still close it. Entries that re-replication brings must be
        listed, and completed if the copy was interrupted; in a lasting limbo they never would be.
        """
        descriptor = self.find(ledger_id)
        if descriptor is None:
            return self._horizon.hides(ledger_id)
        return descriptor.is_in_limbo

    def leave_limbo(self, ledger_id: int, master_key: bytes) -> None:
        """End the limbo of a ledger whose lost entries are all stored again.

        `master_key` is used if the key was lost with the state. Durable after the next flush, which
        also makes the entries durable; after a crash before it, the ledger is in limbo again.
        """
        descriptor = self.find(ledger_id)
        if descriptor is not None and descriptor.is_in_limbo:
            descriptor.is_in_limbo = False
            descriptor.master_key = descriptor.master_key or master_key
            self._storage.put_state(ledger_id, descriptor.state)

    def last_add_confirmed(self, ledger_id: int) -> int:
        """Return the highest LAC seen of the ledger; -1 if none."""
        descriptor = self.find(ledger_id)
        return -1 if descriptor is None else descriptor.last_add_confirmed

    def was_deleted(self, ledger_id: int) -> bool:
        """Return whether the ledger was deleted here lately, or its fence may have been lost.

        Such a ledger takes recovery adds only, even if it is known again since (defects B13 and
        D16).
        """
        return ledger_id in self.tombstones or self._horizon.hides(ledger_id)

    def delete(self, ledger_id: int, now_s: float) -> bool:
        """Forget the ledger and its entries, also in the storage; durable after the next flush.

        Return False and change nothing while its fence is being written, since requests wait for
        it.
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
        """Raise the LAC to `value` if that is higher (rule 2.4); return whether it moved.

        The storage gets it with the next checkpoint.
        """
        if value <= descriptor.last_add_confirmed:
            return False
        descriptor.last_add_confirmed = value
        self._note_change(descriptor)
        return True

    def keep_explicit_lac(self, descriptor: LedgerDescriptor, packet: bytes) -> None:
        """Keep a LAC packet if its LAC is above that of the present one."""
        if LAC_PACKET_HEADER.unpack_from(packet)[1] > descriptor.explicit_last_add_confirmed:
            descriptor.explicit_lac = packet
            self._note_change(descriptor)

    async def put_changed_states(self) -> None:
        """Put LACs that moved, explicit ones too, into the storage before a flush.

        On return, every change from before the call is in the storage, whichever call put it there:
        two calls may run at a time, and the mark of the later one covers the changes of both (rule
        8.4). Changes during the call may wait for the next flush.
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
        """Make room for `room` more descriptors, examining `looks_max` of the oldest at most."""
        ledgers, most = self._ledgers, self._descriptors_max - room
        for _ in range(min(looks_max, len(ledgers))):
            if len(ledgers) <= most:
                return
            ledger_id, descriptor = ledgers.popitem(last=False)
            if not descriptor.is_settled:
                ledgers[ledger_id] = descriptor  # now the newest; examined again later
