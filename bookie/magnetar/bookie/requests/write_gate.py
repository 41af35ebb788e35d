"""The write gate: whether adds are accepted at the moment. Set by the disks, asked by the requests.

Ordinary adds are refused as READ_ONLY while any of several reasons holds (a full disk, an operator,
a lost registration, a stop). Recovery adds are refused only where there is no room for them: an
unrecoverable ledger is worse than a fuller disk. Reads, fences and explicit LACs are never refused
here.

Source: storage sheet, section 11.
"""

from collections.abc import Callable
from enum import Enum


class ReadOnlyReason(Enum):
    """Why ordinary adds are refused; the text goes to clients and operators."""

    FORCED = "the bookie is set to be read-only"
    DISK_FULL = "a disk of the bookie is full"
    UNREGISTERED = "the bookie has lost its registration"
    DRAINING = "the bookie is about to stop"
    STOPPING = "the bookie is stopping"


_REGISTERED_READ_ONLY = frozenset(
    (ReadOnlyReason.FORCED, ReadOnlyReason.DISK_FULL, ReadOnlyReason.DRAINING)
)


class WriteGate:
    """The gate of one bookie. Owned by the event loop; asked once per add request."""

    def __init__(self) -> None:
        self._reasons: dict[ReadOnlyReason, None] = {}
        self._full_shards: frozenset[int] = frozenset()
        self._has_room_for_recovery = True
        self._shard_of: Callable[[int], int] = _first
        self.is_wide_open = True
        """Whether no add of any kind is refused, so that no further check is needed."""
        self.on_change: Callable[[], None] = _nothing
        """Called when a reason was added or removed. Set by the owner."""

    @property
    def is_writable(self) -> bool:
        """Whether the bookie takes ordinary adds (the directories of some ledgers may be full,
        though)."""
        return not self._reasons

    @property
    def is_read_only_mode(self) -> bool:
        """Whether the bookie is to be registered as read-only: for a lasting reason, or before a
        stop."""
        return not _REGISTERED_READ_ONLY.isdisjoint(self._reasons)

    @property
    def reasons(self) -> list[ReadOnlyReason]:
        """Reasons why ordinary adds are refused; empty if they are taken."""
        return list(self._reasons)

    def use_shards(self, shard_of: Callable[[int], int]) -> None:
        """Set `shard_of`, which returns the position of a ledger's directory."""
        self._shard_of = shard_of

    def close(self, reason: ReadOnlyReason) -> None:
        """Refuse ordinary adds until `open` is called with the same reason."""
        if reason not in self._reasons:
            self._reasons[reason] = None
            self._update()
            self.on_change()

    def open(self, reason: ReadOnlyReason) -> None:
        """Remove a reason that no longer holds."""
        if reason in self._reasons:
            del self._reasons[reason]
            self._update()
            self.on_change()

    def set_room(self, *, full_shards: frozenset[int], has_room_for_recovery: bool) -> None:
        """Take over the result of the last disk check."""
        self._full_shards = full_shards
        self._has_room_for_recovery = has_room_for_recovery
        self._update()

    def refusal(self, ledger_id: int, *, is_recovery: bool) -> str | None:
        """Return why an add to the ledger is refused; None if it may be stored."""
        is_full = bool(self._full_shards) or ReadOnlyReason.DISK_FULL in self._reasons
        if is_recovery:
            if is_full and not self._has_room_for_recovery:
                return "a disk of the bookie is full, and no room is left for recovery adds either"
            return None
        for reason in self._reasons:
            return reason.value
        if self._full_shards and self._shard_of(ledger_id) in self._full_shards:
            return "the disk of this ledger is full"
        return None

    def _update(self) -> None:
        self.is_wide_open = not self._reasons and not self._full_shards


def _first(ledger_id: int) -> int:
    return 0


def _nothing() -> None:
    return None
