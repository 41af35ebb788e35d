"""Whether adds are taken now. The door between the disks and the requests.

Ordinary adds are refused as READ_ONLY for any of several reasons (a full disk, an operator, no
registration, the end), as long as one of them holds. Recovery adds are refused only where there is
no room for them: a ledger that cannot be recovered is worse than a disk that gets fuller. Reads,
fences and explicit LACs are never refused here.

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
    """Owned by the event loop; asked once per add request."""

    def __init__(self) -> None:
        self._reasons: dict[ReadOnlyReason, None] = {}
        self._full_shards: frozenset[int] = frozenset()
        self._has_room_for_recovery = True
        self._shard_of: Callable[[int], int] = _first
        self.is_wide_open = True
        """Nothing is refused: no need to ask further."""
        self.on_change: Callable[[], None] = _nothing
        """Called when a reason came or went. Set by the owner."""

    @property
    def is_writable(self) -> bool:
        """Whether the bookie takes ordinary adds (some ledgers' directories may yet be full)."""
        return not self._reasons

    @property
    def is_read_only_mode(self) -> bool:
        """Whether the bookie is to be registered as read-only: for a reason that may last, or
        because it is about to stop."""
        return not _REGISTERED_READ_ONLY.isdisjoint(self._reasons)

    @property
    def reasons(self) -> list[ReadOnlyReason]:
        """Why it does not; empty if it does."""
        return list(self._reasons)

    def use_shards(self, shard_of: Callable[[int], int]) -> None:
        """`shard_of` gives the position of a ledger's directory."""
        self._shard_of = shard_of

    def close(self, reason: ReadOnlyReason) -> None:
        """Refuse ordinary adds until `open` is called for the same reason."""
        if reason not in self._reasons:
            self._reasons[reason] = None
            self._update()
            self.on_change()

    def open(self, reason: ReadOnlyReason) -> None:
        """Take a reason back: it holds no longer."""
        if reason in self._reasons:
            del self._reasons[reason]
            self._update()
            self.on_change()

    def set_room(self, *, full_shards: frozenset[int], has_room_for_recovery: bool) -> None:
        """What the last look at the disks found."""
        self._full_shards = full_shards
        self._has_room_for_recovery = has_room_for_recovery
        self._update()

    def refusal(self, ledger_id: int, *, is_recovery: bool) -> str | None:
        """Why an add of the ledger is refused; None if it may be stored."""
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
