"""Delayed messages: withheld from Shared and Key_Shared until they are due, and never lost."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.features.delayed.delayed_delivery import _READS_MAX, DelayedDelivery
from magnetar.broker.policies.model import DelayedDelivery as DelayedPolicy
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.ledger.errors import LogUnavailableError, NoSuchLedgerError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, parse_topic_name
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.unit.broker.memory_log import ManualClock
from tests.unit.broker.memory_parts import TOPIC, feature_of
from tests.waiting import settle, until

SHARED = pb.CommandSubscribe.Shared
KEY_SHARED = pb.CommandSubscribe.Key_Shared
EXCLUSIVE = pb.CommandSubscribe.Exclusive
FAILOVER = pb.CommandSubscribe.Failover
TICK_MS = 1000


class Delays:
    """A broker whose clock the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.harness = Harness(**settings)
        self.harness.topics.clock = self.clock

    def store(self, *delays_ms: int) -> None:
        """An entry for each delay; 0: none."""
        now_ms = self.clock.now_ms
        self.harness.log.store(
            *(
                entry(b"%d" % at, deliver_at_time=now_ms + delay) if delay else entry(b"%d" % at)
                for at, delay in enumerate(delays_ms)
            )
        )

    async def join(self, permits: int = 1000, sub_type: int = SHARED, **fields: Any) -> Client:
        client = self.harness.client()
        answer = await client.subscribe(subType=sub_type, **fields)
        assert answer.type == BaseCommand.SUCCESS, answer
        client.flow(permits)
        return client

    @property
    def delayed(self) -> DelayedDelivery:
        return feature_of(self.harness.topic, DelayedDelivery)

    async def pass_time(self, milliseconds: int) -> None:
        """And have the timer ring."""
        self.clock.advance(milliseconds)
        await self.ring()

    async def ring(self) -> None:
        for _ in range(10):
            self.delayed.release()
            await settle()

    async def restart(self) -> None:
        """As after kill -9: the topic is another object, on what was stored."""
        self.harness.topic.disconnect_all()
        await settle()

    def policy(self, **values: Any) -> None:
        policies = Policies(delayed_delivery=DelayedPolicy(**values))
        self.harness.policies.topics[parse_topic_name(TOPIC)] = policies
        self.harness.topics.apply_policies()


async def got(client: Client) -> list[int]:
    """Entry ids of what has arrived."""
    await settle()
    return [
        command.message.message_id.entryId
        for command, _ in client.received()
        if command.type == BaseCommand.MESSAGE
    ]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_message_is_withheld_until_it_is_due(sub_type: int) -> None:
    delays = Delays()
    delays.store(5000, 0, 3000)
    client = await delays.join(sub_type=sub_type)
    assert await got(client) == [1]
    await delays.pass_time(1999)
    assert await got(client) == []
    await delays.pass_time(1)  # a tick before its time
    assert await got(client) == [2]
    await delays.pass_time(2000)
    assert await got(client) == [0]
    assert not delays.delayed.withheld


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER])
async def test_exclusive_and_failover_ignore_it(sub_type: int) -> None:
    delays = Delays(failover_delay_ms=0)
    delays.store(50_000, 0)
    client = await delays.join(sub_type=sub_type)
    assert await got(client) == [0, 1]
    assert not delays.delayed.withheld


async def test_the_tick_is_the_limit() -> None:
    delays = Delays()
    delays.store(TICK_MS, TICK_MS + 1)
    assert await got(await delays.join()) == [0]


async def test_subscriptions_share_the_index() -> None:
    delays = Delays()
    delays.store(*[10_000] * 50, 0)
    one = await delays.join(subscription="one")
    assert await got(one) == [50]
    harness = delays.harness
    before = list(harness.log.reads)
    two = await delays.join(subscription="two")
    assert await got(two) == [50]
    # What the first one found out is passed over without a read.
    assert harness.log.reads[len(before) :] == [Position(7, 50)]
    await delays.pass_time(10_000)
    assert await got(one) == [*range(50)]
    assert await got(two) == [*range(50)]


