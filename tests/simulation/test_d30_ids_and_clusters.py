"""Defect D30: a ledger id that is used again, and the data of another cluster.

What a bookie checks of its cookie, case by case: tests/unit/bookie/test_cookie.py; with real disks:
tests/integration/bookie/test_starting.py.
"""

from random import Random

import pytest

from magnetar.bookie.errors import CookieError
from magnetar.ledger.errors import MetadataUnavailableError
from tests.simulation.bookie import SimBookie
from tests.simulation.simulation import Simulation, scenario
from tests.simulation.store import MetadataServer


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d30_the_id_of_a_deleted_ledger_is_never_given_again(sim: Simulation) -> None:
    # The bookies keep the fence and the entries of a ledger whose metadata is gone.
    given: list[int] = []
    for name in ("a", "b", "c"):
        w = await sim.writer(name)
        await w.add()
        given.append(w.ledger_id)
        await sim.recover(f"r{name}", w.ledger_id)
        await w.client.run(w.client.ledgers.delete(w.ledger_id))
        assert sim.bookie("b1").is_fenced(w.ledger_id)
        w.client.crash()
    assert given == sorted(set(given))


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d30_creations_that_fail_or_race_leave_gaps_and_no_twins(sim: Simulation) -> None:
    random = Random("d30")
    clients = [await sim.client(name) for name in ("a", "b", "c")]
    for _ in range(10):
        client = random.choice(clients)
        accident = random.choice([sim.store.lose_reply, sim.store.lose_request])
        accident(client=client.name, kind=random.choice(["create", "delete"]))
    creations = [client.spawn(client.create(3, 3, 2)) for client in clients for _ in range(5)]
    given: list[int] = []
    for creation in creations:
        try:
            given.append((await creation).ledger_id)
        except MetadataUnavailableError:
            continue
    assert len(given) >= 10
    assert len(given) == len(set(given))


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_d30_a_bookie_of_another_cluster_does_not_start(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    # The metadata store is lost, and set up anew: its ids begin at the beginning again, while b1
    # still has the entry and would soon apply it to another ledger.
    await sim.bookie("b1").stop()
    elsewhere = MetadataServer(sim.loop, sim.history, seed="elsewhere")
    machine = SimBookie(
        "b1", sim.loop, sim.net, elsewhere, sim.history, seed=f"{sim.seed}/elsewhere"
    )
    machine.disk, machine.flushed = sim.bookie("b1").disk, sim.bookie("b1").flushed
    with pytest.raises(CookieError):
        await machine.start()
    # In its own cluster it starts as ever.
    await sim.bookie("b1").restart()
    assert sim.bookie("b1").has(w.ledger_id, 0)
