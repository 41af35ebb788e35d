"""Entries that were dropped before they were copied to a cluster. Pure.

An operator drops them, or their time to live is over. The cluster never had them, so its
acknowledgements do not cover them (decision 33). Its cursor stores one range, saved together with
the mark that the drop has moved. A range that grows includes the entries that were copied in
between. Subscriptions then wait for consumers here without need, but lose nothing.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from magnetar.ledger.position import Position

_AFTER_LEDGER: Final = "geo.dropped_after.ledger"
_AFTER_ENTRY: Final = "geo.dropped_after.entry"
_THROUGH_LEDGER: Final = "geo.dropped_through.ledger"
_THROUGH_ENTRY: Final = "geo.dropped_through.entry"


class Dropped(NamedTuple):
    """A range of dropped entries."""

    after: Position
    """Last entry before the range."""
    through: Position
    """The last entry of the range."""

    def __contains__(self, position: object) -> bool:
        return isinstance(position, Position) and self.after < position <= self.through


def with_dropped(before: Dropped | None, after: Position, through: Position) -> Dropped:
    """Return `before`, extended to include the entries after `after` through `through`."""
    if before is None:
        return Dropped(after, through)
    return Dropped(min(before.after, after), max(before.through, through))


def dropped_properties(dropped: Dropped | None) -> dict[str, int]:
    """Return the position properties that store the range in the cursor."""
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
    """Return the range that a cursor stores; None if nothing was dropped."""
    if _THROUGH_LEDGER not in properties:
        return None
    return Dropped(
        Position(properties[_AFTER_LEDGER], properties[_AFTER_ENTRY]),
        Position(properties[_THROUGH_LEDGER], properties[_THROUGH_ENTRY]),
    )