async def test_what_is_due_at_once_waits_as_bits_and_comes_as_there_is_room() -> None:
    delays = Delays(delayed_due_entries_max=10)
    delays.store(*[5000] * 200)
    client = await delays.join(permits=5)
    dispatcher = delays.harness.topic.subscriptions["s"].dispatcher
    assert dispatcher is not None
    await delays.pass_time(5000)
    assert await got(client) == [*range(5)]
    assert dispatcher.waiting_entries <= 10
    received: list[int] = []
    for _ in range(40):
        client.flow(5)
        received += await got(client)
        assert dispatcher.waiting_entries <= 10
    assert received == [*range(5, 200)]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_what_was_acknowledged_while_it_waited_holds_up_nothing(sub_type: int) -> None:
    delays = Delays(delayed_due_entries_max=10)
    delays.store(*[5000] * 40)
    client = await delays.join(permits=1, sub_type=sub_type)
    await delays.pass_time(5000)
    client.ack(*(Position(7, each) for each in range(10, 30)))
    client.flow(100)
    assert await got(client) == [*range(10), *range(30, 40)]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_consumer_that_comes_back_gets_everything_once(sub_type: int) -> None:
    delays = Delays()
    delays.store(5000, 0, 9000, 5000)
    client = await delays.join(sub_type=sub_type)
    assert await got(client) == [1]
    client.ack(Position(7, 1))
    client.connection.lost()
    delays.clock.advance(5000)
    delays.delayed.release()
    client = await delays.join(sub_type=sub_type)
    assert await got(client) == [0, 3]
    await delays.pass_time(5000)
    assert await got(client) == [2]


async def test_acknowledged_ones_are_dropped_when_they_are_due() -> None:
    delays = Delays()
    delays.store(5000, 6000, 7000)
    client = await delays.join()
    client.ack(Position(7, 1))
    await delays.pass_time(7000)
    assert await got(client) == [0, 2]


async def test_seek_finds_what_is_withheld_and_what_is_not() -> None:
    delays = Delays()
    delays.store(5000, 0, 50_000)
    client = await delays.join()
    assert await got(client) == [1]
    client.ack(Position(7, 1))
    await delays.pass_time(5000)
    assert await got(client) == [0]
    client.ack(Position(7, 0))
    await client.seek(message_id=pb.MessageIdData(ledgerId=7, entryId=0))
    await settle()
    client = await delays.join()
    assert await got(client) == [0, 1]
    await delays.pass_time(50_000)
    assert await got(client) == [2]


async def test_the_index_survives_kill_9() -> None:
    delays = Delays(delayed_bucket_records=10, delayed_segment_records=4)
    delays.store(*range(10_000, 10_035), 0)
    client = await delays.join()
    assert await got(client) == [35]
    buckets = delays.harness.topics.buckets[TOPIC]
    # One read brought them all, and so one bucket has them all.
    assert [each.records for each in buckets.named] == [35]
    assert set(buckets.ledgers) == {each.ledger_id for each in buckets.named}
    await delays.restart()
    reads = len(delays.harness.log.reads)
    client = await delays.join()
    assert await got(client) == [35]
    assert delays.harness.log.reads[reads:] == [Position(7, 35)]
    await delays.pass_time(9100)
    first = await got(client)
    assert first == [*range(35)]
    await settle()
    assert buckets.named == []
    assert buckets.ledgers == {}


async def test_what_was_not_stored_is_found_again() -> None:
    delays = Delays()
    delays.store(*range(10_000, 10_035), 0)
    assert await got(await delays.join()) == [35]
    assert not delays.harness.topics.buckets[TOPIC].named
    await delays.restart()
    client = await delays.join()
    assert await got(client) == [35]
    await delays.pass_time(20_000)
    assert await got(client) == [*range(35)]


async def test_a_stored_index_that_cannot_be_read_costs_reads_and_nothing_else() -> None:
    delays = Delays(delayed_bucket_records=10)
    delays.store(*range(10_000, 10_035), 0)
    assert await got(await delays.join()) == [35]
    buckets = delays.harness.topics.buckets[TOPIC]
    assert buckets.named
    await delays.restart()
    buckets.error = LogUnavailableError("the bookies are away")
    await delays.harness.topics.get(parse_topic_name(TOPIC))
    buckets.error = None
    client = await delays.join()
    assert await got(client) == [35]
    await delays.pass_time(20_000)
    assert await got(client) == [*range(35)]


async def test_what_became_due_while_nobody_served_the_topic_comes_at_once() -> None:
    delays = Delays(delayed_bucket_records=10, delayed_segment_records=4)
    delays.store(*[5000] * 20, *[60_000] * 20)
    assert await got(await delays.join()) == []
    await delays.restart()
    delays.clock.advance(30_000)
    client = await delays.join()
    assert await got(client) == [*range(20)]
    await delays.pass_time(30_000)
    assert await got(client) == [*range(20, 40)]


