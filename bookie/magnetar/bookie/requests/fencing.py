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

No I/O here. The event loop owns every descriptor; since nothing awaits between a check, the storage
and the hand-over to the journal, the loop is the lock of the critical section (rule 2.3).
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from magnetar.bookie.errors import JournalFullError
from magnetar.bookie.requests.loss_horizon import LossHorizon
from magnetar.bookie.requests.tombstones import Tombstones
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.wire_bodies import LAC_PACKET_HEADER


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
        self.is_changed = False
        """A LAC moved since the state was last put into the storage."""
        self._waiters: list[FenceWaiter] = []

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
    def explicit_last_add_confirmed(self) -> int:
        """What the explicit LAC packet says; -1 if there is none."""
        packet = self.explicit_lac
        return LAC_PACKET_HEADER.unpack_from(packet)[1] if packet else -1

    def request_fence(self) -> bool:
        """Fence the ledger in memory; True if the caller must now write the record."""
        before = self.fence
        self.fence = TRANSITIONS[before, FenceEvent.REQUESTED]
        return self.fence is not before

    def wait_for_fence(self, waiter: FenceWaiter) -> None:
        """Call `waiter` once, when the pending write has ended."""
        assert self.fence is FenceState.PENDING
        self._waiters.append(waiter)

    def on_fence_written(self, error: JournalFullError | None) -> None:
        """The write has ended; everyone who waits hears of it."""
        event = FenceEvent.WRITTEN if error is None else FenceEvent.FAILED
        self.fence = TRANSITIONS[self.fence, event]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(error)


class LedgerTable:
    """The descriptors by ledger id, backed by the states of the storage."""

    def __init__(
        self,
        storage: LedgerStorage,
        tombstones: Tombstones | None = None,
        horizon: LossHorizon | None = None,
    ) -> None:
        self._storage = storage
        self.tombstones = Tombstones() if tombstones is None else tombstones
        self._horizon = LossHorizon() if horizon is None else horizon
        self.on_deleted: list[Callable[[int], None]] = []
        """Called with each ledger that was deleted here, when nothing knows it any more."""
        self._ledgers: dict[int, LedgerDescriptor] = {}
        self._changed: list[LedgerDescriptor] = []

    def find(self, ledger_id: int) -> LedgerDescriptor | None:
        """The ledger's descriptor; None if this bookie does not know the ledger.

        States of the storage are taken for durable: those that this process put there have a
        descriptor already, and those before it were flushed or replayed.
        """
        descriptor = self._ledgers.get(ledger_id)
        if descriptor is None:
            state = self._storage.state(ledger_id)
            if state is not None:
                descriptor = LedgerDescriptor(ledger_id, state, is_key_journalled=True)
                self._ledgers[ledger_id] = descriptor
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
            self._ledgers[ledger_id] = descriptor
            self._storage.put_state(ledger_id, state)
        elif descriptor.master_key != master_key:
            if descriptor.master_key:
                return None
            descriptor.master_key = master_key
            descriptor.is_key_journalled = False
            self._storage.put_state(ledger_id, descriptor.state)
        return descriptor

    def is_durably_fenced(self, ledger_id: int) -> bool:
        """Whether replies may say that the ledger is fenced."""
        descriptor = self.find(ledger_id)
        return descriptor is not None and descriptor.fence is FenceState.DURABLE

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Whether entries of the ledger may have been lost here."""
        descriptor = self.find(ledger_id)
        if descriptor is None:
            return self._horizon.hides(ledger_id)
        return descriptor.is_in_limbo

    def leave_limbo(self, ledger_id: int) -> None:
        """All that the ledger lost is stored again. Durable after the next flush, which makes the
        entries durable too; a crash before it finds the ledger in limbo."""
        descriptor = self.find(ledger_id)
        if descriptor is not None and descriptor.is_in_limbo:
            descriptor.is_in_limbo = False
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

    def _note_change(self, descriptor: LedgerDescriptor) -> None:
        if not descriptor.is_changed:
            descriptor.is_changed = True
            self._changed.append(descriptor)

    def put_changed_states(self) -> None:
        """Before a flush: give the storage the LACs that moved, explicit ones too."""
        changed, self._changed = self._changed, []
        for descriptor in changed:
            descriptor.is_changed = False
            if self._ledgers.get(descriptor.ledger_id) is not descriptor:
                continue  # deleted since: putting its state would bring it back
            self._storage.put_state(descriptor.ledger_id, descriptor.state)
