"""Topics on real ledgers: loading, takeover by another broker, restart, stopping."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.broker.base.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.base.naming import log_path, topic_of
from magnetar.broker.broker import Broker
from magnetar.broker.cluster.ownership import Tenure
from magnetar.ledger.errors import LogFencedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_list import LogList
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import BaseCommand, TopicName, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.broker.wire_client import WireClient
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.log_parts import append


async def test_messages_and_acknowledgements_survive_a_restart(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.produce(TOPIC)
            await client.subscribe(TOPIC, permits=100)
            for sequence_id in range(10):
                client.publish(sequence_id, b"%d" % sequence_id)
            frames = [await client.next_frame() for _ in range(20)]
            ids = [
                command.message.message_id
                for command, _ in frames
                if command.type == BaseCommand.MESSAGE
            ]
            client.ack(*ids[:4], ids[6])
            await client.close()
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.subscribe(TOPIC, permits=100)
            assert await client.bodies(5) == [b"4", b"5", b"7", b"8", b"9"]
            await client.close()


async def test_stopping_tells_clients_to_look_again(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.produce(TOPIC)
            await client.subscribe(TOPIC)
        kinds = {(await client.next()).type for _ in range(2)}
        assert kinds == {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}
        await client.closed()
        await client.close()


async def test_a_topic_that_another_broker_takes_is_given_up_and_can_be_taken_back(
    tmp_path: Path,
) -> None:
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster) as one,
        broker_on(cluster, seed=4) as two,
    ):
        old = await WireClient.open(one.port)
        await old.produce(TOPIC)
        await old.publish_ok(0, b"from one")
        new = await WireClient.open(two.port)
        await new.subscribe(TOPIC, permits=10)
        assert await new.bodies(1) == [b"from one"]
        # The first broker learns of it when it tries to write: no receipt, but "look again".
        old.publish(1, b"never stored by one")
        await old.next(BaseCommand.CLOSE_PRODUCER)
        assert one.services.topics.fenced == 1
        # Looked up again, the topic is taken back: nothing but a hint stood in the way.
        answer = await old.produce(TOPIC)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS
        await old.publish_ok(1, b"from one again")
        await old.subscribe(TOPIC, permits=10, subscription="all")
        assert await old.bodies(2) == [b"from one", b"from one again"]
        await old.close()
        await new.close()


async def test_requests_wait_for_bookies_instead_of_failing(tmp_path: Path) -> None:
    async with cluster_of(0, tmp_path) as cluster, broker_on(cluster) as broker:
        client = await WireClient.open(broker.port)
        subscribing = asyncio.create_task(client.subscribe(TOPIC))
        other = await WireClient.open(broker.port)
        other.send(BaseCommand.PING, ping=pb.CommandPing())
        await other.next(BaseCommand.PONG)
        await cluster.start_bookie("b1")
        assert (await subscribing).type == BaseCommand.SUCCESS
        await client.close()
        await other.close()


async def test_what_cannot_be_loaded_in_time_is_given_up(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, cluster.client() as crashed:
        log = await ManagedLog.open(
            crashed,
            cluster.store,
            log_path(topic_of(TOPIC)),
            LogConfig(ensemble_size=1, write_quorum=1, ack_quorum=1),
            clock=SystemClock(),
            random=random.Random(1),
        )
        await append(log, [b"what must be recovered first"]).outcome
        (bookie,) = cluster.bookies
        await cluster.stop_bookie(bookie)
        await check_that_loading_is_given_up(cluster)


async def check_that_loading_is_given_up(cluster: Cluster) -> None:
    async with broker_on(cluster, topic_load_timeout_ms=50, topic_load_retry_ms=10) as broker:
        producing = await WireClient.open(broker.port)
        answer = await producing.produce(TOPIC)
        assert answer.error.error == pb.ServerError.ServiceNotReady
        subscribing = await WireClient.open(broker.port)
        try:
            await subscribing.subscribe(TOPIC)
        except ConnectionResetError:
            pass
        else:
            raise AssertionError("SUBSCRIBE was answered")
        await producing.close()
        await subscribing.close()


async def test_a_backlog_is_read_from_bookies_in_order(tmp_path: Path) -> None:
    count = 5_000
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(
            cluster, read_ahead_bytes=20_000, ledger_entries_max=1_000, ledger_age_min_s=0
        ) as broker,
    ):
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        for sequence_id in range(count):
            client.publish(sequence_id, b"%d" % sequence_id)
        for _ in range(count):
            await client.next(BaseCommand.SEND_RECEIPT)
        await client.subscribe(TOPIC, permits=count)
        assert await client.bodies(count) == [b"%d" % each for each in range(count)]
        await client.close()


async def test_topics_are_listed_and_existence_is_told(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            for number, name in enumerate(("b c", "a/b"[:1])):
                await client.produce(f"persistent://public/default/{name}", number)
            await client.close()
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            client.send(
                BaseCommand.GET_TOPICS_OF_NAMESPACE,
                getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                    request_id=1, namespace="public/default"
                ),
            )
            answer = (await client.next()).getTopicsOfNamespaceResponse
            assert list(answer.topics) == [
                "persistent://public/default/a",
                "persistent://public/default/b c",
            ]
            missing = await client.subscribe(
                "persistent://public/default/none", force_topic_creation=False
            )
            assert missing.error.error == pb.ServerError.TopicNotFound
            there = await client.subscribe(
                "persistent://public/default/a", force_topic_creation=False
            )
            assert there.type == BaseCommand.SUCCESS
            await client.close()


async def test_unsubscribing_deletes_the_cursor_for_good(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            client = await WireClient.open(broker.port)
            await client.subscribe(TOPIC)
            client.send(
                BaseCommand.UNSUBSCRIBE,
                unsubscribe=pb.CommandUnsubscribe(consumer_id=0, request_id=9),
            )
            await client.next(BaseCommand.SUCCESS)
            await client.close()
        path = "/managed-ledgers/public/default/persistent/topic"
        assert await cluster.store.children(path) == []


@pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
async def test_a_topic_is_loaded_once_even_if_somebody_hears_late_that_it_may_be(
    tmp_path: Path, kind: str
) -> None:
    name = parse_topic_name(f"{kind}://public/default/once")
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        topics = broker.services.topics
        check = topics.creation.check
        is_asked, answer = asyncio.Event(), asyncio.Event()

        async def check_slowly(name: TopicName, *, may_create: bool) -> bool:
            found = await check(name, may_create=may_create)
            is_asked.set()
            await answer.wait()
            return found

        topics.creation.check = check_slowly  # type: ignore[method-assign]
        slow = asyncio.ensure_future(topics.get(name))
        await is_asked.wait()
        topics.creation.check = check  # type: ignore[method-assign]
        topic = await topics.get(name)
        answer.set()
        assert await slow is topic
        assert not topic.is_closed


async def test_who_heard_that_a_topic_exists_waits_for_its_deletion_and_hears_that_it_is_gone(
    tmp_path: Path,
) -> None:
    """The caller began to load the topic while it was being deleted, and must not be told to try
    again."""
    name = parse_topic_name(TOPIC)
    async with cluster_of(1, tmp_path) as cluster:
        async with broker_on(cluster) as broker:
            await broker.services.topics.get(name)
        async with broker_on(cluster) as broker:
            topics = broker.services.topics
            check, finish = topics.creation.check, topics.removal._deletion.finish
            is_asked, answer = asyncio.Event(), asyncio.Event()
            is_marked, go_on = asyncio.Event(), asyncio.Event()

            async def check_slowly(name: TopicName, *, may_create: bool) -> bool:
                found = await check(name, may_create=may_create)
                is_asked.set()
                await answer.wait()
                return found

            async def finish_slowly(name: TopicName, may_own: Callable[[], bool]) -> None:
                is_marked.set()
                await go_on.wait()
                await finish(name, may_own)

            topics.creation.check = check_slowly  # type: ignore[method-assign]
            late = asyncio.ensure_future(topics.get(name, may_create=False))
            await is_asked.wait()
            topics.creation.check = check  # type: ignore[method-assign]
            topics.removal._deletion.finish = finish_slowly  # type: ignore[method-assign]
            deleting = asyncio.ensure_future(topics.removal.delete(name, is_forced=True))
            await is_marked.wait()
            answer.set()
            for _ in range(10):
                await asyncio.sleep(0)
            assert topics.served(name) is None
            go_on.set()
            await deleting
            with pytest.raises(TopicNotFoundError):
                await late


class LaterClock(SystemClock):
    """`later_s` have passed."""

    later_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


async def _delete_while_the_lease_is_awaited(
    owner: Broker, waiting: Broker, name: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the former owner delete a topic when another broker has found it, and waits for the
    lease."""
    ownership = waiting.services.topics._loader._ownership
    acquire = ownership.acquire

    async def acquire_late(topic: TopicName, *, timeout_s: float) -> Tenure:
        if topic == name:
            monkeypatch.setattr(ownership, "acquire", acquire)
            removal = owner.services.topics.removal
            await removal.delete(name, is_forced=True)
            if name.partition_index >= 0:
                await owner.services.topics.partitioned.mark_deleted(name.partitioned)
                await owner.services.topics.partitioned.forget(name.partitioned)
        return await acquire(topic, timeout_s=timeout_s)

    monkeypatch.setattr(ownership, "acquire", acquire_late)


