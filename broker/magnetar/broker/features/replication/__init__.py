"""Geo-replication: topics are copied between clusters."""

from magnetar.broker.features.replication.receiving import (
    MARKS_CURSOR,
    Receiving,
    ReceivingSurroundings,
)

__all__ = ["MARKS_CURSOR", "Receiving", "ReceivingSurroundings"]
