"""Defect A13: a replica that rotted is copied on (step 4c)."""

from magnetar.ledger.digest import codec_for
from tests.simulation.clients import payload_of
from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.items import closed_ledger


@story(bookies=4, brokers=0)
async def test_a13_only_sound_replicas_are_copied(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    for entry_id in range(4):
        # Of each entry another one of the two replicas that are left.
        sim.bookie("b2" if entry_id % 2 else "b3").corrupt(w.ledger_id, entry_id)
    await sim.recovery().start()
    sim.bookie("b1").lose()
    await sim.wait_repaired()
    metadata = sim.metadata(w.ledger_id)
    for entry_id in range(4):
        packet = sim.bookie("b4").storage.packets[w.ledger_id][entry_id]
        opened = codec_for(metadata).open_packet(packet, entry_id)
        assert opened.payload == payload_of("w", entry_id)


@story(bookies=4, brokers=0)
async def test_a13_a_rotten_replica_that_was_met_is_written_anew(sim: Cluster) -> None:
    w = await closed_ledger(sim)
    sim.bookie("b3").corrupt(w.ledger_id, 2)
    await sim.recovery().start()
    reader = await (await sim.client("r")).open(w.ledger_id)
    sim.net.block("r", "b1")
    for entry_id in range(4):
        await reader.read(entry_id, entry_id)
    await sim.until(lambda: not sim.bookie("b3").rotten)
    await sim.wait_repaired()