@pytest.mark.parametrize("is_auto", [False, True])
async def test_a_topic_that_is_deleted_while_its_next_owner_waits_does_not_come_back_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_auto: bool
) -> None:
    name = parse_topic_name(TOPIC)
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster) as one,
        broker_on(cluster, seed=4, auto_topic_creation=is_auto) as two,
    ):
        await one.services.topics.get(name)
        await _delete_while_the_lease_is_awaited(one, two, name, monkeypatch)
        if is_auto:  # It is created for the client that asks for it, like any other.
            assert await two.services.topics.get(name)
            return
        with pytest.raises(TopicNotFoundError, match="automatic topic creation is off"):
            await two.services.topics.get(name)
        assert await cluster.store.exists(log_path(name)) is None


async def test_a_partition_whose_topic_is_deleted_during_a_long_wait_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a partition only the record is asked for at first."""
    whole = parse_topic_name("persistent://public/default/whole")
    name = whole.partition(0)
    clock = LaterClock()
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster) as one,
        broker_on(cluster, seed=4, clock=clock, auto_topic_creation=False) as two,
    ):
        await one.services.topics.partitioned.create(whole, 1)
        await _delete_while_the_lease_is_awaited(one, two, name, monkeypatch)
        acquire = two.services.topics._loader._ownership.acquire

        async def acquire_long(topic: TopicName, *, timeout_s: float) -> Tenure:
            clock.later_s += 2
            return await acquire(topic, timeout_s=timeout_s)

        monkeypatch.setattr(two.services.topics._loader._ownership, "acquire", acquire_long)
        with pytest.raises(TopicNotFoundError):
            await two.services.topics.get(name)
        assert await cluster.store.exists(log_path(name)) is None


async def test_a_load_that_goes_on_after_its_lease_was_given_up_leaves_the_next_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former owner's session still holds; only the lease is gone."""
    name = parse_topic_name(TOPIC)
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster) as one,
        broker_on(cluster, seed=4) as two,
    ):
        topics = one.services.topics
        load = LogList.load
        is_late = True

        async def late(self: LogList, *, may_create: bool = True) -> None:
            nonlocal is_late
            if is_late:
                is_late = False
                topics.ends.drop([name], "its bundle was not unloaded in time")
                monkeypatch.setattr(topics._loader._ownership, "acquire", lost)
                await two.services.topics.get(name)
            await load(self, may_create=may_create)

        async def lost(_topic: TopicName, *, timeout_s: float) -> Tenure:
            raise ServiceNotReadyError("another broker serves it")

        monkeypatch.setattr(LogList, "load", late)
        with pytest.raises(ServiceNotReadyError):
            await topics.get(name)
        client = await WireClient.open(two.port)
        await client.produce(TOPIC)
        await client.publish_ok(0)
        assert two.services.topics.fenced == 0
        await client.close()