async def test_only_the_next_segments_are_in_memory() -> None:
    delays = Delays(
        delayed_bucket_records=100,
        delayed_segment_records=10,
        delayed_segments_loaded_max=2,
        read_ahead_entries=100,
    )
    delays.store(*[10_000 + at for at in range(1000)])
    client = await delays.join()
    assert await got(client) == []
    for _ in range(20):
        await settle()
    assert len(delays.delayed.stored_ledgers) > 2
    assert delays.delayed.in_memory_bytes <= 2 * 10 * 24 + 256
    await delays.pass_time(20_000)
    for _ in range(100):
        await delays.ring()
    assert sorted(await got(client)) == [*range(1000)]


async def test_storing_goes_on_when_the_bookies_are_back() -> None:
    delays = Delays(delayed_bucket_records=10, delayed_retry_ms=10)
    await delays.harness.topics.get(parse_topic_name(TOPIC))
    buckets = delays.harness.topics.buckets[TOPIC]
    buckets.error = LogUnavailableError("the bookies are away")
    delays.store(*[10_000] * 35, 0)
    assert await got(await delays.join()) == [35]
    await settle()
    assert not buckets.named
    buckets.error = None
    await until(lambda: bool(delays.delayed.stored_ledgers))
    assert [each.records for each in buckets.named] == [35]


async def test_reading_goes_on_when_the_bookies_are_back() -> None:
    delays = Delays(delayed_bucket_records=10, delayed_segment_records=5, delayed_retry_ms=10)
    delays.store(*[10_000 + at for at in range(30)])
    client = await delays.join()
    assert await got(client) == []
    await settle()
    buckets = delays.harness.topics.buckets[TOPIC]
    assert buckets.named
    buckets.error = LogUnavailableError("the bookies are away")
    await delays.pass_time(20_000)
    first = await got(client)
    assert len(first) < 30
    buckets.error = None
    await until(lambda: not delays.delayed.withheld)
    first += await got(client)
    assert sorted(first) == [*range(30)]


async def two_buckets(**settings: Any) -> tuple[Delays, Client]:
    """A topic with thirty entries in each of two stored buckets, and its consumer."""
    delays = Delays(
        delayed_bucket_records=30,
        delayed_segment_records=5,
        delayed_segments_loaded_max=1,
        delayed_retry_ms=10_000,
        read_ahead_entries=30,
        **settings,
    )
    client = await delays.join()
    for first_ms in (10_000, 10_100):
        delays.store(*[first_ms + at for at in range(30)])
        delays.harness.topic.subscriptions["s"].wake()
        for _ in range(10):
            await settle()
    assert await got(client) == []
    assert len(delays.delayed.stored_ledgers) == 2
    return delays, client


async def test_a_bucket_that_cannot_be_read_now_holds_up_no_other() -> None:
    delays, client = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    first = delays.delayed.stored_ledgers[0]
    buckets.broken[first] = LogUnavailableError("its bookies are away")
    await delays.pass_time(20_000)
    received = await got(client)
    assert received[-30:] == [*range(30, 60)]
    assert len(received) < 60, "the rest of the first bucket is withheld until it can be read"
    buckets.broken.clear()
    delays.delayed.retry()
    await delays.ring()
    assert sorted(received + await got(client)) == [*range(60)]


async def test_a_bucket_whose_read_breaks_is_read_again_and_holds_up_no_other() -> None:
    delays, client = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    first = delays.delayed.stored_ledgers[0]
    whole, buckets.ledgers[first] = buckets.ledgers[first], []  # A defect: it returns no segment.
    await delays.pass_time(20_000)
    received = await got(client)
    assert received[-30:] == [*range(30, 60)]
    assert len(received) < 60
    buckets.ledgers[first] = whole
    delays.delayed.retry()
    await delays.ring()
    assert sorted(received + await got(client)) == [*range(60)]


@pytest.mark.parametrize("error", [LogUnavailableError("they are away"), ValueError("a defect")])
async def test_a_bucket_that_can_never_be_read_is_given_up(error: Exception) -> None:
    delays, client = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    first = delays.delayed.stored_ledgers[0]
    buckets.broken[first] = error
    reasons: list[str] = []
    delays.harness.topic.reopen = reasons.append
    await delays.pass_time(20_000)
    received = await got(client)
    assert len(received) < 60
    for _ in range(_READS_MAX - 2):
        delays.delayed.retry()
        await settle()
    assert not reasons
    delays.delayed.retry()
    await settle()
    assert len(reasons) == 1
    await delays.restart()
    client = await delays.join()
    await delays.pass_time(1)
    assert await got(client) == [*range(60)]


