"""What is said of entries that no replica gives, and of ledgers that end where they should not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    EntryLossError,
    MagnetarArrowError,
    UnreachableError,
)
from magnetar.arrow.stored.ledger_reads import LedgerReads
from magnetar.arrow.stored.slices import BookieSecurity, Ensemble, LedgerPart
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.wire import EntryBlock, encode_block

PART = LedgerPart(7, 10, 19, (Ensemble(0, ("b1", "b2")),), 2)


def test_a_bookie_that_was_down_when_the_query_was_planned_has_lost_nothing() -> None:
    """With failOnDataLoss false, what it holds would be passed over in silence."""
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    with pytest.raises(UnreachableError, match=r"bookie b2 was not registered.*b1"):
        list(reads.entries(PART))


@pytest.mark.parametrize(
    ("second", "expected"),
    [(NoSuchEntryError, EntryLossError), (NoSuchLedgerOnBookieError, DataLossError)],
)
def test_an_entry_that_is_lost_is_told_from_a_ledger_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, second: type[LedgerError], expected: type[DataLossError]
) -> None:
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    said = iter([NoSuchLedgerOnBookieError("b1: no such ledger"), second("b2: it has not got it")])

    def ask(*_: object) -> None:
        raise next(said)

    monkeypatch.setattr(LedgerReads, "_from_bookie", ask)
    with pytest.raises(DataLossError, match="entry 10 of ledger 7") as raised:
        list(reads.entries(PART))
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    ("first", "may_have_moved"), [(NoSuchLedgerOnBookieError, True), (NoSuchEntryError, False)]
)
def test_an_entry_may_have_moved_if_one_of_its_bookies_lacks_the_ledger(
    monkeypatch: pytest.MonkeyPatch, first: type[LedgerError], may_have_moved: bool
) -> None:
    """Bookies drop a ledger that is in an object store one after the other, and the last one may
    never have had the entry."""
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    said = iter([first("b1: said"), NoSuchEntryError("b2: no such entry")])

    def ask(*_: object) -> None:
        raise next(said)

    monkeypatch.setattr(LedgerReads, "_from_bookie", ask)
    with pytest.raises(EntryLossError) as raised:
        list(reads.entries(PART))
    assert raised.value.may_have_moved is may_have_moved
    assert raised.value.is_denied, "by the second bookie, which has the ledger"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (DigestMismatchError, CorruptDataError),
        (NoSuchEntryError, CorruptDataError),
        (NoSuchLedgerOnBookieError, CorruptDataError),
        (BookieUnavailableError, UnreachableError),
    ],
)
def test_an_entry_is_corrupt_only_if_no_replica_can_still_have_it_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch, second: type[LedgerError], expected: type[Exception]
) -> None:
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    said = iter([DigestMismatchError("b1: damaged"), second("b2: said")])

    def ask(*_: object) -> None:
        raise next(said)

    monkeypatch.setattr(LedgerReads, "_from_bookie", ask)
    with pytest.raises(
        MagnetarArrowError, match=r"entry 10 of ledger 7 .*damaged; b2: said"
    ) as raised:
        list(reads.entries(PART))
    assert type(raised.value) is expected


def test_replicas_that_end_without_entries_and_without_an_error_have_lost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    monkeypatch.setattr(LedgerReads, "_from_bookie", lambda *_: iter(()))
    with pytest.raises(UnreachableError, match=r"entry 10 of ledger 7 .*no replica"):
        list(reads.entries(PART))
    with pytest.raises(UnreachableError, match=r"entry 10 of ledger 7 .*no replica"):
        reads.one(PART, 10)


def test_a_ledger_is_not_gone_while_others_may_have_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )

    def ask(*_: object) -> None:
        raise NoSuchLedgerOnBookieError("no such ledger")

    monkeypatch.setattr(LedgerReads, "_from_bookie", ask)
    for ensembles in (
        (Ensemble(0, ("b1", "b2", "b3")),),  # striped
        (Ensemble(0, ("b1", "b2")), Ensemble(15, ("b2", "b3"))),
    ):
        with pytest.raises(EntryLossError) as lost:
            list(reads.entries(LedgerPart(7, 10, 19, ensembles, 2)))
        assert lost.value.may_have_moved
        assert not lost.value.is_denied
    with pytest.raises(DataLossError) as raised:
        list(reads.entries(LedgerPart(7, 10, 14, ensembles, 2)))
    assert type(raised.value) is DataLossError


class Link:
    """A bookie that has these entries, or raises."""

    def __init__(self, held: tuple[int, ...] | LedgerError) -> None:
        self._held = held

    def first_held(self, _ledger_id: int, first: int, last: int, *, key: bytes = b"") -> int | None:
        if isinstance(self._held, LedgerError):
            raise self._held
        return next((each for each in self._held if first <= each <= last), None)


GONE = NoSuchLedgerOnBookieError("no such ledger")
AWAY = BookieUnavailableError("no answer")


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({"b1": (17, 18), "b2": (15,), "b3": (5, 19)}, 15),
        ({"b1": (), "b2": (25,), "b3": GONE}, 20),
        ({"b1": GONE, "b2": GONE, "b3": (16,)}, 16),
        ({"b1": (17,), "b2": AWAY, "b3": (15,)}, 10),
        ({"b1": (17,), "b2": (18,), "b3": AWAY}, 16),
        ({"b1": (17,), "b2": (15,), "b3": AWAY}, 15),
    ],
    ids=[
        "one has an earlier one",
        "nobody has any",
        "of the next ensemble",
        "one does not tell",
        "one of the next ensemble does not tell",
        "one has an earlier one than who does not tell was given",
    ],
)
def test_entries_are_passed_over_when_no_bookie_lists_them(
    monkeypatch: pytest.MonkeyPatch,
    links: dict[str, tuple[int, ...] | LedgerError],
    expected: int,
) -> None:
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    monkeypatch.setattr(LedgerReads, "_link", lambda _, name: Link(links[name]))
    ensembles = (
        Ensemble(0, ("never asked",)),
        Ensemble(8, ("b1", "b2")),
        Ensemble(16, ("b2", "b3")),
        Ensemble(20, ("never asked",)),
    )
    assert reads.first_held(LedgerPart(7, 10, 19, ensembles, 2)) == expected


class Packets:
    """A bookie that has entries of 5 bytes each, and gives three of them at once."""

    def blocks(
        self, ledger_id: int, first: int, last: int, _: int, *, key: bytes = b""
    ) -> Iterator[tuple[int, EntryBlock]]:
        codec = packet_codec(ledger_id)
        for at in range(first, last + 1, 3):
            payloads = [b"entry"] * (min(last, at + 2) - at + 1)
            yield at, encode_block(codec.seal(at, -1, 5 * at, payloads))


def values(monkeypatch: pytest.MonkeyPatch, part: LedgerPart) -> int:
    reads = LedgerReads(
        {}, request_bytes=1 << 20, bookie_timeout_ms=1_000, security=BookieSecurity()
    )
    monkeypatch.setattr(LedgerReads, "_link", lambda *_: Packets())
    return sum(len(payloads) for _, payloads in reads.entries(part))


@pytest.mark.parametrize("last", [19, 18, 10], ids=["a run", "a short run", "one entry"])
def test_a_ledger_whose_metadata_ends_elsewhere_than_its_entries_say_is_not_read_to_that_end(
    monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """What is behind that end would be missing, and nobody would know."""
    length = 5 * (last + 1)
    assert values(monkeypatch, replace(PART, last=last, length=length)) == last - 9
    with pytest.raises(CorruptDataError, match=rf"entry {last} .* says {length} bytes"):
        values(monkeypatch, replace(PART, last=last, length=length + 5))


def test_a_part_that_does_not_reach_the_end_of_its_ledger_says_nothing_of_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert values(monkeypatch, PART) == 10
