"""What bookies do not answer comes from brokers, and so does a ledger that they no longer have.

Entries that they deny are not asked for a second time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from magnetar.arrow.stored import slice_reader
from magnetar.arrow.stored.errors import (
    CorruptDataError,
    DataLossError,
    EntryLossError,
    SilentBrokerError,
    UnreachableError,
)
from magnetar.arrow.stored.slice_reader import FallbackReads
from magnetar.arrow.stored.slices import Ensemble, LedgerPart, ReadSettings, Slice

PART = LedgerPart(7, 10, 19, (Ensemble(0, ("b1", "b2")),), 2)
NEXT = LedgerPart(8, 0, 4, (Ensemble(0, ("b1", "b2")),), 2)


class Scripted:
    """Gives entries two at a time, up to the one at which it fails."""

    def __init__(self, fails_at: int, error: Exception) -> None:
        self.fails_at = fails_at
        self.error = error
        self.asked: list[tuple[int, int]] = []
        self.is_closed = False

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        self.asked.append((part.ledger_id, part.first))
        for first in range(part.first, part.last + 1, 2):
            if self.fails_at <= first:
                raise self.error
            last = min(first + 1, part.last)
            yield first, [b"%d:%d" % (part.ledger_id, each) for each in range(first, last + 1)]

    def know(self, addresses: object) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


NEVER = 1 << 60


def reads_of(
    monkeypatch: pytest.MonkeyPatch,
    bookies: Scripted,
    brokers: Scripted,
    *,
    service_url: str = "pulsar://broker",
) -> FallbackReads:
    monkeypatch.setattr(slice_reader, "LedgerReads", lambda *_, **__: bookies)
    monkeypatch.setattr(slice_reader, "BrokerReads", lambda *_: brokers)
    settings = ReadSettings(service_url=service_url)
    return FallbackReads(Slice("persistent://a/b/c", -1, (PART, NEXT), settings=settings))


def taken(reads: FallbackReads, parts: Sequence[LedgerPart]) -> list[bytes]:
    return [each for part in parts for _, run in reads.entries(part) for each in run]


def everything(*parts: LedgerPart) -> list[bytes]:
    return [b"%d:%d" % (each.ledger_id, at) for each in parts for at in _ids(each)]


def _ids(part: LedgerPart) -> range:
    return range(part.first, part.last + 1)


def test_the_next_slice_of_a_task_asks_no_bookies_that_were_not_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookies = Scripted(10, UnreachableError("bookie b1: refused"))
    brokers = Scripted(NEVER, UnreachableError("never"))
    first = reads_of(monkeypatch, bookies, brokers)
    assert taken(first, [PART]) == everything(PART)
    second = FallbackReads(
        Slice("t", -1, (NEXT,), settings=ReadSettings(service_url="pulsar://broker")), first
    )
    assert taken(second, [NEXT]) == everything(NEXT)
    assert bookies.asked == [(7, 10)]


@pytest.mark.parametrize("fails_at", [10, 14, 18])
def test_brokers_go_on_with_the_first_entry_that_no_bookie_gave(
    monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    bookies = Scripted(fails_at, UnreachableError("bookie b1: refused"))
    brokers = Scripted(NEVER, UnreachableError("never"))
    reads = reads_of(monkeypatch, bookies, brokers)
    assert taken(reads, [PART]) == everything(PART)
    assert brokers.asked == [(7, fails_at)]


def test_a_slice_stays_with_brokers_once_it_went_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further wait for bookies that nobody reaches would be as long as the first."""
    bookies = Scripted(14, UnreachableError("bookie b1: refused"))
    brokers = Scripted(NEVER, UnreachableError("never"))
    reads = reads_of(monkeypatch, bookies, brokers)
    assert taken(reads, [PART, NEXT]) == everything(PART, NEXT)
    assert bookies.asked == [(7, 10)]
    assert brokers.asked == [(7, 14), (8, 0)]
    reads.close()
    assert bookies.is_closed
    assert brokers.is_closed


