"""What is said of entries that no replica gives."""

import pytest

from magnetar.sdk.spark.errors import UnreachableError
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
