"""What is said of entries that no replica gives."""

import pytest

from magnetar.ledger.errors import LedgerError, NoSuchEntryError, NoSuchLedgerOnBookieError
from magnetar.sdk.spark.errors import DataLossError, EntryLossError, UnreachableError
from magnetar.sdk.spark.ledger_reads import LedgerReads
from magnetar.sdk.spark.slices import BookieSecurity, Ensemble, LedgerPart

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
