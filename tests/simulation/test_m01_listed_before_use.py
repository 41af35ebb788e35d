"""Defect M1 of managed ledgers: entries in a ledger that the list does not name (rule 2.2)."""

from collections.abc import Sequence

import pytest

from magnetar.ledger.errors import LogError, MetadataUnavailableError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.settings import LogConfig
from tests.simulation.clients import SimClient
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.noticing import assert_noticed, mutations_param
from tests.simulation.simulation import Simulation, scenario

PATH = "/managed-ledgers/log"


class _Batch:
    """An entry of a log, and what was told of it."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.position: tuple[int, int] | None = None
        self.error: LogError | None = None

    @property
    def payloads(self) -> Sequence[bytes]:
        return [self._payload]

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        self.position = ledger_id, first_entry_id

    def on_failed(self, error: LogError) -> None:
        self.error = error


async def _open(client: SimClient) -> ManagedLog:
    config = LogConfig(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        ledger_entries_max=2,
        ledger_age_min_s=0.0,
    )
    return await client.run(
        ManagedLog.open(
            client.ledgers, client.store, PATH, config, clock=client.clock, random=client.random
        )
    )


def _append(client: SimClient, log: ManagedLog, payload: bytes) -> _Batch:
    batch = _Batch(payload)
    client.process.context.copy().run(log.append, batch)
    return batch


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_m01_nothing_goes_to_a_ledger_that_the_list_does_not_name(sim: Simulation) -> None:
    w = await sim.client("w")
    log = await _open(w)
    (first,) = log.ledgers
    listing = sim.store.hold(client="w", kind="set", path=PATH)

    # The ledger is full. The next one is there, but the list does not name it yet.
    batches = [_append(w, log, payload) for payload in (b"a", b"b")]
    await sim.until(lambda: bool(listing.operations))
    batches += [_append(w, log, payload) for payload in (b"c", b"d")]
    await sim.until(lambda: all(each.position for each in batches))
    assert {each.position[0] for each in batches if each.position} == {first.ledger_id}

    # The owner is gone, and its list was never written. Nothing that was confirmed is missing.
    w.crash()
    listing.drop()
    o = await sim.client("o")
    again = await _open(o)
    kept = again.ledgers[0]
    assert (kept.ledger_id, kept.entries) == (first.ledger_id, 4)
    await o.run(again.close())


@scenario(bookies=3, quorum=(3, 3, 2))
async def test_m01_a_log_that_ends_leaves_out_the_ledger_that_was_listed_and_never_used(
    sim: Simulation,
) -> None:
    w = await sim.client("w")
    log = await _open(w)
    (first,) = log.ledgers
    # The next ledger is listed, and its owner does not hear of it; nor of how its end fares.
    sim.store.lose_reply(client="w", kind="set", path=PATH)
    sim.store.refuse(client="w", kind="get", path=PATH, count=1_000)
    batches = [_append(w, log, payload) for payload in (b"a", b"b")]
    await sim.until(lambda: all(each.position for each in batches))
    await sim.settle()
    with pytest.raises(MetadataUnavailableError):
        await w.run(log.terminate())
    sim.store.accidents.clear()
    assert await w.run(log.terminate()) == (first.ledger_id, 1)

    o = await sim.client("o")
    again = await _open(o)
    assert again.terminated == (first.ledger_id, 1)
    assert [each.ledger_id for each in again.ledgers] == [first.ledger_id]
    await o.run(again.close())


@mutations_param("M1")
def test_the_test_of_m01_notices_when_its_rule_is_off(mutation: Mutation) -> None:
    assert_noticed(mutation, test_m01_nothing_goes_to_a_ledger_that_the_list_does_not_name)
