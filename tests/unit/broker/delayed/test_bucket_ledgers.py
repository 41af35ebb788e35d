"""Buckets of the index of delayed messages, in ledgers."""

from typing import cast

import pytest

from magnetar.broker.features.delayed.bucket_ledgers import BucketLedgers
from magnetar.broker.policies.model import DEFAULTS
from magnetar.broker.topics.non_persistent import VolatileLog
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerWriteError
from tests.unit.broker.schemas.memory_schemas import MemoryLedgers


async def test_a_bucket_that_cannot_be_written_leaves_no_ledger_behind() -> None:
    ledgers = MemoryLedgers()
    buckets = BucketLedgers(cast("LedgerClient", ledgers), VolatileLog("/log"))
    ledgers.fails = True
    for _ in range(3):
        with pytest.raises(LedgerWriteError):
            await buckets.write([b"segment"], DEFAULTS)
    assert not ledgers.ledgers
    ledgers.fails = False
    ledger_id = await buckets.write([b"segment"], DEFAULTS)
    assert ledgers.ledgers == {ledger_id: [b"segment"]}