async def test_a_topic_with_transactions_is_dropped_once_and_served_again(tmp_path: Path) -> None:
    """The transaction log, once abandoned, asks for a reload of the topic. The topic is closing
    by then, and must not be dropped again."""
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, transaction_coordinators=1) as broker,
    ):
        client = await WireClient.open(broker.port)
        txn = await client.begin(TOPIC)
        await client.produce(TOPIC, txn_enabled=True)
        await client.publish_ok(0, b"in it", txn=txn)
        topics = broker.services.topics
        topics.ends.drop([parse_topic_name(TOPIC)], "a test says so")
        await client.next(BaseCommand.CLOSE_PRODUCER)
        await client.produce(TOPIC, txn_enabled=True)
        await client.publish_ok(1, b"behind")
        assert topics.fenced == 1
        await client.close()


async def test_the_log_of_a_topic_that_was_taken_over_while_it_was_loaded_is_abandoned(
    tmp_path: Path,
) -> None:
    """A fenced cursor says that it was taken over. The log may not know of it yet."""
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        topics = broker.services.topics
        client = await WireClient.open(broker.port)
        await client.produce(TOPIC)
        topic = await topics.get(parse_topic_name(TOPIC))
        log = topic.log
        assert isinstance(log, ManagedLog)
        abandoned = asyncio.Event()
        log.on_fenced(abandoned.set)
        topic.is_closed = True  # as `fence` leaves a topic that is not served yet
        with pytest.raises(LogFencedError, match="taken over while it was loaded"):
            topics.ends.check_wanted(topic, log)
        assert abandoned.is_set()
        await client.close()
