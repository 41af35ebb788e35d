"""Entries of this log that a peer does not have: its acknowledgements say nothing of them. Pure.

An update of a subscription names a position in the log of this cluster, and means everything up to
it. But the peer has never seen what does not go there: what was stored before copying to it began,
messages that their producers have kept from it, and copies of clusters that do not copy to it, as
in a ring. Acknowledged with the rest they would be lost to the consumers here. So an update moves a
subscription to the first of them that it has not acknowledged itself, and on when it has.

The entries between are read once per peer, whatever the number of subscriptions.

Source: geo-replication sheet, sections 11 (the last remark), 17 (row 29) and 18.8.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from typing import Final

from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata

ABSENT_MAX: Final = 1_000
"""Positions that are kept per peer. Older ones are forgotten, and read again if need be."""


def is_at_peer(
    metadata: MessageMetadata,
    *,
    peer: str,
    here: str,
    heard_by_peer: Collection[str],
    is_copied: bool = True,
) -> bool:
    """Return whether a peer has what an entry of this log with this metadata holds.

    Args:
        peer: the cluster that tells of acknowledgements.
        here: name of this cluster.
        heard_by_peer: the clusters that copy to the peer.
        is_copied: whether the entry stands where this cluster copied to the peer already.
    """
    if metadata.HasField("marker_type"):
        return True  # holds nothing for consumers
    origin = metadata.replicated_from if metadata.HasField("replicated_from") else here
    if origin == peer:
        return True
    if origin == here and not is_copied:
        return False
    if origin != here and origin not in heard_by_peer:
        return False
    return not metadata.replicate_to or peer in metadata.replicate_to


class AbsentEntries:
    """The entries of one stretch of this log that a peer does not have."""

    def __init__(self) -> None:
        self._low: Position | None = None
        self._high: Position | None = None
        """Entries behind `_low` up to `_high` were read; None: no entry was."""
        self._absent: list[Position] = []

    def unread_after(self, mark: Position, through: Position) -> Position | None:
        """Return the position behind which is to be read on to know all up to `through`, for a
        subscription whose mark-delete position is `mark`; None: all of it is known."""
        if self._low is None or self._high is None or not self._low <= mark <= self._high:
            self._low = self._high = mark
            self._absent.clear()
        return self._high if self._high < through else None

    def on_read(self, last: Position, absent: Collection[Position]) -> None:
        """Everything from where reading went on up to `last` was read.

        `absent`: the entries there that the peer does not have, ascending.
        """
        assert self._high is not None, "somebody asked where to read on"
        self._high = last
        self._absent.extend(absent)

    def first_open(
        self, mark: Position, through: Position, is_acked: Callable[[Position], bool]
    ) -> Position | None:
        """Return the first absent entry behind `mark`, up to `through`, that the subscription has
        not acknowledged; None: there is none."""
        for each in self._absent[bisect_right(self._absent, mark) :]:
            if each > through:
                return None
            if not is_acked(each):
                return each
        return None

    def trim(self) -> None:
        """Keep `ABSENT_MAX` positions: called when nobody is about to read on."""
        if len(self._absent) > ABSENT_MAX:
            self._low = self._absent[-ABSENT_MAX - 1]
            del self._absent[:-ABSENT_MAX]
