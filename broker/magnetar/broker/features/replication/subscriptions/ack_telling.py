"""Acknowledgements of one subscription that other clusters know, and the new ones. Pure.

Only subscriptions with holes need these messages: without holes, an update contains everything.
Acknowledgements that an update contained, or that another cluster sent, are left out. The rest is
sent once, in parts of bounded size, and again to a cluster that reconnects.

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
    """Acknowledgements of one subscription that other clusters know."""

    def __init__(self) -> None:
        self.through = EARLIEST
        """Position up to which the other clusters know everything from updates."""
        self._ranges: list[AckRange] = []
        self._batches: dict[Position, int] = {}
        """Open bits of batches, as they were last told."""
        self._mark = EARLIEST

    def forget(self) -> None:
        """Tell everything once more: other clusters may not have kept it."""
        self.through = self._mark = EARLIEST
        self._ranges = []
        self._batches = {}

    def known_through(self, position: Position) -> None:
        """Note that the other clusters know all acknowledgements up to a position."""
        if position > self.through:
            self.through = position
            self._ranges = behind(self._ranges, position)
            self._batches = {at: bits for at, bits in self._batches.items() if at > position}

    def known(self, ranges: Iterable[AckRange], batches: Iterable[BatchAck]) -> None:
        """Note that the other clusters know these acknowledgements."""
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
        """Return the acknowledgements that the other clusters do not know.

        Args:
            mark: mark-delete position of the subscription.
            ranges: acknowledged ranges above it.
            batches: partly acknowledged batches.
            low: first entry whose origin is known.
            ledgers: ledgers of the log.
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
    """Return the first items, at most `entries_max`; ranges come before batches."""
    return list(ranges[:entries_max]), list(batches[: max(0, entries_max - len(ranges))])


def fits(acks: Acks) -> bool:
    """Whether the acknowledgements are within the bounds of one marker."""
    items = sum(len(each.ranges) + len(each.batches) for each in acks.by_source.values())
    return (
        items <= RANGES_MAX
        and len(acks.by_source) <= SOURCES_MAX
        and len(encode_acks(acks)) <= ACKS_BYTES_MAX
    )


def merged(
    one: Mapping[Source, OriginAcks], other: Mapping[Source, OriginAcks]
) -> dict[Source, OriginAcks]:
    """Return the acknowledgements of both mappings together."""
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
