"""In which order slices are read."""

from magnetar.arrow.reading import slice_order
from magnetar.arrow.stored.slices import LedgerPart, Slice


def ordered(*topics: tuple[str, int]) -> list[str]:
    slices = [Slice(name, partition, (LedgerPart(1, 0, 0),)) for name, partition in topics]
    return [each.topic for each in sorted(slices, key=slice_order)]


def test_partitions_are_read_by_their_numbers() -> None:
    names = [(f"persistent://public/default/t-partition-{number}", number) for number in range(12)]
    assert ordered(*reversed(names)) == [name for name, _ in names]


def test_segments_are_read_behind_those_that_they_came_of() -> None:
    """Segments that were partitions before a migration come first of all."""
    segments = [
        ("persistent://public/default/t-partition-0", 0),
        ("persistent://public/default/t-partition-1", 1),
        ("segment://public/default/t/8000-ffff-2", -1),
        ("segment://public/default/t/0000-7fff-9", -1),
        ("segment://public/default/t/0000-3fff-10", -1),
    ]
    assert ordered(*reversed(segments)) == [name for name, _ in segments]