@pytest.mark.parametrize("error", [EntryLossError("it is gone"), CorruptDataError("a bad digest")])
def test_what_bookies_say_of_entries_is_not_asked_a_second_time(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    brokers = Scripted(NEVER, UnreachableError("never"))
    reads = reads_of(monkeypatch, Scripted(14, error), brokers)
    with pytest.raises(type(error), match=str(error)):
        taken(reads, [PART])
    assert not brokers.asked


LEFT = [DataLossError("no such ledger"), EntryLossError("no such ledger", may_have_moved=True)]


@pytest.mark.parametrize("error", LEFT, ids=["all bookies", "replicas"])
@pytest.mark.parametrize("fails_at", [10, 14])
def test_a_ledger_that_left_its_bookies_after_planning_comes_through_brokers(
    monkeypatch: pytest.MonkeyPatch, fails_at: int, error: Exception
) -> None:
    """The ledger is in an object store or on other bookies. Later ledgers may still be where they
    were."""
    bookies = Scripted(fails_at, error)
    brokers = Scripted(NEVER, UnreachableError("never"))
    reads = reads_of(monkeypatch, bookies, brokers)
    assert taken(reads, [PART, NEXT]) == everything(PART, NEXT)
    assert bookies.asked == [(7, 10), (8, 0)]
    assert brokers.asked == [(7, fails_at)]


@pytest.mark.parametrize("error", LEFT, ids=["all bookies", "replicas"])
def test_a_ledger_that_brokers_deny_too_is_lost(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The reader may ask for what is left of the ledger on bookies; brokers answer once."""
    brokers = Scripted(10, DataLossError("ledger 7 is gone"))
    reads = reads_of(monkeypatch, Scripted(10, error), brokers)
    for first in (10, 12):
        with pytest.raises(type(error)) as caught:
            taken(reads, [replace(PART, first=first)])
        assert caught.value is error
    assert brokers.asked == [(7, 10)]


def test_a_ledger_is_not_lost_while_no_broker_can_say_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Scripted(10, UnreachableError("no broker: timed out"))
    reads = reads_of(monkeypatch, Scripted(10, LEFT[0]), brokers)
    with pytest.raises(UnreachableError) as caught:
        taken(reads, [PART])
    assert str(caught.value) == "no such ledger; nor through brokers: no broker: timed out"


DENIED = EntryLossError("no such entry", may_have_moved=True, is_denied=True)


def test_an_entry_that_a_bookie_denies_and_a_broker_never_sends_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker retries its read for ever. Of later entries it has said nothing."""
    brokers = Scripted(10, SilentBrokerError("the broker sends nothing"))
    reads = reads_of(monkeypatch, Scripted(10, DENIED), brokers)
    for first in (10, 12):
        with pytest.raises(EntryLossError) as caught:
            taken(reads, [replace(PART, first=first)])
        assert caught.value is DENIED
    assert brokers.asked == [(7, 10), (7, 12)]
    brokers.fails_at = NEVER
    assert taken(reads, [replace(PART, first=14)]) == everything(replace(PART, first=14))


@pytest.mark.parametrize("error", LEFT, ids=["all bookies", "replicas"])
def test_a_ledger_that_left_its_bookies_is_not_lost_because_its_broker_is_silent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The ledger's object store or new bookies may be out of reach for a while."""
    brokers = Scripted(10, SilentBrokerError("the broker sends nothing"))
    reads = reads_of(monkeypatch, Scripted(10, error), brokers)
    with pytest.raises(UnreachableError, match="nor through brokers: the broker sends nothing"):
        taken(reads, [PART])
    brokers.fails_at = NEVER
    assert taken(reads, [PART]) == everything(PART)


@pytest.mark.parametrize("error", [*LEFT, DENIED], ids=["all bookies", "replicas", "denied"])
def test_a_moved_ledger_is_not_lost_because_its_broker_falls_silent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The broker has found the ledger elsewhere: the answer of the bookies says nothing about
    later entries."""
    brokers = Scripted(14, SilentBrokerError("the broker sends nothing"))
    reads = reads_of(monkeypatch, Scripted(10, error), brokers)
    with pytest.raises(UnreachableError, match="nor through brokers: the broker sends nothing"):
        taken(reads, [PART])


def test_a_silent_broker_alone_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Scripted(10, SilentBrokerError("the broker sends nothing"))
    reads = reads_of(monkeypatch, Scripted(10, UnreachableError("bookie b1: refused")), brokers)
    with pytest.raises(UnreachableError, match="refused; nor through brokers"):
        taken(reads, [PART])


def test_without_brokers_the_answer_of_bookies_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Scripted(NEVER, UnreachableError("never"))
    reads = reads_of(monkeypatch, Scripted(10, LEFT[0]), brokers, service_url="")
    with pytest.raises(DataLossError, match="no such ledger"):
        taken(reads, [PART])
    assert not brokers.asked


def test_one_line_says_why_neither_bookies_nor_brokers_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookies = Scripted(10, UnreachableError("entry 10 cannot be read: bookie b1: refused"))
    brokers = Scripted(10, UnreachableError("no broker: timed out"))
    with pytest.raises(UnreachableError) as caught:
        taken(reads_of(monkeypatch, bookies, brokers), [PART])
    assert str(caught.value) == (
        "entry 10 cannot be read: bookie b1: refused; nor through brokers: no broker: timed out"
    )
