"""Ledgers that lack copies are whole again without anybody's help, and nothing else changes.

What happens on real bookies, with their own storage: `tests/integration/ledger/autorecovery`.
"""

from structlog.testing import capture_logs

from magnetar.ledger.autorecovery.work_items import WorkItems, disable_path
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.replication_lock import UnreleasedLocks, lock_path
from magnetar.ledger.under_replication import item_path
from magnetar.ledger.wire import Op, Status
from tests.simulation.clients import FAST, payload_of
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger, lose, publish, publisher
from tests.simulation.cluster.recovery import WORKER
from tests.simulation.record import write_set_of

PROMPT = FAST.model_copy(
    update={"failed_member_rest_s": 0.0, "follow_up_time_s": 0.0, "repair_publish_delay_s": 0.0}
)
"""Holes are published at once."""
PATIENT = WORKER.model_copy(update={"open_ledger_grace_s": 3600.0})
AVAILABLE = "/ledgers/available"


async def worker(sim: Cluster, name: str = "ar1", **settings: object) -> WorkerMetrics:
    """Start a process that repairs, and nothing else; what it counts."""
    recovery = sim.recovery(name, has_auditor=False, worker=WORKER.model_copy(update=settings))
    await recovery.start()
    assert recovery.running is not None
    return recovery.running.worker.metrics


async def until_no_items(sim: Cluster, *metrics: WorkerMetrics) -> None:
    """Until no item is left, and the workers have ended what they did."""
    deadline_s = sim.loop.time() + 120.0
    while sim.missing_copies() or any(each.items_in_work for each in metrics):
        assert sim.loop.time() < deadline_s, f"left: {sim.missing_copies()}"
        await sim.sleep(0.1)  # not after every callback: all items are looked at


async def away(sim: Cluster, bookie_id: str) -> None:
    """The bookie does not run, and is registered no more."""
    sim.bookie(bookie_id).crash(power=False)
    await sim.until(lambda: sim.store.tree.version(f"{AVAILABLE}/{bookie_id}") is None)
    await sim.sleep(0.1)


def names(metadata: LedgerMetadata) -> set[str]:
    return {bookie_id for fragment in metadata.ensembles for bookie_id in fragment.bookies}


def has_sound(sim: Cluster, metadata: LedgerMetadata, bookie_id: str, entry_id: int) -> bool:
    """Whether the bookie has a copy of the entry that is what the writer wrote."""
    packet = sim.bookie(bookie_id).storage.packets.get(metadata.ledger_id, {}).get(entry_id)
    try:
        found = packet is not None and codec_for(metadata).open_packet(packet, entry_id).payload
    except DigestMismatchError:
        return False
    return found == payload_of("w", entry_id)


def check_whole(sim: Cluster, ledger_id: int, entries: int) -> LedgerMetadata:
    """Every bookie that the metadata names has every entry that belongs on it."""
    metadata = sim.metadata(ledger_id)
    assert metadata.last_entry_id == entries - 1
    lacking = [
        (entry_id, bookie_id)
        for entry_id in range(entries)
        for bookie_id in write_set_of(metadata, entry_id)
        if not has_sound(sim, metadata, bookie_id, entry_id)
    ]
    assert lacking == []
    return metadata


def is_locked(sim: Cluster, ledger_id: int) -> bool:
    return sim.store.tree.version(lock_path("/ledgers", ledger_id)) is not None


# Closed ledgers


@story(bookies=4, brokers=0)
async def test_only_the_lost_member_of_a_ledger_changes(sim: Cluster) -> None:
    w = await closed_ledger(sim, 10)
    before = sim.metadata(w.ledger_id)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await until_no_items(sim, await worker(sim))
    after = check_whole(sim, w.ledger_id, 10)
    assert after.last_fragment.bookies == ("b4", "b2", "b3")
    assert (after.state, after.last_entry_id, after.length) == (
        before.state,
        before.last_entry_id,
        before.length,
    )


