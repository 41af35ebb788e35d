"""A topic's transaction log: when the next snapshot is due."""

from typing import cast

import pytest

from magnetar.broker.features.transactions.topic_log import Record, TopicTransactionLog
from magnetar.ledger.errors import LedgerError, LedgerWriteError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.position import Position


class Log:
    """A log that stores everything at once, or nothing."""

    error: LedgerError | None = None

    def append(self, record: Record) -> None:
        if self.error is None:
            record.on_appended(1, 0)
        else:
            record.on_failed(self.error)

    async def rotate(self) -> None: ...

    async def shrink(self, before: Position) -> int:
        return 0


async def test_records_count_until_a_snapshot_that_covers_them_is_durable() -> None:
    stored = Log()
    log = TopicTransactionLog(cast(ManagedLog, stored), part_bytes_max=1000)
    for _ in range(3):
        log.append({"kind": "end"})
    stored.error = LedgerWriteError("no bookies")
    with pytest.raises(LedgerWriteError):
        await log.write_snapshot(dict)
    assert log.records == 3
    stored.error = None

    def take() -> dict[str, object]:
        log.append({"kind": "end"})  # before the snapshot, which covers it
        return {}

    await log.write_snapshot(take)
    assert log.records == 0
