"""A slice of which entries are lost: all that is left comes, or nothing does."""

from collections.abc import Collection, Iterator

import pyarrow as pa
import pytest

from magnetar.arrow.stored import slice_reader
from magnetar.arrow.stored.arrow_rows import ArrowRows
from magnetar.arrow.stored.errors import DataLossError, EntryLossError, SilentBrokerError
from magnetar.arrow.stored.slice_reader import SliceReader
from magnetar.arrow.stored.slices import Ensemble, LedgerPart, ReadSettings, Slice
from magnetar.arrow.stored.stored_values import StoredColumn
from magnetar.sdk.wire.frames import encode_payload
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata

SCHEMA = pa.schema([pa.field("value", pa.binary())])
HEAD = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()


class Reads:
    """Two entries at a time; without ledger 6 and some entries of the others."""

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        if part.ledger_id == 6:
            raise DataLossError("no such ledger")
        for first in range(part.first, part.last + 1, 2):
            found: list[bytes] = []
            for at in range(first, min(first + 1, part.last) + 1):
                if at in (3, 4, 9):
                    if found:
                        yield first, found
                    raise EntryLossError(f"no such entry {at}")
                found.append(encode_payload(HEAD, b"%d:%d" % (part.ledger_id, at)))
            yield first, found

    def first_held(self, part: LedgerPart) -> int:
        return part.first  # as one that cannot tell

    def close(self) -> None:
        pass


PARTS = (LedgerPart(5, 2, 9), LedgerPart(6, 0, 9), LedgerPart(7, 0, 2))


def values_of(
    reads: slice_reader.Reads, parts: tuple[LedgerPart, ...] = PARTS, *, fails: bool
) -> list[bytes]:
    wanted = Slice("t", -1, parts, settings=ReadSettings(fail_on_data_loss=fails))
    rows = ArrowRows(SCHEMA, topic="t", partition=-1, values=StoredColumn(pa.binary()))
    batches = SliceReader(wanted, rows, reads).batches()
    return [value for batch in batches for value in batch.column(0).to_pylist()]


def test_entries_that_are_lost_take_no_others_along() -> None:
    assert values_of(Reads(), fails=False) == [
        b"5:2", b"5:5", b"5:6", b"5:7", b"5:8", b"7:0", b"7:1", b"7:2",
    ]  # fmt: skip


def test_a_lost_entry_is_data_loss() -> None:
    with pytest.raises(DataLossError, match=r"no such entry 3.*failOnDataLoss"):
        values_of(Reads(), fails=True)


class Holes:
    """A ledger of which these entries are there."""

    def __init__(self, held: Collection[int], *, may_have_moved: bool = False) -> None:
        self._held = sorted(held)
        self._may_have_moved = may_have_moved
        self.questions = 0

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        for at in range(part.first, part.last + 1):
            if at not in self._held:
                self.questions += 1
                raise EntryLossError(
                    f"no such entry {at}", may_have_moved=self._may_have_moved, is_denied=True
                )
            yield at, [encode_payload(HEAD, b"%d" % at)]

    def first_held(self, part: LedgerPart) -> int:
        self.questions += 1
        return next((at for at in self._held if part.first <= at <= part.last), part.last + 1)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ((), ["100000 entries, 0 to 99999: no such entry 0"]),
        (
            (0, 40_000, 40_001),
            [
                "39999 entries, 1 to 39999: no such entry 1",
                "59998 entries, 40002 to 99999: no such entry 40002",
            ],
        ),
        ((99_999,), ["99999 entries, 0 to 99998: no such entry 0"]),
    ],
)
def test_a_run_of_lost_entries_is_one_question_and_one_line(
    caplog: pytest.LogCaptureFixture,
    held: tuple[int, ...],
    expected: list[str],
) -> None:
    reads = Holes(held)
    assert passed_over(caplog, reads, entries=100_000) == (
        [b"%d" % at for at in held],
        [f"t: ledger 5: passed over what is gone: {each}" for each in expected],
    )
    assert reads.questions == 2 * len(expected)


def test_entries_that_are_lost_here_and_there_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = range(0, 1_000, 2)
    values, lines = passed_over(caplog, Holes(held), entries=1_000)
    assert values == [b"%d" % at for at in held]
    assert len(lines) == slice_reader._LOSS_LINES_MAX + 1
    assert lines[-1].endswith("500 entries in all, in 500 places")


class Silent:
    """A broker that never sends what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def entries(self, part: LedgerPart) -> Iterator[tuple[int, list[bytes]]]:
        self.asked.append(part.first)
        raise SilentBrokerError("the broker sends nothing")

    def close(self) -> None:
        pass


def test_a_lost_entry_that_a_broker_never_sends_takes_no_others_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One replica has lost its disk, and the broker retries its read for ever."""
    silent = Silent()
    monkeypatch.setattr(
        slice_reader, "LedgerReads", lambda *_, **__: Holes((2, 4, 5), may_have_moved=True)
    )
    monkeypatch.setattr(slice_reader, "BrokerReads", lambda *_: silent)
    part = LedgerPart(5, 2, 6, (Ensemble(0, ("b1", "b2")),), 2)
    settings = ReadSettings(service_url="pulsar://broker")
    reads = slice_reader.FallbackReads(Slice("t", -1, (part,), settings=settings))
    assert values_of(reads, (part,), fails=False) == [b"2", b"4", b"5"]
    assert silent.asked == [3, 6], "its silence says nothing of other entries"


def passed_over(
    caplog: pytest.LogCaptureFixture, reads: Holes, *, entries: int
) -> tuple[list[bytes], list[str]]:
    values = values_of(reads, (LedgerPart(5, 0, entries - 1),), fails=False)
    return values, [each.getMessage() for each in caplog.records]
