"""Defect D31: whoever listens at an address is taken for the bookie that was registered there.

Two bookies are killed and come back at each other's addresses. b1 is there first, at the address
under which b2 is registered until its session ends: for a while that address stands for both.
"""

import pytest

from magnetar.ledger.errors import RecoveryUndecidedError
from magnetar.ledger.wire import Op
from tests.simulation.clients import SimClient
from tests.simulation.simulation import Simulation, scenario


async def swap(sim: Simulation, client: SimClient) -> None:
    """b1 listens at b2's address, and the client takes it for the address of both."""
    b1, b2 = sim.bookie("b1"), sim.bookie("b2")
    b1.crash(power=False)
    await sim.sleep(sim.store.session_timeout_s / 2)
    b2.crash(power=False)
    b1.move_to("b2")
    b2.move_to("b1")
    await b1.start()
    await sim.until(lambda: addresses_known_to(client) == ("b2", "b2"))


def addresses_known_to(client: SimClient) -> tuple[str, ...]:
    known = client.ledgers.registry.registered()
    return tuple(known[name].host for name in ("b1", "b2") if name in known)


@scenario(bookies=2, quorum=(2, 2, 2))
async def test_d31_two_copies_never_go_to_one_bookie(sim: Simulation) -> None:
    client = await sim.client("w")
    await (await sim.writer()).add()
    await swap(sim, client)

    w = await sim.writer()
    w.append(3)
    await sim.settle()
    assert not w.acked
    await sim.bookie("b2").start()
    await sim.until(lambda: addresses_known_to(client) == ("b2", "b1"))
    await sim.until(lambda: w.pending == 0)
    for entry_id in w.acked:
        assert sim.bookie("b1").has(w.ledger_id, entry_id)
        assert sim.bookie("b2").has(w.ledger_id, entry_id)
    again = await sim.writer("w2")
    await again.add(2)
    assert sim.bookie("b2").has(again.ledger_id, 1)


@scenario(bookies=2, quorum=(2, 1, 1))
async def test_d31_what_another_bookie_denies_ends_no_ledger(sim: Simulation) -> None:
    w = await sim.writer()
    await w.add()
    await w.add()
    assert sim.bookie("b2").has(w.ledger_id, 1)
    client = await sim.client("r")
    await swap(sim, client)

    with pytest.raises(RecoveryUndecidedError):
        await sim.recover("r", w.ledger_id)
    await sim.bookie("b2").start()
    await sim.until(lambda: addresses_known_to(client) == ("b2", "b1"))
    assert (await sim.recover("r", w.ledger_id)).last_add_confirmed == 1


@scenario(bookies=2, quorum=(2, 2, 2))
async def test_d31_a_bookie_that_is_not_meant_obeys_nothing(sim: Simulation) -> None:
    client = await sim.client("w")
    await swap(sim, client)
    w = await sim.writer()
    adds = sim.net.hold(client="w", bookie="b1", op=Op.ADD)
    w.append()
    await sim.settle()
    assert adds.seen == 1  # what is meant for b1
    adds.release()
    await sim.settle()
    assert not w.acked
