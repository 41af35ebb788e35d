"""Entries of this log that a peer does not have, so its acknowledgements do not cover them. Pure.

An update of a subscription names a position in the log of this cluster, and means everything up to
it. But the peer lacks entries that are not copied to it. These are entries stored before copying
began, messages that their producers excluded, and copies from clusters that do not copy to it, as
in a ring. If the update acknowledged them with the rest, consumers here would lose them. So an
update moves a subscription only to the first such entry that it has not acknowledged itself, and
continues when it has.

The entries in between are read once per peer, whatever the number of subscriptions.

Source: geo-replication sheet, sections 11 (the last remark), 17 (row 29) and 18.8.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from typing import Final

from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata

ABSENT_MAX: Final = 1_000
"""Positions kept per peer, at most. Older ones are forgotten, and read again if necessary."""


def is_at_peer(
    metadata: MessageMetadata,
    *,
    peer: str,
    here: str,
    heard_by_peer: Collection[str],
    is_copied: bool = True,
) -> bool:
    """Whether a peer has the messages of an entry of this log with this metadata.

    Args:
        peer: the cluster that sends acknowledgements.
        here: name of this cluster.
        heard_by_peer: clusters that copy to the peer.
        is_copied: whether the entry is at a position that this cluster copies to the peer.
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
    """Entries of one stretch of this log that a peer does not have."""

    def __init__(self) -> None:
        self._low: Position | None = None
        self._high: Position | None = None
        """Entries after `_low` through `_high` were read; None if none was."""
        self._absent: list[Position] = []

    def unread_after(self, mark: Position, through: Position) -> Position | None:
        """Return the position after which to read on to know all entries up to `through`.

        `mark` is the mark-delete position of the subscription. Return None if all of them are
        known.
        """
        if self._low is None or self._high is None or not self._low <= mark <= self._high:
            self._low = self._high = mark
            self._absent.clear()
        return self._high if self._high < through else None

    def on_read(self, last: Position, absent: Collection[Position]) -> None:
        """Note that entries up to `last` were read, from the end of what was known.

        `absent`: the entries among them that the peer does not have, ascending.
        """
        assert self._high is not None, "somebody asked where to read on"
        self._high = last
        self._absent.extend(absent)

    def first_open(
        self, mark: Position, through: Position, is_acked: Callable[[Position], bool]
    ) -> Position | None:
        """Return the first absent entry after `mark` that the subscription has not acknowledged.

        Return None if there is none up to `through`.
        """
        for each in self._absent[bisect_right(self._absent, mark) :]:
            if each > through:
                return None
            if not is_acked(each):
                return each
        return None

    def trim(self) -> None:
        """Keep the newest `ABSENT_MAX` positions. Call this when no read is about to continue."""
        if len(self._absent) > ABSENT_MAX:
            self._low = self._absent[-ABSENT_MAX - 1]
            del self._absent[:-ABSENT_MAX]
