"""The writer's queue of unconfirmed adds: who acknowledged what, and what may be released. Pure.

Rules that live here (ledger protocol, section 4):
- an add is done at Qa acknowledgements from members of its write set (4.2);
- adds are released strictly in id order, because recovery stops at the first missing entry and
  would lose anything acknowledged beyond it (4.1);
- an acknowledgement counts only for the member that was asked (4.2 step 5);
- an add is lost when more than Qw - Qa members of its write set failed it.

One `PendingAdd` is a run of consecutive entries with one write set. With E = Qw that is a whole
frame; with striping it is a single entry. What this does not do: send, retry, or change ensembles.
"""

from collections import deque
from collections.abc import Callable

from magnetar.ledger.errors import LedgerError

OnDone = Callable[[LedgerError | None], None]


class PendingAdd:
    """A run of consecutive entries on their way to one write set."""

    __slots__ = (
        "acked",
        "callbacks",
        "failed",
        "first_entry_id",
        "last_entry_id",
        "length_after",
        "size_bytes",
    )

    def __init__(
        self,
        first_entry_id: int,
        last_entry_id: int,
        *,
        size_bytes: int,
        length_after: int,
        callbacks: list[OnDone],
    ) -> None:
        self.first_entry_id = first_entry_id
        self.last_entry_id = last_entry_id
        self.size_bytes = size_bytes
        self.length_after = length_after
        """The ledger's length up to and including `last_entry_id`, for the closing metadata."""
        self.callbacks = callbacks
        self.acked = 0
        """Bit set of the ensemble indices that stored the run."""
        self.failed = 0
        """Bit set of the ensemble indices that did not."""


class PendingAdds:
    """The queue, in entry order."""

    def __init__(self, *, write_quorum: int, ack_quorum: int) -> None:
        self._ack_quorum = ack_quorum
        self._failures_max = write_quorum - ack_quorum
        self._queue: deque[PendingAdd] = deque()
        self.pending_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, add: PendingAdd) -> None:
        """Take an add whose entries follow the last one's."""
        if self._queue:
            assert add.first_entry_id == self._queue[-1].last_entry_id + 1
        self._queue.append(add)
        self.pending_bytes += add.size_bytes

    def on_ack(self, add: PendingAdd, index: int) -> None:
        add.acked |= 1 << index

    def on_failure(self, add: PendingAdd, index: int) -> bool:
        """Note that a member failed the add; True when it can no longer reach its ack quorum."""
        if add.acked >> index & 1:
            return False
        add.failed |= 1 << index
        return add.failed.bit_count() > self._failures_max

    def release(self) -> list[PendingAdd]:
        """Take the done adds from the head of the queue, in order."""
        queue, released = self._queue, []
        while queue and queue[0].acked.bit_count() >= self._ack_quorum:
            add = queue.popleft()
            self.pending_bytes -= add.size_bytes
            released.append(add)
        return released

    def drain(self) -> list[PendingAdd]:
        """Take everything, to be failed by the caller."""
        adds = list(self._queue)
        self._queue.clear()
        self.pending_bytes = 0
        return adds