async def test_a_topic_is_loaded_again_once_for_a_bucket_of_which_only_a_part_is_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays, _ = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    first, read = delays.delayed.stored_ledgers[0], buckets.read

    async def read_whole_only(ledger_id: int, at: int, last: int) -> list[bytes]:
        if ledger_id == first and at == last:
            raise ValueError("a defect")
        return await read(ledger_id, at, last)

    monkeypatch.setattr(buckets, "read", read_whole_only)
    reasons: list[str] = []
    delays.harness.topic.reopen = reasons.append
    # Its second segment is due, which is not in memory; the later ones are not due yet.
    await delays.pass_time(10_005 - TICK_MS)
    for _ in range(_READS_MAX):
        delays.delayed.retry()
        await settle()
    assert len(reasons) == 1
    assert delays.harness.topics.given_up_buckets == {first}

    await delays.restart()
    client = await delays.join()
    delays.harness.topic.reopen = reasons.append
    await delays.pass_time(20_000)
    for _ in range(_READS_MAX):
        delays.delayed.retry()
        await settle()
    assert len(reasons) == 1
    assert sorted(await got(client)) == [*range(60)]
    assert first not in buckets.ledgers
    assert not delays.harness.topics.given_up_buckets, "nothing lists it any more"


async def test_a_bucket_that_is_read_slowly_holds_up_no_messages_that_were_read() -> None:
    delays, client = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    second = delays.delayed.stored_ledgers[1]
    buckets.read_gates[second] = asyncio.Event()
    delays.clock.advance(20_000)
    delays.delayed.release()
    for _ in range(10):
        await settle()
    assert [*range(10)] == [each for each in await got(client) if each < 10]


async def test_a_bucket_that_is_being_read_again_is_not_read_twice_by_the_next_retry() -> None:
    delays, client = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    first = delays.delayed.stored_ledgers[0]
    buckets.broken[first] = LogUnavailableError("its bookies are away")
    await delays.pass_time(20_000)
    received = await got(client)
    reads, buckets.read_gates[first] = buckets.reads, asyncio.Event()
    for _ in range(2):  # The second one is for another bucket.
        delays.delayed.retry()
        await settle()
    buckets.broken.clear()
    buckets.read_gates[first].set()
    await delays.ring()
    assert sorted(received + await got(client)) == [*range(60)]
    assert buckets.reads - reads == 5, "one read for each segment that was not in memory"


async def test_a_topic_whose_bucket_is_gone_is_loaded_again_and_reads_its_messages() -> None:
    delays, client = await two_buckets()
    buckets = delays.harness.topics.buckets[TOPIC]
    first = delays.delayed.stored_ledgers[0]
    buckets.broken[first] = NoSuchLedgerError("it was deleted by mistake")
    reasons: list[str] = []
    delays.harness.topic.reopen = reasons.append
    delays.clock.advance(10_010 - TICK_MS)
    await delays.ring()
    assert await got(client) == [*range(5)], "the first segment was in memory"
    assert len(reasons) == 1
    await delays.restart()
    client = await delays.join()
    assert await got(client) == [*range(11)]
    assert first not in [each.ledger_id for each in buckets.named]
    await delays.pass_time(10_000)
    assert await got(client) == [*range(11, 60)]


async def test_a_bucket_whose_messages_were_trimmed_while_it_was_read_is_not_missed() -> None:
    delays, client = await two_buckets()
    reasons: list[str] = []
    delays.harness.topic.reopen = reasons.append
    buckets, log = delays.harness.topics.buckets[TOPIC], delays.harness.log
    gate = asyncio.Event()
    buckets.read_gates = dict.fromkeys(delays.delayed.stored_ledgers, gate)
    await delays.pass_time(20_000)
    assert await got(client), "some were in memory; the rest is being read"
    client.ack(*[Position(7, at) for at in range(60)])
    log.roll(8)
    delays.store(600_000)
    await log.unlist(Position(8, 0))
    delays.delayed.store()
    await settle()
    assert not buckets.ledgers
    gate.set()
    await settle()
    assert reasons == []


