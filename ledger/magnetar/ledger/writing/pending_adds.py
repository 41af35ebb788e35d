"""The writer's queue of unconfirmed adds: who acknowledged what, and what may be released. Pure.

Rules that live here (ledger protocol, sections 4 and 5):
- an add is done at Qa acknowledgements from members of its write set (4.2);
- adds are released strictly in id order, because recovery stops at the first missing entry and
  would lose anything acknowledged beyond it (4.1);
- while the ensemble changes nothing is released, since the first entry of the new fragment was
  chosen from what is released (D9), and a done add may lose an acknowledgement (D8);
- an acknowledgement counts only for the member that was asked, and only as long as it is a member
  (4.2 step 5, D10): `revoke` takes back those of a replaced one;
- an add is lost when more than Qw - Qa members of its write set failed it.

One `PendingAdd` is a run of consecutive entries with one write set. With E = Qw that is a whole
frame; with striping it is a single entry. What this does not do: send, retry, or choose bookies.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from magnetar.ledger.errors import LedgerError
from magnetar.ledger.quorum import is_in_write_set
from magnetar.ledger.wire import EntryBlock

OnDone = Callable[[LedgerError | None], None]


class PendingAdd:
    """A run of consecutive entries on their way to one write set."""

    __slots__ = (
        "acked",
        "callbacks",
        "content",
        "failed",
        "first_entry_id",
        "is_released",
        "is_sent",
        "last_entry_id",
        "length_after",
        "size_bytes",
    )

    def __init__(
        self,
        first_entry_id: int,
        last_entry_id: int,
        *,
        content: EntryBlock | bytes,
        size_bytes: int,
        length_after: int,
        callbacks: list[OnDone],
    ) -> None:
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id
        self.content = content
        """The run as one block, or a single packet. Kept until every member of the write set has
        answered: a replacement needs it, and so does a member that failed (rule 4.5)."""
        self.size_bytes = size_bytes
        self.length_after = length_after
        """The ledger's length up to and including `last_entry_id`, for the closing metadata."""
        self.callbacks = callbacks
        self.acked = 0
        """Bit set of the ensemble indices that stored the run."""
        self.failed = 0
        """Bit set of the ensemble indices that did not."""
        self.is_sent = False
        """Not so long as it waits for an ensemble change."""
        self.is_released = False

    def packets(self) -> list[bytes]:
        return [self.content] if isinstance(self.content, bytes) else self.content.packets()


class PendingAdds:
    """The queue, in entry order."""

    def __init__(
        self, *, ensemble_size: int, write_quorum: int, ack_quorum: int, first_entry_id: int = 0
    ) -> None:
        self._ensemble_size = ensemble_size
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self._failures_max = write_quorum - ack_quorum
        self._queue: deque[PendingAdd] = deque()
        self.pending_bytes = 0
        self.first_unreleased = first_entry_id
        """The entry after the last one that was released: where a new fragment begins."""
        self.is_frozen = False
        """The ensemble is being changed: nothing may be released."""

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PendingAdd]:
        return iter(self._queue)

    def push(self, add: PendingAdd) -> None:
        """Take an add whose entries follow the last one's."""
        if self._queue:
            assert add.first_entry_id == self._queue[-1].last_entry_id + 1
        else:
            assert add.first_entry_id == self.first_unreleased
        self._queue.append(add)
        self.pending_bytes += add.size_bytes

    def on_ack(self, adds: Iterable[PendingAdd], index: int) -> bool:
        """Note that a member has the adds; whether there may be something to release by that."""
        bit, ack_quorum, may_release = 1 << index, self._ack_quorum, False
        for add in adds:
            add.acked = acked = add.acked | bit
            add.failed &= ~bit
            if not add.is_released and acked.bit_count() >= ack_quorum:
                may_release = True
        return may_release

    def on_failure(self, add: PendingAdd, index: int) -> bool:
        """Note that a member failed the add; True when it can no longer reach its ack quorum."""
        if add.acked >> index & 1:
            return False
        add.failed |= 1 << index
        return self._is_lost(add)

    def is_done(self, add: PendingAdd) -> bool:
        """Whether it has its ack quorum, released or not."""
        return add.acked.bit_count() >= self._ack_quorum

    def _is_lost(self, add: PendingAdd) -> bool:
        return add.failed.bit_count() > self._failures_max

    def first_lost(self) -> PendingAdd | None:
        """The first add that cannot reach its ack quorum with the ensemble as it is."""
        return next(filter(self._is_lost, self._queue), None)

    def revoke(self, indices: Iterable[int]) -> None:
        """Forget, in the whole queue, what replaced members answered; nothing is released."""
        mask = ~sum([1 << index for index in indices])
        for add in self._queue:
            add.acked &= mask
            add.failed &= mask

    def belongs_to(self, add: PendingAdd, index: int) -> bool:
        """Whether the member at `index` is in the add's write set."""
        return is_in_write_set(
            index,
            add.first_entry_id,
            ensemble_size=self._ensemble_size,
            write_quorum=self._write_quorum,
        )

    def release(self) -> list[PendingAdd]:
        """Take the done adds from the head of the queue, in order."""
        queue = self._queue
        released: list[PendingAdd] = []
        if self.is_frozen:
            return released
        while queue and queue[0].acked.bit_count() >= self._ack_quorum:
            add = queue.popleft()
            add.is_released = True
            self.pending_bytes -= add.size_bytes
            released.append(add)
        if released:
            self.first_unreleased = released[-1].last_entry_id + 1
        return released

    def drain(self) -> list[PendingAdd]:
        """Take everything, to be failed by the caller."""
        adds = list(self._queue)
        self._queue.clear()
        self.pending_bytes = 0
        return adds
