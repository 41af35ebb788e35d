"""Entries through a broker: all of them, however slowly they come, and whatever lies between."""

import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from magnetar.arrow.stored import broker_reads
from magnetar.arrow.stored.broker_reads import BrokerReads
from magnetar.arrow.stored.errors import DataLossError, SilentBrokerError, UnreachableError
from magnetar.arrow.stored.patience import PATIENCE_S
from magnetar.arrow.stored.slices import LedgerPart
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.frames import encode_payload
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata, ServerError

PAYLOAD = encode_payload(
    MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString(), b"x"
)

Place = tuple[int, int]


class Link:
    """Gives what it was told to, a list at a time; an empty one is a broker that says nothing."""

    def __init__(
        self,
        *steps: Sequence[Place] | Exception,
        last: Place,
        is_gone: bool = False,
        mark_delete: Place = (-1, -1),
    ) -> None:
        """`is_gone`: the ledger that is read, by the time that somebody asks."""
        self._steps = iter(steps)
        self._last = last
        self._is_gone = is_gone
        self._mark_delete = mark_delete
        self.is_idle = False
        self.asked: list[Place] = []
        self.is_closed = False

    def subscribe(self, _topic: str, ledger_id: int, first: int) -> None:
        self.asked.append((ledger_id, first))

    def entries(self) -> list[tuple[int, int, bytes]]:
        step = next(self._steps)
        if isinstance(step, Exception):
            raise step
        self.is_idle = not step
        return [(*at, PAYLOAD) for at in step]

    def last_message(self) -> Place:
        return self._last

    def mark_delete(self) -> Place:
        return self._mark_delete

    def has(self, _topic: str, _ledger_id: int, _entry_id: int) -> bool:
        return not self._is_gone

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Time:
    """Passes in pauses only."""

    now_s: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def pause(self, pause_s: float) -> None:
        self.now_s += pause_s
        self.pauses.append(pause_s)


def taken(
    monkeypatch: pytest.MonkeyPatch,
    part: LedgerPart,
    links: Sequence[Link | Exception],
    time: Time | None = None,
) -> Iterator[int]:
    """The ids of the entries; of `links`, an error is an attempt to connect that fails, and the
    last one is what all further attempts come to."""
    waiting = list(links)

    def follow(*_: object) -> Link:
        found = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(found, Exception):
            raise found
        return found

    time = time or Time()
    reads = BrokerReads(
        "persistent://a/b/c", "pulsar://broker", ClientSettings(), clock=time, pause=time.pause
    )
    monkeypatch.setattr(broker_reads.BrokerReads, "_follow", follow)
    return (first for first, _ in reads.entries(part))


def test_a_broker_that_pauses_ends_no_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice ends with a marker, which is no message: the last one is before its end."""
    link = Link([(5, 0), (5, 1)], [], [(5, 2)], [], last=(5, 2))
    assert list(taken(monkeypatch, LedgerPart(5, 0, 3), [link])) == [0, 1, 2]


@pytest.mark.parametrize("steps", [([],), ([(6, 0)],)], ids=["nothing", "the next ledger"])
def test_a_slice_without_any_message_is_empty(
    monkeypatch: pytest.MonkeyPatch, steps: list[list[Place]]
) -> None:
    link = Link(*steps, last=(4, 9))
    assert not list(taken(monkeypatch, LedgerPart(5, 0, 3), [link]))


def test_a_ledger_whose_rest_is_no_message_is_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link([(5, 97), (6, 0)], last=(6, 0))
    assert not list(taken(monkeypatch, LedgerPart(5, 98, 99), [link]))


@pytest.mark.parametrize("steps", [([],), ([(6, 0)],), ([(5, 0)], []), ([(5, 0), (6, 0)],)])
def test_a_ledger_that_is_gone_is_data_loss(
    monkeypatch: pytest.MonkeyPatch, steps: list[list[Place]]
) -> None:
    """Before it is read or in the midst of it; with another behind it or none."""
    link = Link(*steps, last=(-1, -1), is_gone=True)
    with pytest.raises(DataLossError, match="ledger 5 is gone"):
        list(taken(monkeypatch, LedgerPart(5, 0, 9), [link]))


@pytest.mark.parametrize(
    "steps",
    [([(5, 3)],), ([(6, 0)],), ([],)],
    ids=["a younger one", "one of the next ledger", "nothing"],
)
def test_what_expires_while_it_is_read_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, steps: list[list[Place]]
) -> None:
    first = Link([(5, 0)], *steps, last=(6, 0), mark_delete=(5, 2))
    second = Link([(5, 1), (5, 2), (5, 3)], last=(6, 0))
    assert list(taken(monkeypatch, LedgerPart(5, 0, 3), [first, second])) == [0, 1, 2, 3]
    assert second.asked == [(5, 1)]
    assert first.is_closed


def test_entries_that_do_not_come_when_they_are_asked_for_again_are_no_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker acknowledges its markers for who begins with them."""
    links = [
        Link([(5, 2)], last=(5, 2), mark_delete=(5, 1)) for _ in range(broker_reads._REREADS_MAX)
    ]
    last = Link([(5, 2), (5, 4)], last=(5, 4), mark_delete=(5, 1))
    assert list(taken(monkeypatch, LedgerPart(5, 0, 4), [*links, last])) == [2, 4]