@story(bookies=4, brokers=0)
async def test_a_bookie_that_came_back_is_left_where_it_is(sim: Cluster) -> None:
    w = await closed_ledger(sim, 10)
    before = sim.metadata(w.ledger_id)
    await away(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await sim.bookie("b1").start()
    metrics = await worker(sim)
    await until_no_items(sim, metrics)
    assert metrics.entries_copied == 0
    assert sim.metadata(w.ledger_id) == before


@story(bookies=5, brokers=0)
async def test_an_unregistered_bookie_that_nobody_reported_is_left_to_the_auditor(
    sim: Cluster,
) -> None:
    w = await closed_ledger(sim, 10)
    await away(sim, "b1")
    await lose(sim, "b2")
    await publish(sim, w.ledger_id, "b2")
    await until_no_items(sim, await worker(sim))
    assert "b1" in names(sim.metadata(w.ledger_id))
    assert "b2" not in names(sim.metadata(w.ledger_id))


@story(bookies=6, brokers=0, quorum=(5, 3, 2))
async def test_striped_ledgers_are_copied_by_write_sets(sim: Cluster) -> None:
    w = await closed_ledger(sim, 40)
    metadata = sim.metadata(w.ledger_id)
    its_entries = sum("b3" in write_set_of(metadata, each) for each in range(40))
    await lose(sim, "b3")
    await publish(sim, w.ledger_id, "b3")
    metrics = await worker(sim)
    await until_no_items(sim, metrics)
    assert metrics.entries_copied == its_entries == 24
    assert "b3" not in names(check_whole(sim, w.ledger_id, 40))


@story(bookies=3, brokers=0)
async def test_a06_holes_are_filled_in_place_when_there_is_no_other_bookie(sim: Cluster) -> None:
    """Ensemble size = cluster size. The writer publishes the hole itself (rule 4.5)."""
    await sim.client("w", PROMPT)
    w = await sim.writer()
    await w.add(10)
    await away(sim, "b2")
    for _ in range(30):
        await w.add()
    await w.close()
    await sim.bookie("b2").start()
    await sim.until(lambda: w.ledger_id in sim.missing_copies())
    metrics = await worker(sim)
    await until_no_items(sim, metrics)
    assert metrics.entries_copied == 30
    assert metrics.members_replaced == 0
    check_whole(sim, w.ledger_id, 40)


@story(bookies=4, brokers=0)
async def test_a08_the_lock_is_held_from_the_first_copy_to_the_swap(sim: Cluster) -> None:
    """A bookie that is given copies must not drop them as surplus before they are named."""
    w = await closed_ledger(sim, 10)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    copying = sim.net.hold(client="ar1", op=Op.ADD, reply=True)
    metrics = await worker(sim)
    await sim.until(lambda: bool(copying.messages))
    assert is_locked(sim, w.ledger_id)
    x = await publisher(sim)
    items = WorkItems(x.store, clock=x.clock, random=x.random)
    taken = await x.run(items.take_lock(w.ledger_id, "b4", unclear=UnreleasedLocks()))
    assert taken is None
    copying.release()
    await until_no_items(sim, metrics)
    check_whole(sim, w.ledger_id, 10)


@story(bookies=4, brokers=0)
async def test_a14_a_ledger_deleted_while_it_is_copied_is_not_tried_again(sim: Cluster) -> None:
    w = await closed_ledger(sim, 10)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    copying = sim.net.hold(client="ar1", op=Op.ADD, reply=True)
    metrics = await worker(sim)
    await sim.until(lambda: bool(copying.messages))
    await w.client.run(w.client.ledgers.delete(w.ledger_id))
    with capture_logs() as lines:
        copying.release()
        await until_no_items(sim, metrics)
    assert metrics.ledgers_deleted == 1
    (line,) = [each for each in lines if each["event"] == "ledger_is_replicated"]
    assert line["deleted"] is True


@story(bookies=4, brokers=0)
async def test_an_unknown_answer_is_no_absence_and_no_presence(sim: Cluster) -> None:
    """Rule 5.5: the item stays until the bookie gives a clear answer."""
    w = await closed_ledger(sim, 10)
    sim.net.refuse(Status.UNKNOWN_LEDGER_STATE, client="ar1", bookie="b2", op=Op.LIST_ENTRIES)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    metrics = await worker(sim)
    await sim.until(lambda: metrics.failures.get("Unclear", 0) >= 2)
    assert w.ledger_id in sim.missing_copies()
    sim.net.heal_all()
    await until_no_items(sim, metrics)
    check_whole(sim, w.ledger_id, 10)


# Workers


@story(bookies=4, brokers=0)
async def test_two_workers_share_the_items(sim: Cluster) -> None:
    ledgers = [(await closed_ledger(sim, 3)).ledger_id for _ in range(40)]
    await lose(sim, "b1")
    # One at a time, both there from the start: neither has them all before the other looks.
    both = [await worker(sim, name, ledgers_at_once=1) for name in ("ar1", "ar2")]
    await sim.until(lambda: all(each.scans for each in both))
    for ledger_id in ledgers:
        await publish(sim, ledger_id, "b1")
    await until_no_items(sim, *both)
    done = [each.items_finished for each in both]
    assert sum(done) == len(ledgers)
    assert min(done) > 0
    for ledger_id in ledgers:
        check_whole(sim, ledger_id, 3)


@story(bookies=4, brokers=0)
async def test_a_switched_off_cluster_is_left_alone(sim: Cluster) -> None:
    w = await closed_ledger(sim, 10)
    x = await publisher(sim)
    await x.run(x.store.create(disable_path("/ledgers")))
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    metrics = await worker(sim)
    await sim.until(lambda: metrics.disabled == 1)
    await sim.sleep(30.0)
    assert metrics.items_taken == 0
    await x.run(x.store.delete(disable_path("/ledgers")))
    await until_no_items(sim, metrics)
    assert metrics.disabled == 0
    check_whole(sim, w.ledger_id, 10)


@story(bookies=3, brokers=0)
async def test_a_worker_that_stops_gives_back_its_locks(sim: Cluster) -> None:
    w = await closed_ledger(sim, 10)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    metrics = await worker(sim, retry_delay_s_max=600.0, retry_delay_s=600.0)
    await sim.until(lambda: metrics.items_deferred == 1)
    assert is_locked(sim, w.ledger_id)
    await sim.recovery("ar1").stop()
    assert not is_locked(sim, w.ledger_id)
    assert w.ledger_id in sim.missing_copies()


@story(bookies=4, brokers=0)
async def test_an_item_of_another_format_is_left_as_it_is(sim: Cluster) -> None:
    w = await closed_ledger(sim, 10)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    tree, path = sim.store.tree, item_path("/ledgers", w.ledger_id)
    sound = tree.get(path)
    tree.set(path, b'{"format": 2}', version=sound.version)
    metrics = await worker(sim)
    await sim.until(lambda: metrics.items_deferred == 1)
    assert tree.get(path).value == b'{"format": 2}'


# Ledgers that somebody writes, or wrote: the tail is never touched, and the writer has time


@story(bookies=4, brokers=0)
async def test_a03_the_tail_of_an_open_ledger_is_not_touched_within_the_grace(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    await w.add(20)
    before = sim.metadata(w.ledger_id)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    metrics = await worker(sim, open_ledger_grace_s=3600.0)
    await sim.until(lambda: metrics.failures.get("OpenLedger", 0) == 1)
    await sim.sleep(60.0)
    assert metrics.entries_copied == 0
    assert sim.metadata(w.ledger_id) == before
    assert is_locked(sim, w.ledger_id)


@story(bookies=4, brokers=0)
async def test_a_finished_fragment_of_an_open_ledger_is_repaired_while_it_is_written(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    await w.add(10)
    await lose(sim, "b1")
    await w.add(10)
    assert len(w.writer.metadata.ensembles) == 2
    await publish(sim, w.ledger_id, "b1")
    metrics = await worker(sim, open_ledger_grace_s=3600.0)
    await until_no_items(sim, metrics)
    assert metrics.ledgers_fenced == 0
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN
    # The writer's next change of the metadata meets the one that the worker made.
    await w.add()
    await w.close()
    assert "b1" not in names(check_whole(sim, w.ledger_id, 21))


@story(bookies=3, brokers=0)
async def test_a_hole_in_the_tail_that_is_filled_meanwhile_costs_the_writer_nothing(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    for _ in range(20):
        await w.add()
    # The last add confirmed that the bookies can prove is one behind.
    await publish(sim, w.ledger_id, missing={"b1": [(3, 18)]})
    metrics = await worker(sim)
    await until_no_items(sim, metrics)
    assert metrics.ledgers_fenced == 0
    assert metrics.items_deferred == 0
    assert sim.metadata(w.ledger_id).state is LedgerState.OPEN


@story(bookies=3, brokers=0)
async def test_a_hole_in_the_tail_is_filled_when_the_ledger_is_closed(sim: Cluster) -> None:
    await sim.client("w", PROMPT)
    w = await sim.writer()
    await away(sim, "b3")
    for _ in range(20):
        await w.add()
    await sim.bookie("b3").start()
    await sim.until(lambda: w.ledger_id in sim.missing_copies())
    metrics = await worker(sim, open_ledger_grace_s=3600.0)
    await sim.until(lambda: metrics.items_deferred == 1)
    assert metrics.entries_copied == 0
    await w.close()
    await sim.recovery("ar1").stop()  # which would wait for the end of the grace
    other = await worker(sim, "ar2")
    await until_no_items(sim, other)
    assert other.ledgers_fenced == 0
    check_whole(sim, w.ledger_id, 20)


@story(bookies=4, brokers=0)
async def test_a_ledger_that_cannot_be_closed_waits_and_is_whole_in_the_end(
    sim: Cluster,
) -> None:
    w = await sim.writer()
    await w.add(20)
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    sim.net.refuse(Status.IO_ERROR, client="ar1", op=Op.READ_LAC)
    metrics = await worker(sim)
    await sim.until(lambda: "RecoveryUndecidedError" in metrics.failures)
    assert w.ledger_id in sim.missing_copies()
    sim.net.heal_all()
    await until_no_items(sim, metrics)
    check_whole(sim, w.ledger_id, 20)


@story(bookies=4, brokers=0)
async def test_a_ledger_in_recovery_whose_recoverer_died_is_closed(sim: Cluster) -> None:
    w = await sim.writer()
    await w.add(20)
    x = await publisher(sim)
    ledger = await x.run(x.ledgers.manager.read(w.ledger_id))
    await x.run(x.ledgers.manager.write(ledger.metadata.in_recovery(), version=ledger.version))
    await lose(sim, "b1")
    await publish(sim, w.ledger_id, "b1")
    await until_no_items(sim, await worker(sim))
    assert check_whole(sim, w.ledger_id, 20).state is LedgerState.CLOSED
