"""Entries that were dropped before they were copied to a cluster. Pure.

An operator drops them, or their time to live is over. The cluster never had them, so what it
acknowledges says nothing of them (decision 33). Its cursor keeps one range, which is saved with the
mark that the drop has moved. A range that becomes longer takes along what was copied in between:
subscriptions then wait for consumers here where they need not, and lose nothing.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.ledger.position import Position

_AFTER_LEDGER: Final = "geo.dropped_after.ledger"
_AFTER_ENTRY: Final = "geo.dropped_after.entry"
_THROUGH_LEDGER: Final = "geo.dropped_through.ledger"
_THROUGH_ENTRY: Final = "geo.dropped_through.entry"


class Dropped(NamedTuple):
    """A range of entries."""

    after: Position
    """The last entry before it."""
    through: Position
    """The last entry of the range."""

    def __contains__(self, position: object) -> bool:
        return isinstance(position, Position) and self.after < position <= self.through


def with_dropped(before: Dropped | None, after: Position, through: Position) -> Dropped:
    """Return the range that takes in another one."""
    if before is None:
        return Dropped(after, through)
    return Dropped(min(before.after, after), max(before.through, through))


def dropped_properties(dropped: Dropped | None) -> dict[str, int]:
    """Return what the cursor keeps of it, among its position properties."""
    if dropped is None:
        return {}
    after, through = dropped
    return {
        _AFTER_LEDGER: after.ledger_id,
        _AFTER_ENTRY: after.entry_id,
        _THROUGH_LEDGER: through.ledger_id,
        _THROUGH_ENTRY: through.entry_id,
    }


def dropped_in(properties: Mapping[str, int]) -> Dropped | None:
    """Return the range that a cursor keeps; None: nothing was dropped."""
    if _THROUGH_LEDGER not in properties:
        return None
    return Dropped(
        Position(properties[_AFTER_LEDGER], properties[_AFTER_ENTRY]),
        Position(properties[_THROUGH_LEDGER], properties[_THROUGH_ENTRY]),
    )
