"""An owner reads its log after every replica was moved elsewhere (rule 2.6, defect D23)."""

from collections.abc import Sequence
from random import Random

from magnetar.ledger.errors import LogError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.settings import LogConfig
from tests.simulation.clients import FAST
from tests.simulation.mover import Mover
from tests.simulation.simulation import Simulation, scenario


class Batch:
    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.is_appended = False

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        self.is_appended = True

    def on_failed(self, error: LogError) -> None:
        raise AssertionError(error)


@scenario(bookies=6, quorum=(3, 3, 2))
async def test_the_owner_of_a_log_that_was_terminated_finds_replicas_that_moved(
    sim: Simulation,
) -> None:
    c = await sim.client("c")
    c.placement.ensembles = [("b1", "b2", "b3")]
    config = LogConfig(ensemble_size=3, write_quorum=3, ack_quorum=2)
    log = await c.run(
        ManagedLog.open(c.ledgers, c.store, "/a-log", config, clock=c.clock, random=Random("log"))
    )
    batch = Batch([b"one", b"two"])
    c.process.context.copy().run(log.append, batch)
    await sim.until(lambda: batch.is_appended)
    await c.run(log.terminate())

    mover_client = await sim.client("m")
    mover = Mover(mover_client, FAST)
    random = Random("moves")
    [ledger] = log.ledgers
    for bookie_id in ("b1", "b2", "b3"):
        sim.bookie(bookie_id).lose()
        await sim.sleep(3.0)  # its session has ended: nothing new is put there
        while any(bookie_id in each.bookies for each in sim.metadata(ledger.ledger_id).ensembles):
            await mover_client.run(mover.move(ledger.ledger_id, random))
    entries = await c.run(log.read(log.first_position(), entries_max=10, bytes_max=1 << 20))
    assert [entry.payload for entry in entries] == [b"one", b"two"]