def test_what_expires_behind_what_is_no_message_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The expired message came with what lies behind a marker that the broker was asked about often
    enough."""
    links = [
        Link([(5, 1)], last=(5, 3), mark_delete=(5, 0)) for _ in range(broker_reads._REREADS_MAX)
    ]
    passed = Link([(5, 1), (5, 3)], last=(5, 3), mark_delete=(5, 2))
    last = Link([(5, 2), (5, 3)], last=(5, 3))
    found = list(taken(monkeypatch, LedgerPart(5, 0, 3), [*links, passed, last]))
    assert found == [1, 2, 3]


def test_a_connection_that_ends_in_the_middle_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As brokers do when a topic moves, or when a slow sink keeps this from answering pings."""
    first = Link([(5, 0), (5, 1)], ConnectionError("closed"), last=(5, 3))
    second = Link([(5, 1), (5, 2), (5, 3)], last=(5, 3))
    assert list(taken(monkeypatch, LedgerPart(5, 0, 3), [first, second])) == [0, 1, 2, 3]
    assert (first.asked, second.asked) == ([(5, 0)], [(5, 2)])
    assert first.is_closed


@pytest.mark.parametrize(
    "away",
    [
        ConnectionRefusedError("refused"),
        TimeoutError("timed out"),
        broker_reads._RefusalError(ServerError.ServiceNotReady, "the topic is moving"),
    ],
    ids=["nobody listens", "nobody answers", "not now"],
)
def test_a_task_waits_for_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, away: Exception
) -> None:
    """In the middle of its slice, and again later: each time from the last entry on."""
    time = Time()
    links: list[Link | Exception] = [
        away,
        Link([(5, 0)], ConnectionError("closed"), last=(5, 3)),
        *[away] * 20,
        Link([(5, 1)], ConnectionError("closed"), last=(5, 3)),
        *[away] * 20,
        Link([(5, 2), (5, 3)], last=(5, 3)),
    ]
    assert list(taken(monkeypatch, LedgerPart(5, 0, 3), links, time)) == [0, 1, 2, 3]
    assert time.now_s > PATIENCE_S, "counted from the last entry, not from the first attempt"


def test_a_broker_that_ends_every_connection_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = Time()
    first = Link([(5, 0)], ConnectionError("closed"), last=(5, 3))
    with pytest.raises(UnreachableError, match="refused"):
        list(
            taken(
                monkeypatch,
                LedgerPart(5, 0, 3),
                [first, ConnectionRefusedError("refused")],
                time,
            )
        )
    assert PATIENCE_S <= time.now_s < PATIENCE_S + 2


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError("nobody trusts it"),
        broker_reads._RefusalError(ServerError.AuthorizationError, "not allowed"),
    ],
    ids=["certificate", "right"],
)
def test_what_stays_as_it_is_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    time = Time()
    with pytest.raises(UnreachableError):
        list(taken(monkeypatch, LedgerPart(5, 0, 3), [error], time))
    assert time.pauses == []


def test_a_broker_that_says_there_is_more_and_sends_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence: list[list[Place]] = [[] for _ in range(broker_reads._SILENT_ROUNDS_MAX)]
    first = Link([(5, 0)], *silence, last=(5, 3))
    second = Link(*silence, last=(5, 3))
    with pytest.raises(SilentBrokerError, match="5:3 is there, and sends nothing behind 5:0"):
        list(taken(monkeypatch, LedgerPart(5, 0, 3), [first, second]))
    assert second.asked == [(5, 1)], "tried once more, and that was a minute each"
