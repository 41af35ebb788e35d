"""A cluster whose ledgers lose copies, a worker that makes them again, and who judges it.

The judge reads every entry from every bookie that should have it, one by one: it shares nothing
with the checker under test but the requests.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import codec_for, master_key, read_key
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.quorum import write_set
from magnetar.ledger.reading.bookie_requests import ask, read_reply_block
from magnetar.ledger.system import SystemClock
from magnetar.ledger.under_replication import EVERYTHING
from magnetar.ledger.wire import Flag, Op, Status, encode_block, encode_read_body
from tests.integration.ledger.cluster import CLIENT_SETTINGS, Cluster, cluster_of
from tests.waiting import until

WAIT_S = 60.0
CLIENT = CLIENT_SETTINGS.model_copy(
    update={"failed_member_rest_s": 0.0, "follow_up_time_s": 0.0, "repair_publish_delay_s": 0.0}
)
"""Holes are published at once."""
WORKER = WorkerSettings(
    open_ledger_grace_s=0.2,
    retry_delay_s=0.1,
    retry_delay_s_max=0.4,
    copy_retry_delay_s=0.02,
    copy_attempts_max=2,
    scan_pause_s=0.01,
)


class Healing:
    """Bookies, a client, and the work items."""

    def __init__(self, cluster: Cluster, client: LedgerClient, store: MetadataStore) -> None:
        self.cluster = cluster
        self.client = client
        self.store = store
        self.clock = SystemClock()
        self.items = WorkItems(store, clock=self.clock, random=random.Random(7))

    async def write(
        self,
        payloads: Sequence[bytes],
        *,
        quorum: tuple[int, int, int] = (3, 3, 2),
        close: bool = True,
        password: bytes | None = None,
    ) -> LedgerMetadata:
        """A ledger with these entries."""
        size, write_quorum, ack_quorum = quorum
        writer = await self.client.create(
            ensemble_size=size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=password,
        )
        for payload in payloads:
            await writer.add(payload)
        if close:
            await writer.close()
        return writer.metadata

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.client.manager.read(ledger_id)).metadata

    async def lose(self, bookie_id: str) -> None:
        """The bookie is gone, and the client knows."""
        await self.cluster.stop_bookie(bookie_id)
        await self.until(lambda: self.client.registry.resolve(bookie_id) is None)

    async def come_back(self, bookie_id: str) -> None:
        await self.cluster.start_bookie(bookie_id)
        await self.cluster.wait_known(self.client, bookie_id)

    async def report_lost(self, bookie_id: str, *ledger_ids: int) -> None:
        """What an auditor does."""
        for ledger_id in ledger_ids:
            await self.items.publish(ledger_id, {bookie_id: [EVERYTHING]})

    async def copy_of(
        self, metadata: LedgerMetadata, bookie_id: str, entry_id: int
    ) -> bytes | None:
        """The payload that a bookie has of an entry; None: no good copy, or no answer."""
        try:
            frame = await ask(
                self.client.channels,
                bookie_id,
                Op.READ,
                encode_read_body(
                    last_entry_id=entry_id, bytes_max=1, master_key=read_key(metadata.password)
                ),
                ledger_id=metadata.ledger_id,
                entry_id=entry_id,
            )
            (packet,) = read_reply_block(frame, bookie_id).packets()
            return codec_for(metadata).open_packet(packet, entry_id).payload
        except LedgerError:
            return None

    async def check_whole(self, ledger_id: int, payloads: Sequence[bytes]) -> LedgerMetadata:
        """Every bookie that the metadata names has every entry that belongs on it."""
        metadata = await self.metadata(ledger_id)
        assert metadata.last_entry_id == len(payloads) - 1
        lacking = [
            (entry_id, bookie_id)
            for entry_id, payload in enumerate(payloads)
            for bookie_id in members(metadata, entry_id)
            if await self.copy_of(metadata, bookie_id, entry_id) != payload
        ]
        assert lacking == []
        return metadata

    async def store_packet(
        self, metadata: LedgerMetadata, bookie_id: str, entry_id: int, packet: bytes
    ) -> None:
        """Have a bookie store bytes as its copy of an entry: it checks no digests."""
        frame = await ask(
            self.client.channels,
            bookie_id,
            Op.ADD,
            master_key(metadata.password) + encode_block([packet]).data,
            ledger_id=metadata.ledger_id,
            entry_id=entry_id,
            flags=Flag.RECOVERY,
        )
        assert frame.status == Status.OK

    async def store_good(
        self, metadata: LedgerMetadata, bookie_id: str, entry_id: int, payload: bytes
    ) -> None:
        """Have a bookie store an entry that fits the end of the ledger."""
        before = metadata.length - len(payload)
        (packet,) = codec_for(metadata).seal(entry_id, entry_id - 1, before, [payload])
        await self.store_packet(metadata, bookie_id, entry_id, packet)

    async def spoil(self, metadata: LedgerMetadata, bookie_id: str, entry_id: int) -> None:
        """The bookie's copy of an entry has another payload than its digest says."""
        (packet,) = codec_for(metadata).seal(entry_id, entry_id - 1, 0, [b"spoilt"])
        await self.store_packet(metadata, bookie_id, entry_id, packet[:-1] + b"?")

    @asynccontextmanager
    async def worker(
        self, settings: WorkerSettings = WORKER, *, holder: str = "worker"
    ) -> AsyncIterator[Worker]:
        worker = Worker(
            self.client,
            self.store,
            clock=self.clock,
            random=random.Random(11),
            holder=holder,
            settings=settings,
        )
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop()

    def is_read_only(self, bookie_id: str) -> bool:
        info = self.client.registry.resolve(bookie_id)
        return info is not None and info.readonly

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        await until(is_so, within_s=WAIT_S)

    async def until_published(self, ledger_id: int) -> None:
        async def is_published() -> bool:
            return await self.items.read(ledger_id) is not None

        await self.until(is_published)

    async def until_no_items(self, *workers: Worker) -> None:
        """Until no item is left, and the workers have ended what they did."""

        async def is_done() -> bool:
            return not await self.items.ids() and not any(
                worker.metrics.items_in_work for worker in workers
            )

        await self.until(is_done)


def members(metadata: LedgerMetadata, entry_id: int) -> Iterator[str]:
    """The bookies of the entry's write set."""
    bookies = metadata.ensemble_for(entry_id)
    for index in write_set(
        entry_id, ensemble_size=len(bookies), write_quorum=metadata.write_quorum
    ):
        yield bookies[index]


@asynccontextmanager
async def healing_of(bookies: int, directory: Path) -> AsyncIterator[Healing]:
    async with (
        cluster_of(bookies, directory) as cluster,
        cluster.client(settings=CLIENT) as client,
    ):
        yield Healing(cluster, client, cluster.store)
