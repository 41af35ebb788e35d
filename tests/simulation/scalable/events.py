"""What happens in a run of a scalable topic, beside what clusters have (`cluster/events.py`)."""

from typing import NamedTuple

Place = tuple[int, int]
"""Ledger and entry."""


class Routed(NamedTuple):
    """A producer gave a message to the segment that has its key now, or gave it anew."""

    producer: str
    segment: str
    payload: bytes

    def __str__(self) -> str:
        return f"gives {self.payload!r} to {_last(self.segment)}"


class LayoutTold(NamedTuple):
    """A client heard of a layout, in one layout session on one connection."""

    session: str
    epoch: int
    segments: tuple[tuple[int, int, int, bool], ...]
    """Id, first hash, last hash, whether it is sealed; in the order of their ids."""

    def __str__(self) -> str:
        return f"session {self.session} hears of epoch {self.epoch}: {_shown(self.segments)}"


class Assigned(NamedTuple):
    """A stream consumer heard which segments are its own."""

    subscription: str
    registration: int
    """Of the consumer: each connection to a coordinator is another one."""
    epoch: int
    segments: tuple[str, ...]

    def __str__(self) -> str:
        names = ", ".join(map(_last, self.segments)) or "nothing"
        return f"is given {names} of {self.subscription} at epoch {self.epoch}"


class Given(NamedTuple):
    """A coordinator decided which segments a stream consumer has."""

    subscription: str
    consumer: str
    epoch: int
    segments: tuple[int, ...]

    def __str__(self) -> str:
        return f"gives {list(self.segments)} of {self.subscription} to {self.consumer}"


class Departed(NamedTuple):
    """A coordinator heard that a stream consumer has left, or that its connection is lost."""

    subscription: str
    consumer: str

    def __str__(self) -> str:
        return f"{self.consumer} of {self.subscription} is gone"


class CoordinatorEnded(NamedTuple):
    """A broker divides the segments of a subscription no more: nobody has any by its word."""

    subscription: str

    def __str__(self) -> str:
        return f"coordinates {self.subscription} no more"


class Moved(NamedTuple):
    """The owner of a segment had a subscription go back to the segment's beginning."""

    segment: str
    subscription: str

    def __str__(self) -> str:
        return f"{self.subscription} has gone back on {_last(self.segment)}"


class Covered(NamedTuple):
    """A subscription is there in all active segments of the layout that counts just then."""

    subscription: str

    def __str__(self) -> str:
        return f"{self.subscription} is in all active segments"


class SeekBegan(NamedTuple):
    """Somebody asks to have a subscription of the whole topic go back to its beginning."""

    subscription: str

    def __str__(self) -> str:
        return f"{self.subscription} is to go back"


class SeekDone(NamedTuple):
    """A subscription has gone back in all segments."""

    subscription: str

    def __str__(self) -> str:
        return f"{self.subscription} has gone back"


class ReadingFrom(NamedTuple):
    """A checkpoint consumer begins to read a segment behind a place; None: at its beginning."""

    reader: str
    segment: str
    place: Place | None

    def __str__(self) -> str:
        where = "the beginning" if self.place is None else f"{self.place[0]}:{self.place[1]}"
        return f"{self.reader} reads {_last(self.segment)} from {where}"


class InOrder(NamedTuple):
    """Nothing goes wrong in this run: clients come and go in order, brokers hand topics over."""

    def __str__(self) -> str:
        return "nothing goes wrong in this run"


class Left(NamedTuple):
    """In the end, the metadata store has the log of a segment."""

    segment: str

    def __str__(self) -> str:
        return f"there is {_last(self.segment)}"


class NotSettled(NamedTuple):
    """What had to happen in bounded time after the last fault has not."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


ScalableEvent = (
    Routed
    | LayoutTold
    | Assigned
    | Given
    | Departed
    | CoordinatorEnded
    | Moved
    | Covered
    | SeekBegan
    | SeekDone
    | ReadingFrom
    | InOrder
    | Left
    | NotSettled
)


def _last(segment: str) -> str:
    return segment.rpartition("/")[2]


def _shown(segments: tuple[tuple[int, int, int, bool], ...]) -> str:
    return " ".join(
        f"{number}[{start:04x}-{end:04x}]{'x' if is_sealed else ''}"
        for number, start, end, is_sealed in segments
    )