async def test_many_delayed_messages_take_little_memory() -> None:
    count = 100_000
    delays = Delays(read_ahead_entries=5000)
    due_ms = delays.clock.now_ms + 1_000_000
    await delays.harness.topics.get(parse_topic_name(TOPIC))
    for at in range(count):
        delays.delayed.withholds(Position(7, at), due_ms + at * 7919 % count)
        if not at % 1000:
            await asyncio.sleep(0)
    await until(lambda: delays.delayed.in_memory_bytes <= 16 * count)
    assert len(delays.delayed.withheld) == count
    assert delays.delayed.size_bytes >= 24 * count


async def test_a_clock_that_is_set_back_or_forth_loses_and_doubles_nothing() -> None:
    delays = Delays()
    delays.store(5000, 10_000, 100_000)
    client = await delays.join()
    assert await got(client) == []
    delays.clock.now_ms += 20_000
    await delays.ring()
    assert await got(client) == [0, 1]
    delays.clock.now_ms -= 20_000
    await delays.ring()
    client.ack(Position(7, 0))
    client.connection.lost()
    client = await delays.join()
    assert await got(client) == []  # the second one is withheld once more
    await delays.pass_time(10_000)
    assert await got(client) == [1]
    await delays.pass_time(100_000)
    assert await got(client) == [2]


async def test_policy_off_lets_everything_go() -> None:
    delays = Delays()
    delays.store(50_000, 60_000)
    client = await delays.join()
    assert await got(client) == []
    delays.policy(active=False)
    assert await got(client) == [0, 1]
    delays.store(70_000)
    delays.harness.topic.subscriptions["s"].wake()
    assert await got(client) == [2]


async def test_policy_of_the_tick() -> None:
    delays = Delays()
    delays.store(5000)
    client = await delays.join()
    delays.policy(active=True, tick_ms=4000)
    await delays.pass_time(1000)
    assert await got(client) == [0]


async def test_a_delay_above_the_maximum_is_not_allowed() -> None:
    delays = Delays()
    client = delays.harness.client()
    await client.produce()
    delays.policy(active=True, tick_ms=1000, max_delay_ms=10_000)
    now_ms = delays.clock.now_ms
    client.send_bytes(send_frame(0, 0, payload=entry(deliver_at_time=now_ms + 10_001)))
    error = (await client.next(BaseCommand.SEND_ERROR)).send_error
    assert error.error == pb.NotAllowedError
    assert "10001 ms" in error.message
    client.send_bytes(
        send_frame(0, 1, payload=entry(sequence_id=1, deliver_at_time=now_ms + 10_000))
    )
    assert (await client.next(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 1


async def test_stats_say_how_much_is_withheld_and_why_nothing_comes() -> None:
    delays = Delays()
    delays.store(0, 5000, 6000)
    client = await delays.join()
    assert await got(client) == [0]
    subscription = delays.harness.topic.subscriptions["s"]
    assert subscription.context is not None
    assert subscription.context.delays is not None
    assert subscription.context.delays.withheld == 2
    assert delays.delayed.size_bytes >= 48
    client.ack(Position(7, 0))
    assert subscription.why_idle() is Reason.DELAYED


async def test_a_due_message_that_was_passed_over_is_sent_when_it_was_not_read() -> None:
    """The dispatcher stands behind withheld entries that it never read."""
    delays = Delays()
    delays.store(*[5000, 8000] * 100)
    one = await delays.join(subscription="one")
    two = await delays.join(subscription="two")
    assert await got(one) == await got(two) == []
    await delays.pass_time(5000)
    assert await got(one) == await got(two) == [*range(0, 200, 2)]
    await delays.pass_time(5000)
    assert await got(one) == await got(two) == [*range(1, 200, 2)]


async def test_entries_of_a_trimmed_ledger_are_forgotten() -> None:
    delays = Delays(delayed_bucket_records=5)
    delays.store(*[500_000] * 10)
    client = await delays.join()
    assert await got(client) == []
    log = delays.harness.log
    log.roll(8)
    delays.store(600_000)
    delays.harness.topic.subscriptions["s"].wake()
    client.ack(*[Position(7, at) for at in range(10)])
    await log.unlist(Position(8, 0))
    await log.delete_unlisted()
    delays.delayed.store()
    await settle()
    assert len(delays.delayed.withheld) == 1
    assert not delays.harness.topics.buckets[TOPIC].ledgers
