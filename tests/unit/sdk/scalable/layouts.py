"""Layouts for tests of the client."""

from collections.abc import Sequence

from magnetar.sdk.scalable.layout import Layout, Segment
from magnetar.sdk.scalable.names import LayoutName

NAME = LayoutName.parse("topic://public/default/t")


def segment(
    number: int,
    start: int = 0,
    end: int = 0xFFFF,
    *,
    parents: Sequence[int] = (),
    is_sealed: bool = False,
    created_ms: int = 0,
) -> Segment:
    """A segment of `NAME`."""
    return Segment(
        number,
        start,
        end,
        NAME.whole.segment(number, start=start, end=end),
        is_sealed=is_sealed,
        parents=tuple(parents),
        created_ms=created_ms,
    )


def partition(number: int, *, is_sealed: bool = False) -> Segment:
    """A legacy segment: partition `number`."""
    return Segment(
        number, 0, 0xFFFF, NAME.whole.partition(number), is_legacy=True, is_sealed=is_sealed
    )


ROOT = segment(0)
HALVES = [
    segment(0, is_sealed=True),
    segment(1, 0, 0x7FFF, parents=[0]),
    segment(2, 0x8000, 0xFFFF, parents=[0]),
]
BEFORE = Layout(1, [ROOT])
SPLIT = Layout(2, HALVES)
MERGED = Layout(
    3,
    [
        HALVES[0],
        segment(1, 0, 0x7FFF, parents=[0], is_sealed=True),
        segment(2, 0x8000, 0xFFFF, parents=[0], is_sealed=True),
        segment(3, parents=[1, 2]),
    ],
)
LOW, HIGH = b"a", b"k1"
"""Keys: after the first split `LOW` goes to segment 1, and `HIGH` to segment 2."""
