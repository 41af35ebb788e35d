"""The orphan sweep beside a log that is at work: an owner that is very late loses nothing."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from magnetar.cursors.node import cursor_refers
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LogError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import GRACE_MS_DEFAULT, OrphanSweep, Verdict, log_refers
from magnetar.ledger.system import SystemClock
from tests.integration.ledger.cluster import cluster_of
from tests.integration.ledger.ledger_managers import LosingStore
from tests.integration.ledger.log_parts import PATH, append, open_log, read_all


class PausedStore(LosingStore):
    """Does something else before a log's list is written."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.before_set: Callable[[], Awaitable[None]] | None = None

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if path == PATH and self.before_set is not None:
            before, self.before_set = self.before_set, None
            await before()
        return await super().set(path, value, version=version)


async def sweep(store: MetadataStore, client: LedgerClient) -> dict[int, Verdict]:
    """As if everything had happened long ago."""
    owners = {"managed-log": log_refers(store), "cursor": cursor_refers(store)}
    made = OrphanSweep(
        client.manager, owners, now_ms=SystemClock().wall_ms() + GRACE_MS_DEFAULT + 1
    )
    return {finding.ledger_id: finding.verdict async for finding in made.run(delete=True)}


async def test_a_ledger_that_its_log_is_about_to_name_is_sealed_and_the_log_goes_on(
    tmp_path: Path,
) -> None:
    paused: list[PausedStore] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        paused.append(PausedStore(store))
        return paused[0]

    async with cluster_of(3, tmp_path, wrap) as cluster, cluster.client() as client:
        log = await open_log(cluster, client)
        written = [b"%d" % number for number in range(5)]
        for payload in written:
            await append(log, [payload]).outcome
        found: dict[int, Verdict] = {}

        async def sweep_meanwhile() -> None:
            found.update(await sweep(cluster.store, client))

        paused[0].before_set = sweep_meanwhile
        acknowledged = False
        try:
            await log.rotate()
            await append(log, [b"maybe"]).outcome
            acknowledged = True
        except LogError:
            # The owner may stop, since its ledger was closed to it. The append's outcome is unknown
            # then: it may have reached the bookies before the owner heard.
            pass
        assert set(found.values()) == {Verdict.IN_USE, Verdict.SEALED}
        try:
            await log.close()
        except LogError:
            pass
        again = await open_log(cluster, client)
        found_again = await read_all(again)
        with_maybe = [*written, b"maybe"]
        assert found_again == with_maybe or (found_again == written and not acknowledged)
        written = found_again
        await append(again, [b"after"]).outcome
        assert await read_all(again) == [*written, b"after"]
        assert set((await sweep(cluster.store, client)).values()) <= {
            Verdict.IN_USE,
            Verdict.DELETED,
        }
        assert await read_all(again) == [*written, b"after"]
        await again.close()
