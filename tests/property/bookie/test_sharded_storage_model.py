"""A storage over several directories against the dictionary that one directory is held to."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.bookie.engine.sharded_storage import ShardedStorage
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.storage import LedgerStorage
from tests.ledger_storage import make_storage
from tests.property.bookie.test_storage_model import Operation, Run, operations


class ShardedRun(Run):
    """One example on two shards: the two ledgers of the model lie in different ones."""

    turns_to_begin = 2

    def _make(self) -> LedgerStorage:
        return ShardedStorage(
            [make_storage(self._directory / str(number), disk=self._disk) for number in range(2)]
        )

    async def _flush_failing(self, calls_until_failure: int) -> None:
        await self._join_flushes()
        self._disk.calls_until_failure = calls_until_failure
        try:
            await self._storage.flush()
        except StorageIOError:
            # One shard may have flushed and the other not: as if the process had ended here, only
            # the next flush of all says what is durable.
            self._disk.calls_until_failure = None
            await self._storage.flush()
        self._disk.calls_until_failure = None
        self._durable = self._model.copy()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, min_size=30, max_size=80))
def test_shards_answer_as_a_dictionary_would(todo: list[Operation]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(ShardedRun(Path(directory)).run(todo))
