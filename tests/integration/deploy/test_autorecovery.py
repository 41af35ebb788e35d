"""Auto-recovery as real processes: bookies die with their disks, auditors die, operators look."""

import asyncio
import json
import random
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.ledger.autorecovery.controls import Controls
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.autorecovery.worker import make_checker
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.under_replication import EVERYTHING
from tests.http_calls import call
from tests.integration.deploy.commands import Ended, magnetar
from tests.real_cluster import RealCluster
from tests.waiting import until, wait_until

WAIT_S = 60.0
ENVIRONMENT = {
    # A shorter pause of ZooKeeper, or of the machine, would end the sessions of all at once.
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": "6000",
    "MAGNETAR_AUDITOR_SETTLE_S": "0.5",
    "MAGNETAR_AUDITOR_GATHER_S": "0.1",
    "MAGNETAR_AUDITOR_SURVEY_INTERVAL_S": "0.2",
    "MAGNETAR_AUDITOR_AUDIT_AGAIN_S": "2",
    "MAGNETAR_WORKER_OPEN_LEDGER_GRACE_S": "1",
    "MAGNETAR_WORKER_RETRY_DELAY_S": "0.5",
}
PAYLOADS = [b"%06d" % number * 20 for number in range(200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Bookies, of which tests may lose five, two processes of auto-recovery, and no broker."""
    with RealCluster(
        tmp_path_factory.mktemp("autorecovery"),
        bookies=8,
        brokers=0,
        autorecovery=2,
        environment=ENVIRONMENT,
    ) as made:
        yield made


@asynccontextmanager
async def client_of(cluster: RealCluster) -> AsyncIterator[tuple[LedgerClient, MetadataStore]]:
    store = await open_store(cluster.metadata_url)
    client = LedgerClient(
        store, network=SystemNetwork(), clock=SystemClock(), random=random.Random(1)
    )
    await client.start()
    try:
        yield client, store
    finally:
        await client.close()
        await store.close()


async def write_ledgers(client: LedgerClient, count: int, bookie_id: str) -> list[int]:
    """Closed ledgers of three copies, of which at least some lie on the bookie."""
    ids: list[int] = []
    named = 0
    while len(ids) < count or not named:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*map(writer.add, PAYLOADS))
        await writer.close()
        ids.append(writer.ledger_id)
        named += bookie_id in writer.metadata.ensembles[0].bookies
    return ids


async def wait_whole(client: LedgerClient, ledger_ids: list[int], *, without: str) -> None:
    """Wait until none of the ledgers names the bookie, and each has all its copies."""
    checker, left = make_checker(client), list(ledger_ids)

    async def are_whole() -> bool:
        while left:
            metadata = (await client.manager.read(left[-1])).metadata
            named = {name for each in metadata.ensembles for name in each.bookies}
            check = await checker.check(metadata, {})
            if without in named or not check.is_whole or check.missing():
                return False
            left.pop()
        return True

    await until(are_whole, "all ledgers are whole", within_s=WAIT_S)


def victim_of(cluster: RealCluster) -> str:
    """A bookie that still runs."""
    return next(
        name for name in cluster.names if name.startswith("bookie-") and cluster.is_running(name)
    )


async def status_of(cluster: RealCluster) -> dict[str, Any]:
    """What `recovery status` says."""
    found: dict[str, Any] = json.loads((await recovery(cluster, "status", "--json")).stdout)
    return found


async def recovery(cluster: RealCluster, *arguments: str) -> Ended:
    return await asyncio.to_thread(
        magnetar, "admin", "recovery", *arguments, "--metadata", cluster.metadata_url
    )


async def bookies(cluster: RealCluster, *arguments: str) -> Ended:
    return await asyncio.to_thread(
        magnetar, "admin", "bookies", *arguments, "--metadata", cluster.metadata_url
    )


def page_of(cluster: RealCluster, name: str) -> str:
    """A process's /metrics."""
    return call(cluster.http_url(name), "GET", "/metrics", expect=200).text


def metric(cluster: RealCluster, name: str, metric_name: str) -> float:
    """One number of a process's /metrics."""
    found = re.search(
        rf"^magnetar_autorecovery_{metric_name} (\S+)$", page_of(cluster, name), re.MULTILINE
    )
    assert found, f"{name} shows no {metric_name}"
    return float(found[1])


def auditor_of(cluster: RealCluster) -> str:
    """The process that says that it is the auditor; empty if none does now."""
    running = [name for name in ("autorecovery-1", "autorecovery-2") if cluster.is_running(name)]
    found = [name for name in running if metric(cluster, name, "auditor_is_auditor") == 1.0]
    return found[0] if len(found) == 1 else ""


async def wait_auditor(cluster: RealCluster) -> str:
    found = ""

    def is_found() -> bool:
        nonlocal found
        found = auditor_of(cluster)
        return found != ""

    await asyncio.to_thread(wait_until, is_found, "an auditor", within_s=WAIT_S)
    return found


async def wait_metric(cluster: RealCluster, metric_name: str, value: float) -> None:
    """Wait until the auditor, whoever that is by then, shows the value."""

    def is_so() -> bool:
        auditor = auditor_of(cluster)
        return auditor != "" and metric(cluster, auditor, metric_name) == value

    await asyncio.to_thread(wait_until, is_so, f"{metric_name} {value}", within_s=WAIT_S)


async def wait_lost(cluster: RealCluster, name: str) -> None:
    """Wait until the bookie counts as lost, and the auditor knows of it."""

    async def is_lost() -> bool:
        return bool((await status_of(cluster))["bookies"][name] == "lost")

    await until(is_lost, f"{name} is lost", within_s=WAIT_S)
    states = (await status_of(cluster))["bookies"].values()
    await wait_metric(cluster, "auditor_bookies_lost", list(states).count("lost"))


def total(cluster: RealCluster, metric_name: str) -> float:
    """Sum of a metric over both processes of auto-recovery, whichever is the auditor."""
    return sum(metric(cluster, f"autorecovery-{number}", metric_name) for number in (1, 2))


async def wait_more(cluster: RealCluster, metric_name: str, than: float) -> None:
    await asyncio.to_thread(
        wait_until,
        lambda: total(cluster, metric_name) > than,
        f"more {metric_name} than {than}",
        within_s=WAIT_S,
    )


async def stop_for_good(cluster: RealCluster, name: str) -> None:
    """The bookie ends in order, so that nobody waits for the end of its session; its disk goes."""
    assert await asyncio.to_thread(cluster.terminate, name) == 0
    shutil.rmtree(cluster.directory / name)


def lose(cluster: RealCluster, name: str) -> None:
    """The bookie dies, and its disk with it."""
    cluster.kill(name)
    shutil.rmtree(cluster.directory / name)


async def test_after_a_bookie_is_lost_with_its_disk_every_ledger_is_whole_again_by_itself(
    cluster: RealCluster,
) -> None:
    async with client_of(cluster) as (client, _):
        auditor, victim = await wait_auditor(cluster), victim_of(cluster)
        assert (await recovery(cluster, "auditor")).stdout.strip() == auditor
        ledgers = await write_ledgers(client, 12, victim)
        lose(cluster, victim)
        await wait_whole(client, ledgers, without=victim)
        await wait_lost(cluster, victim)
        await wait_metric(cluster, "auditor_under_replicated_ledgers", 0.0)
        status = await status_of(cluster)
        assert (status["under_replicated_ledgers"], status["lost"]) == (0, {})
        for ledger_id in ledgers:
            reader = await client.open(ledger_id)
            assert await reader.read(0, len(PAYLOADS) - 1) == PAYLOADS


async def test_switched_off_nothing_is_copied_and_the_list_shows_what_waits(
    cluster: RealCluster,
) -> None:
    async with client_of(cluster) as (client, store):
        victim = victim_of(cluster)
        ledgers = await write_ledgers(client, 4, victim)
        assert (await recovery(cluster, "disable")).stdout == "switched off\n"
        await wait_metric(cluster, "auditor_is_disabled", 1.0)
        await stop_for_good(cluster, victim)
        await wait_lost(cluster, victim)
        auditor = await wait_auditor(cluster)
        asked = await recovery(cluster, "trigger-audit")
        assert asked.stdout == f"requested an audit from {auditor}\n"
        named = [
            ledger_id
            for ledger_id in ledgers
            if victim in (await client.manager.read(ledger_id)).metadata.ensembles[0].bookies
        ]
        # The auditor waits, too; somebody else may still publish what it found.
        items = WorkItems(store, clock=SystemClock(), random=random.Random(2))
        await items.publish(named[0], {victim: [EVERYTHING]})
        await wait_metric(cluster, "auditor_under_replicated_ledgers", 1.0)
        status = await status_of(cluster)
        assert (status["enabled"], status["in_work"]) == (False, 0)
        assert status["bytes_to_copy"] == sum(map(len, PAYLOADS))
        (line, summary) = (await recovery(cluster, "list")).stdout.splitlines()
        assert line.startswith(f"{named[0]}  lacks {victim}  about 0.0 MB  since ")
        assert line.endswith("  waiting")
        assert summary == "1 ledgers, about 0.0 MB to copy"
        assert (await recovery(cluster, "enable")).stdout == "switched on\n"
        await wait_whole(client, ledgers, without=victim)


async def test_a_bookie_that_restarts_within_the_delay_loses_no_ledger(
    cluster: RealCluster,
) -> None:
    async with client_of(cluster) as (client, store):
        name = victim_of(cluster)
        ledgers = await write_ledgers(client, 4, name)
        await wait_metric(cluster, "auditor_under_replicated_ledgers", 0.0)
        assert (await recovery(cluster, "delay", "600")).stdout == "600 s\n"
        await wait_metric(cluster, "auditor_delay_seconds", 600.0)
        before = [(await client.manager.read(ledger_id)).metadata for ledger_id in ledgers]
        scheduled = total(cluster, "auditor_delayed_audits_scheduled_total")
        cancelled = total(cluster, "auditor_delayed_audits_cancelled_total")
        assert await asyncio.to_thread(cluster.terminate, name) == 0
        await wait_more(cluster, "auditor_delayed_audits_scheduled_total", scheduled)
        await asyncio.to_thread(cluster.start, name)
        await wait_more(cluster, "auditor_delayed_audits_cancelled_total", cancelled)
        after = [(await client.manager.read(ledger_id)).metadata for ledger_id in ledgers]
        assert after == before
        await Controls(store).write_delay(None)


async def test_when_the_auditor_is_killed_the_other_process_takes_over(
    cluster: RealCluster,
) -> None:
    async with client_of(cluster) as (client, _):
        first, victim = await wait_auditor(cluster), victim_of(cluster)
        ledgers = await write_ledgers(client, 4, victim)
        cluster.kill(first)
        lose(cluster, victim)
        second = await wait_auditor(cluster)
        assert second != first
        await wait_whole(client, ledgers, without=victim)
    await asyncio.to_thread(cluster.start, first)


async def test_with_recovery_switched_off_a_bookie_is_recovered_and_decommissioned_by_hand(
    cluster: RealCluster,
) -> None:
    async with client_of(cluster) as (client, store):
        victim = victim_of(cluster)
        ledgers = await write_ledgers(client, 4, victim)
        refused = await bookies(cluster, "decommission", victim, "--yes")
        assert refused.status == 2
        assert refused.messages() == [
            f"magnetar: bookie {victim} is registered, and so running: nothing was changed. Stop "
            f"it for good and wait until its session has ended, or name another bookie"
        ]
        controls = Controls(store)
        await controls.disable(now_ms=0)
        await stop_for_good(cluster, victim)
        await wait_lost(cluster, victim)
        planned = (await bookies(cluster, "recover", victim, "--dry-run")).stdout.splitlines()
        named = len(planned) - 1
        assert planned[-1] == f"{named} would be repaired"
        done = await bookies(cluster, "recover", victim, "--yes")
        assert done.stdout.splitlines()[-1] == f"{named} repaired", done
        await wait_whole(client, ledgers, without=victim)
        assert (await bookies(cluster, "decommission", victim, "--yes")).status == 1
        await controls.enable()
        done = await bookies(cluster, "decommission", victim, "--yes")
        assert done.stdout == f"{victim} is decommissioned; 0 ledgers were moved\n", done
        listed = (await bookies(cluster, "list")).stdout
        assert victim not in listed
        assert f"{victim_of(cluster)}  writable  address 127.0.0.1:" in listed
        again = await bookies(cluster, "decommission", victim, "--yes")
        assert again.status == 2
        assert "was decommissioned already" in again.stderr


async def test_a_metadata_url_without_a_cluster_is_refused(
    cluster: RealCluster,
) -> None:
    url = f"{cluster.metadata_url}/elsewhere"
    for arguments in (("recovery", "disable"), ("bookies", "list")):
        ended = await asyncio.to_thread(magnetar, "admin", *arguments, "--metadata", url)
        assert ended.status == 2
        assert ended.messages() == [f"magnetar: {url} holds no cluster; check the URL"]


async def test_sigterm_ends_the_process_with_status_zero_and_hands_the_office_over(
    cluster: RealCluster,
) -> None:
    first = await wait_auditor(cluster)
    assert await asyncio.to_thread(cluster.terminate, first) == 0
    assert await wait_auditor(cluster) != first
    await asyncio.to_thread(cluster.start, first)


async def test_inside_the_bookies_it_does_the_same(tmp_path: Path) -> None:
    with RealCluster(
        tmp_path,
        bookies=4,
        brokers=0,
        autorecovery=0,
        environment=ENVIRONMENT,
        arguments={"bookie": ["--autorecovery"]},
    ) as cluster:
        async with client_of(cluster) as (client, _):
            ledgers = await write_ledgers(client, 4, "bookie-1")
            lose(cluster, "bookie-1")  # the auditor, as a rule: it was the first to start
            await wait_whole(client, ledgers, without="bookie-1")

        def auditors() -> float:
            names = [f"bookie-{number}" for number in (2, 3, 4)]
            return sum(metric(cluster, name, "auditor_is_auditor") for name in names)

        await until(lambda: auditors() == 1, "one of the bookies left is the auditor")
        assert "magnetar_bookie_add_requests_total" in page_of(cluster, "bookie-2")
        assert cluster.terminate("bookie-2") == 0
