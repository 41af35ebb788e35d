"""Defect M20: a lookup is answered from what was true before the topic moved."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.events import NodeWrote, Spoke


@story()
async def test_m20_a_client_that_comes_by_a_stale_answer_does_not_open_the_topic_there(
    sim: Cluster,
) -> None:
    await (await sim.user("p").producer("t")).publish(1)
    first = sim.owner_of("t")
    answers = sim.front.hold_command("LOOKUP_RESPONSE", target="q")
    late = sim.user("q").spawn(sim.user("q").producer_here("t"))
    await sim.until(lambda: bool(answers.messages))
    await first.unload("t", destination=sim.another(first).name)
    second = await sim.moved("t", away_from=first)
    answers.release()
    producer = await late
    await producer.publish(2)
    assert sim.owner_of("t") is second
    assert not any(
        event.command == "SEND_RECEIPT" and event.target == "q" and event.source == first.name
        for _, _, event in sim.history.of(Spoke)
    )
    await sim.inspect()


@story()
async def test_m20_a_broker_that_was_paused_while_it_loaded_does_not_take_the_topic_back(
    sim: Cluster,
) -> None:
    """The broker's lease was good when it asked for it, and gone when it wrote the list."""
    path = sim.log_path("t")
    reading = {
        name: sim.store.hold(client=name, kind="get", path=path, reply=True) for name in sim.brokers
    }
    first_user = sim.user("p")
    creating = first_user.spawn(first_user.producer_here("t"))
    await sim.until(lambda: any(hold.operations for hold in reading.values()))
    loader = next(name for name, hold in reading.items() if hold.operations)
    first = sim.broker(loader)
    first.pause()
    for hold in reading.values():
        hold.release()
    other = await sim.user("q").producer("t")
    await other.publish(2)
    second = sim.owner_of("t")
    assert second is not first

    first.resume()
    await sim.settle()
    await other.publish(2)
    producer = await creating
    await producer.publish(1)
    assert sim.owner_of("t") is second, "the owner kept it"
    await sim.inspect()


@story()
async def test_m20_a_broker_paused_before_it_reads_the_list_fences_nobody(sim: Cluster) -> None:
    """The broker's lease was good when it asked for it; the list that it reads is the next
    owner's."""
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    slow = sim.another(first)
    reading = sim.store.hold(client=slow.name, kind="get", path=sim.log_path("t"))
    await first.unload("t", destination=slow.name)
    await sim.until(lambda: bool(reading.operations))
    slow.pause()
    await producer.publish(2)
    assert sim.owner_of("t") is first, "it is back: nobody wrote the list since"
    ledgers = sim.log_metadata("t").ledgers

    slow.resume()
    reading.release()
    await sim.settle()
    await producer.publish(2)
    assert not _lists_written(sim, slow.name)
    assert sim.log_metadata("t").ledgers == ledgers, "its ledger was not fenced"
    await sim.inspect()


@story()
async def test_m20_a_broker_paused_while_it_recovers_leaves_the_list_to_the_next_owner(
    sim: Cluster,
) -> None:
    """The paused broker goes on before the next owner has written the list, which it would have to
    read anew."""
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    slow = sim.another(first)
    [ledger] = sim.log_metadata("t").ledgers
    recovering = sim.store.hold(
        client=slow.name, kind="get", ledger_id=ledger.ledger_id, reply=True
    )
    await first.unload("t", destination=slow.name)
    await sim.until(lambda: bool(recovering.operations))
    slow.pause()
    taking = sim.store.hold(client=first.name, kind="set", path=sim.log_path("t"))
    producer.send(2)
    await sim.until(lambda: bool(taking.operations))

    slow.resume()
    recovering.release()
    await sim.settle()
    taking.release()
    await sim.until(lambda: producer.pending == 0)
    assert not _lists_written(sim, slow.name)
    assert sim.owner_of("t") is first
    await sim.inspect()


def _lists_written(sim: Cluster, broker: str) -> list[NodeWrote]:
    """What the broker wrote into the topic's list."""
    path = sim.log_path("t")
    return [
        seen
        for _, actor, seen in sim.history.of(NodeWrote)
        if actor == broker and seen.path == path
    ]


@story()
async def test_m20_a_broker_paused_before_it_opens_a_cursor_leaves_it_to_the_next_owner(
    sim: Cluster,
) -> None:
    """The paused broker knows of the log's end as it was, and would cut what was acknowledged
    since."""
    consumer = await sim.user("c").consumer("t")
    producer = await sim.user("p").producer("t")
    await producer.publish(2)
    first = sim.owner_of("t")
    slow = sim.another(first)
    opening = sim.store.hold(client=slow.name, kind="get", path=sim.cursor_path("t"))
    await first.unload("t", destination=slow.name)
    await sim.until(lambda: bool(opening.operations))
    slow.pause()
    await sim.moved("t", away_from=slow)
    await producer.publish(2)
    got = set(await consumer.take(4))
    assert len(got) == 4
    consumer.ack(*consumer.got)
    await sim.settle()  # saved

    slow.resume()
    opening.release()
    await sim.settle()
    assert sim.owner_of("t") is first
    await producer.publish(1)
    assert await consumer.take() == [b"p:4"]
    assert await consumer.has_nothing(for_s=1.0)
    await sim.inspect()
