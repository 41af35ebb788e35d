"""What the client of a simulated bookie does: operations as data, scripted or drawn from a seed."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import NamedTuple

from magnetar.bookie.errors import StorageError
from magnetar.bookie.parts import BookieParts
from tests.simulation.storing.client import Client
from tests.simulation.storing.collecting import Collecting
from tests.simulation.storing.inspect import Inspection
from tests.simulation.storing.machine import Machine
from tests.simulation.storing.model import Checkpointed, Deleted


class Do(NamedTuple):
    """One operation. What `ledger`, `first`, `entries` and `size` mean is the business of `what`:

    - add, recover, sparse: `entries` entries from `first` on, payloads of `size` bytes; the second
      by a recovery add, the third with every third id only
    - fence, lac (of `first`), delete
    - read: `entries` entries from `first` on, at most `size` bytes
    - settle: wait for all answers; wait: let `entries` ms pass
    - checkpoint: wait until it has ended; checkpoint_soon: and go on; flush: the storage alone
    - look: at everything, and compare
    - full: `size` bytes more can be written; room: there is room again
    - collect: a round of garbage collection on the logs, with a compaction of all that are not
      full of live entries; collect_soon: and go on
    """

    what: str
    ledger: int = 0
    first: int = 0
    entries: int = 1
    size: int = 60


class Player:
    """Carries operations out on a machine."""

    def __init__(self, machine: Machine, client: Client) -> None:
        self._machine = machine
        self._client = client
        self._checkpoint: asyncio.Task[None] | None = None
        self._collecting: Collecting | None = None
        self._collection: asyncio.Task[None] | None = None

    async def play(self, todo: Sequence[Do]) -> None:
        for each in todo:
            await self._do(each)
        await self._join_checkpoint()
        await self._join_collection()
        await self._client.settle()

    async def _do(self, do: Do) -> None:
        client = self._client
        if do.what in ("add", "recover", "sparse"):
            step = 3 if do.what == "sparse" else 1
            ids = range(do.first, do.first + do.entries * step, step)
            client.add(do.ledger, ids, do.size, recovery=do.what == "recover")
        elif do.what == "fence":
            client.fence(do.ledger)
        elif do.what == "lac":
            client.write_lac(do.ledger, do.first)
        elif do.what == "read":
            await client.read(do.ledger, do.first, do.first + do.entries - 1, do.size)
        elif do.what == "settle":
            await client.settle()
        elif do.what == "wait":
            await asyncio.sleep(do.entries / 1000)
        elif do.what == "checkpoint":
            await self._join_checkpoint()
            await self._run_checkpoint()
        elif do.what == "checkpoint_soon":
            await self._join_checkpoint()
            self._checkpoint = asyncio.create_task(self._run_checkpoint())
        elif do.what == "flush":
            await self._tolerate(self._parts.storage.flush())
        elif do.what == "delete":
            await client.settle()
            self._delete(do.ledger)
        elif do.what == "look":
            await client.settle()  # an add that waits for room would come in between
            inspection = Inspection(self._parts, lambda: client.is_troubled)
            await inspection.compare(client.model.ledgers)
        elif do.what == "full":
            self._machine.disk.bytes_left = do.size
            client.is_full = True
        elif do.what == "room":
            self._machine.disk.bytes_left = None
        else:
            assert do.what in ("collect", "collect_soon"), do
            await self._join_collection()
            self._collection = asyncio.create_task(self._collect())
            if do.what == "collect":
                await self._join_collection()

    @property
    def _parts(self) -> BookieParts:
        assert self._machine.parts is not None
        return self._machine.parts

    async def _run_checkpoint(self) -> None:
        began = self._client.model.events
        if await self._tolerate(self._parts.checkpointer.checkpoint()):
            self._client.say(Checkpointed(began))

    async def _join_checkpoint(self) -> None:
        if self._checkpoint is not None:
            await self._checkpoint
            self._checkpoint = None

    def _delete(self, ledger_id: int) -> None:
        parts = self._parts
        if parts.ledgers.delete(ledger_id, parts.clock.monotonic_s()):
            self._client.say(Deleted(ledger_id))

    async def _collect(self) -> None:
        if self._collecting is None:
            self._collecting = Collecting(self._machine, self._parts)
        await self._tolerate(self._collecting.collect())

    async def _join_collection(self) -> None:
        if self._collection is not None:
            await self._collection
            self._collection = None

    async def _tolerate(self, work: Coroutine[object, object, None]) -> bool:
        """Whether it came to its end; where the disk fails, it may not."""
        try:
            await work
        except (StorageError, OSError):
            if not self._client.is_troubled:
                raise
            return False
        return True
