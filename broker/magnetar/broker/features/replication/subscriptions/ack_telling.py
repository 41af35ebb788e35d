"""What other clusters know of the acknowledgements of one subscription, and what is new. Pure.

Only a subscription with holes is told of in this way: without them updates say everything. What an
update has told needs not be told again, nor what other clusters have told. The rest is told once,
in parts of a bounded size, and again to a cluster that is connected anew.

Source: geo-replication sheet, section 18.8.
"""

from collections.abc import Iterable, Mapping, Sequence

from magnetar.broker.features.replication.acks import (
    ACKS_BYTES_MAX,
    BATCH_BYTES_MAX,
    RANGES_MAX,
    SOURCES_MAX,
    Acks,
    OriginAcks,
    encode_acks,
)
from magnetar.broker.features.replication.source_marks import Source
from magnetar.broker.features.replication.subscriptions.ack_ranges import (
    all_between,
    behind,
    union,
    without,
)
from magnetar.cursors import AckRange, BatchAck
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.position import EARLIEST, Position


class AckTelling:
    """What was told of one subscription."""

    def __init__(self) -> None:
        self.through = EARLIEST
        """Everything up to it is known to the others by updates."""
        self._ranges: list[AckRange] = []
        self._batches: dict[Position, int] = {}
        """Open bits of batches, as they were told."""
        self._mark = EARLIEST

    def forget(self) -> None:
        """Tell everything once more: the others may not have kept it."""
        self.through = self._mark = EARLIEST
        self._ranges = []
        self._batches = {}

    def known_through(self, position: Position) -> None:
        """The others know that everything up to a position is acknowledged."""
        if position > self.through:
            self.through = position
            self._ranges = behind(self._ranges, position)
            self._batches = {at: bits for at, bits in self._batches.items() if at > position}

    def known(self, ranges: Iterable[AckRange], batches: Iterable[BatchAck]) -> None:
        """The others know these acknowledgements."""
        self._ranges = behind(union(self._ranges, ranges), self.through)
        for ledger_id, entry_id, remaining in batches:
            position = Position(ledger_id, entry_id)
            self._batches[position] = self._batches.get(position, remaining) & remaining

    def untold(
        self,
        mark: Position,
        ranges: Sequence[AckRange],
        batches: Sequence[BatchAck],
        *,
        low: Position,
        ledgers: Sequence[LogLedger],
    ) -> tuple[list[AckRange], list[BatchAck]]:
        """Return what is acknowledged and was not told.

        Args:
            mark: the mark-delete position of the subscription.
            ranges: what is acknowledged above it.
            batches: batches of which a part is acknowledged.
            low: the first entry that can be told of.
            ledgers: of the log.
        """
        if mark < self._mark:
            self.forget()  # an operator or a consumer went back
        self._mark = mark
        after = max(self.through, Position(low.ledger_id, low.entry_id - 1))
        passed = all_between(ledgers, after, mark)
        told = self._batches
        return (
            without([*passed, *behind(ranges, after)], self._ranges),
            [
                each
                for each in batches
                if told.get(Position(each.ledger_id, each.entry_id)) != each.remaining
                and (each.remaining.bit_length() + 7) // 8 <= BATCH_BYTES_MAX
            ],
        )


def first_part(
    ranges: Sequence[AckRange], batches: Sequence[BatchAck], entries_max: int
) -> tuple[list[AckRange], list[BatchAck]]:
    """Return the first items, so many at most; ranges go before batches."""
    return list(ranges[:entries_max]), list(batches[: max(0, entries_max - len(ranges))])


def fits(acks: Acks) -> bool:
    """Return whether acknowledgements are within the bounds of one marker."""
    items = sum(len(each.ranges) + len(each.batches) for each in acks.by_source.values())
    return (
        items <= RANGES_MAX
        and len(acks.by_source) <= SOURCES_MAX
        and len(encode_acks(acks)) <= ACKS_BYTES_MAX
    )


def merged(
    one: Mapping[Source, OriginAcks], other: Mapping[Source, OriginAcks]
) -> dict[Source, OriginAcks]:
    """Return what two tellings say together."""
    found = dict(one)
    for source, acks in other.items():
        before = found.get(source, OriginAcks())
        batches = {(each.ledger_id, each.entry_id): each.remaining for each in before.batches}
        for ledger_id, entry_id, remaining in acks.batches:
            at = ledger_id, entry_id
            batches[at] = batches.get(at, remaining) & remaining
        whole = [AckRange(*at, at[1]) for at, remaining in batches.items() if not remaining]
        found[source] = OriginAcks(
            tuple(union(union(before.ranges, acks.ranges), whole)),
            tuple(BatchAck(*at, bits) for at, bits in sorted(batches.items()) if bits),
        )
    return found
