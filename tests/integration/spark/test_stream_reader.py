"""The reader of streams over restarts, failures, growth and loss, called as Spark calls it."""

import asyncio
from typing import Any

import pulsar
import pytest

from magnetar.sdk import Client
from magnetar.sdk.spark.errors import CorruptDataError, DataLossError
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.integration.spark.driven import Checkpoint, DrivenQuery
from tests.integration.spark.support import options_for, publish_in_chunks
from tests.standalone import Standalone


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def held_at(server: Standalone, topic: str, subscription: str = "held") -> str:
    cursors = admin(server, "GET", f"{path_of(topic)}/internalStats")["cursors"]
    return str(cursors[subscription]["markDeletePosition"])


def read(options: dict[str, str], checkpoint: Checkpoint, **how: Any) -> DrivenQuery:
    with DrivenQuery(options, checkpoint) as query:
        return query.run_available(**how)


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_every_message_once_over_restarts_within_limits(
    server: Standalone, client: pulsar.Client, topic: str, mode: str
) -> None:
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        maxEntriesPerTrigger="40",
        subscriptionName="held",
        readMode=mode,
    )
    publish_to(client, topic, numbered(0, 100), batching_enabled=False)
    checkpoint = Checkpoint()
    query = read(options, checkpoint)
    assert query.values == numbered(0, 100)
    assert query.batch_sizes == [40, 40, 20]
    # A message in chunks may have begun with the last entry.
    assert held_at(server, topic).endswith(":98")

    publish_to(client, topic, numbered(100, 130), batching_enabled=True)
    assert read(options, checkpoint).values == numbered(100, 130)
    assert read(options, checkpoint).values == []


def test_a_query_that_begins_at_the_end_reads_what_comes_while_it_plans_its_first_micro_batch(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Spark asks where a query begins when it plans the first micro-batch, and when it runs it."""
    options = options_for(server, topic=topic, startingOffsets="latest", subscriptionName="held")
    publish_to(client, topic, numbered(0, 10), batching_enabled=False)
    checkpoint = Checkpoint()
    published = [numbered(10, 20), numbered(20, 30)]

    def on_step(name: str) -> None:
        if name in ("initialOffset", "latestOffset") and published:
            publish_to(client, topic, published.pop(0), batching_enabled=False)

    with DrivenQuery(options, checkpoint) as query:
        query.on_step = on_step
        assert query.run_available().values == numbered(10, 30)


def test_a_topic_to_which_nothing_comes_has_no_backlog_while_others_are_read(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """A quota by age would stop its producers for good."""
    idle, busy = f"{topic}-idle", f"{topic}-busy"
    options = options_for(
        server, topics=f"{idle},{busy}", startingOffsets="earliest", subscriptionName="held"
    )
    publish_to(client, idle, numbered(0, 10), batching_enabled=False)
    checkpoint = Checkpoint()
    for first in (0, 10, 20):
        publish_to(client, busy, numbered(first, first + 10), batching_enabled=False)
        read(options, checkpoint)
    assert held_at(server, idle).endswith(":9")
    assert held_at(server, busy).endswith(":28")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("available_now", [True, False], ids=["available now", "goes on"])
def test_a_query_that_has_read_everything_has_no_backlog(
    server: Standalone,
    client: pulsar.Client,
    topic: str,
    times: int,
    available_now: bool,
) -> None:
    """Spark says that a micro-batch is done when there is another one, which a quota by age that
    refuses producers would not let come."""
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        maxEntriesPerTrigger="4",
        **({} if available_now else {"idleReleaseMs": "0"}),
    )
    checkpoint = Checkpoint()
    for number in range(times):
        publish_to(client, topic, numbered(10 * number, 10 * number + 10), batching_enabled=False)
        query = read(options, checkpoint, available_now=available_now)
        assert query.values == numbered(10 * number, 10 * number + 10)
        assert held_at(server, topic).endswith(f":{10 * number + 9}")
    read(options, checkpoint, available_now=available_now)
    assert held_at(server, topic).endswith(f":{10 * times - 1}")


def test_a_query_that_was_restarted_in_its_last_micro_batch_has_no_backlog(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Nothing new comes after the restart, which runs that micro-batch again."""
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        maxEntriesPerTrigger="4",
    )
    publish_to(client, topic, numbered(0, 10), batching_enabled=False)
    checkpoint = Checkpoint()
    read(options, checkpoint, available_now=True, fails_in=2)
    assert read(options, checkpoint, available_now=True).values == numbered(8, 10)
    assert held_at(server, topic).endswith(":9")


def test_a_query_whose_progress_is_not_logged_yet_holds_what_it_has_read(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """With asynchronous progress tracking Spark goes on before it has logged what is done: a crash
    begins with the last micro-batch that was logged."""
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        maxEntriesPerTrigger="4",
        idleReleaseMs="0",
    )
    publish_to(client, topic, numbered(0, 10), batching_enabled=False)
    assert read(options, Checkpoint(), commits=False).values == numbered(0, 10)
    assert held_at(server, topic).endswith(":-1")


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "restarts"])
def test_a_query_holds_the_end_of_its_last_micro_batch_for_a_while(
    server: Standalone, client: pulsar.Client, topic: str, restarts: bool
) -> None:
    """A message in chunks may have begun with it. Neither further looks that find nothing, nor a
    restart, nor `commit` of that micro-batch take it for older than it is."""
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    publish_to(client, topic, numbered(0, 10), batching_enabled=False)
    checkpoint = Checkpoint()
    with DrivenQuery(options, checkpoint) as first, DrivenQuery(options, checkpoint) as second:
        for query in (first, first, second if restarts else first):
            query.run_available()
            assert held_at(server, topic).endswith(":8")
        publish_to(client, topic, numbered(10, 11), batching_enabled=False)
        places: list[str] = []

        def on_step(name: str) -> None:
            if name == "commit":
                places.append(held_at(server, topic))

        query.on_step = on_step
        query.run_available(fails_in=1)
    assert [each.rpartition(":")[2] for each in places] == ["8"]


async def test_a_message_in_chunks_that_has_just_begun_is_held_when_a_query_ends(
    server: Standalone, topic: str
) -> None:
    async with Client(server.url) as client, await client.producer(topic) as producer:
        await producer.send(b"first")
        fields = MessageMetadata(
            uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=4
        )
        await producer.send_entry(
            b"ab", messages=0, sequence_id=5, extra=fields.SerializePartialToString()
        )
        await producer.flush()
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    await asyncio.to_thread(read, options, Checkpoint(), available_now=True)
    assert (await asyncio.to_thread(held_at, server, topic)).endswith(":-1")


def test_bytes_limit_a_batch(server: Standalone, client: pulsar.Client, topic: str) -> None:
    publish_to(client, topic, [b"x" * 10_000] * 30, batching_enabled=False)
    options = options_for(
        server, topic=topic, startingOffsets="earliest", maxBytesPerTrigger="101000"
    )
    sizes = read(options, Checkpoint()).batch_sizes
    assert sum(sizes) == 30
    assert max(sizes) <= 10


def test_a_batch_that_was_planned_and_not_finished_is_read_again_alike(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """The restarted process is asked for the slices of the log before anything else."""
    options = options_for(server, topic=topic, startingOffsets="earliest")
    publish_to(client, topic, numbered(0, 50))
    checkpoint = Checkpoint()
    assert read(options, checkpoint, fails_in=0).values == []
    publish_to(client, topic, numbered(50, 80))

    query = read(options, checkpoint)

    assert query.values == numbered(0, 80)
    assert query.batch_sizes == [50, 30]


def test_small_partitions_share_tasks_alike_each_time_a_batch_is_run(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Sizes are averages, which change: what is in the checkpoint counts. One of an older version
    joins nothing."""
    admin(server, "PUT", f"{path_of(topic)}/partitions", 20)
    options = options_for(server, topic=topic, startingOffsets="earliest")
    for partition in range(20):
        publish_to(client, f"{topic}-partition-{partition}", numbered(partition, partition + 1))
    checkpoint = Checkpoint()
    with DrivenQuery(options, checkpoint) as query:
        assert query.run_available(fails_in=0).values == []
    for partition in range(0, 20, 2):
        publish_to(client, f"{topic}-partition-{partition}", [b"x" * 1_000_000])
    (offset,) = checkpoint.planned

    def tasks() -> list[list[str]]:
        with DrivenQuery(options, Checkpoint([offset])) as query:
            query.run_available(fails_in=1)
            assert sorted(query.values) == sorted(numbered(0, 20))
            return query.tasks[0]

    first = tasks()
    assert 8 <= len(first) < 20
    assert sum(map(len, first)) == 20
    assert tasks() == first
    del offset["joined"]
    assert [len(each) for each in tasks()] == [1] * 20


def test_new_partitions_and_topics_are_read_from_their_beginning(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    name = topic.rpartition("/")[2]
    first, second = f"{topic}-first", f"{topic}-second"
    admin(server, "PUT", f"{path_of(first)}/partitions", 1)
    options = options_for(
        server, topicsPattern=f"public/default/{name}-.*", startingOffsets="latest"
    )
    publish_to(client, first, numbered(0, 10))
    with DrivenQuery(options, Checkpoint()) as query:
        assert query.run_available().values == []
        admin(server, "POST", f"{path_of(first)}/partitions", 3)
        for partition in range(3):
            publish_to(client, f"{first}-partition-{partition}", numbered(10, 20))
        publish_to(client, second, numbered(20, 30))
        query.run_available()
    assert sorted(query.values) == sorted([*numbered(10, 20) * 3, *numbered(20, 30)])
    assert set(query.topics) == {second, *(f"{first}-partition-{n}" for n in range(3))}


@pytest.mark.parametrize("mode", ["direct", "broker"])
async def test_a_message_in_chunks_comes_once_wherever_micro_batches_and_ledgers_end(
    server: Standalone, topic: str, mode: str
) -> None:
    await publish_in_chunks(server, topic, [b"ab", b"cd", b"ef"])
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        maxEntriesPerTrigger="1",
        subscriptionName="held",
        readMode=mode,
    )
    query = await asyncio.to_thread(read, options, Checkpoint())
    assert query.values == [b"first", b"abcdef", b"last"]
    assert query.batch_sizes == [1, 0, 0, 1, 1]


@pytest.mark.parametrize("chunks", [2, 3])
async def test_a_message_that_began_in_the_last_micro_batch_is_held_for_the_next_one(
    server: Standalone, topic: str, chunks: int
) -> None:
    """The first micro-batch ends before the last chunk; each chunk has a ledger of its own."""
    await publish_in_chunks(server, topic, [b"ab", b"cd", b"ef"][:chunks])
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        maxEntriesPerTrigger=str(chunks),
        subscriptionName="held",
    )
    checkpoint = Checkpoint()
    query = await asyncio.to_thread(read, options, checkpoint, fails_in=1)
    assert query.values == [b"first"]
    await asyncio.to_thread(admin, server, "POST", f"{path_of(topic)}/trim")
    assert await asyncio.to_thread(ledgers, server, topic) == 3

    query = await asyncio.to_thread(read, options, checkpoint)
    assert query.values == [b"abcdef"[: 2 * chunks], b"last"]


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
async def test_a_message_whose_beginning_went_before_its_end_was_read_is_noticed(
    server: Standalone, topic: str, fails: bool
) -> None:
    """The message began more than one micro-batch, and one ledger, before its end."""
    await publish_in_chunks(server, topic, [b"ab", b"cd", b"ef"])
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        maxEntriesPerTrigger="1",
        subscriptionName="held",
        failOnDataLoss=str(fails).lower(),
    )
    checkpoint = Checkpoint()
    query = await asyncio.to_thread(read, options, checkpoint, fails_in=3)
    assert query.values == [b"first"]
    await asyncio.to_thread(admin, server, "POST", f"{path_of(topic)}/trim")
    assert await asyncio.to_thread(ledgers, server, topic) == 2

    if fails:
        with pytest.raises(CorruptDataError, match=r"its beginning .* failOnDataLoss"):
            await asyncio.to_thread(read, options, checkpoint)
    else:
        query = await asyncio.to_thread(read, options, checkpoint)
        assert query.values == [b"last"]


def test_a_place_within_a_batch_is_where_a_query_begins(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=2_000
    )
    ids: list[pulsar.MessageId] = []
    for number in range(10):
        producer.send_async(b"%d" % number, lambda _, at: ids.append(at))
    producer.flush()
    at = ids[4]
    place = f'{{"{topic}": "{at.ledger_id()}:{at.entry_id()}:-1:{at.batch_index()}"}}'
    assert at.batch_index() == 4
    options = options_for(server, topic=topic, startingOffsets=place, subscriptionName="held")
    checkpoint = Checkpoint()
    assert read(options, checkpoint).values == numbered(4, 10)
    producer.send(b"10")
    producer.close()
    assert read(options, checkpoint).values == [b"10"]


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_topic_that_is_deleted_under_a_query(
    server: Standalone, client: pulsar.Client, topic: str, fails: bool
) -> None:
    first, second = f"{topic}-a", f"{topic}-b"
    options = options_for(
        server,
        topics=f"{first},{second}",
        startingOffsets="earliest",
        failOnDataLoss=str(fails).lower(),
    )
    publish_to(client, first, numbered(0, 10))
    publish_to(client, second, numbered(10, 20))
    checkpoint = Checkpoint()
    assert sorted(read(options, checkpoint).values) == sorted(numbered(0, 20))
    admin(server, "DELETE", f"{path_of(first)}?force=true")
    publish_to(client, second, numbered(20, 30))

    if fails:
        with pytest.raises(DataLossError, match=f"{first}: the topic was deleted"):
            read(options, checkpoint)
    else:
        assert read(options, checkpoint).values == numbered(20, 30)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_topic_that_is_not_named_any_more_is_not_called_deleted(
    server: Standalone, client: pulsar.Client, topic: str, fails: bool
) -> None:
    """One that is named anew is read from its first message."""
    first, second, third = (f"{topic}-{name}" for name in "abc")
    options = options_for(
        server,
        topics=f"{first},{second}",
        startingOffsets="latest",
        subscriptionName="held",
        failOnDataLoss=str(fails).lower(),
    )
    for each in (first, second, third):
        publish_to(client, each, numbered(0, 10))
    checkpoint = Checkpoint()
    assert read(options, checkpoint).values == []
    options["topics"] = f"{second},{third}"

    if fails:
        with pytest.raises(
            DataLossError, match=f"{first}: .* no longer name .* subscription held, which"
        ):
            read(options, checkpoint)
        options["topics"] = f"{first},{second},{third}"
    assert read(options, checkpoint).values == numbered(0, 10)
    assert admin(server, "GET", f"{path_of(third)}/subscriptions") == ["held"]


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_topic_that_is_trimmed_under_a_query(
    server: Standalone, client: pulsar.Client, topic: str, fails: bool
) -> None:
    """What the query holds is not trimmed; when somebody takes the hold away, it is noticed."""
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        failOnDataLoss=str(fails).lower(),
    )
    publish_to(client, topic, numbered(0, 10))
    checkpoint = Checkpoint()
    assert read(options, checkpoint).values == numbered(0, 10)
    for first in (10, 20, 30):
        admin(server, "PUT", f"{path_of(topic)}/unload")  # a ledger of its own for what follows
        publish_to(client, topic, numbered(first, first + 10))
    admin(server, "POST", f"{path_of(topic)}/trim")
    assert ledgers(server, topic) >= 3, "held by the query"

    admin(server, "DELETE", f"{path_of(topic)}/subscription/held")
    admin(server, "POST", f"{path_of(topic)}/trim")
    left = [value for value in read_all(server, topic) if value]
    assert left == numbered(30, 40)

    if fails:
        with pytest.raises(DataLossError, match="was trimmed"):
            read(options, checkpoint)
    else:
        assert read(options, checkpoint).values == left


@pytest.mark.parametrize("how", ["expired", "truncated"])
def test_a_ledger_that_went_before_it_was_read_is_noticed(
    server: Standalone, client: pulsar.Client, topic: str, how: str
) -> None:
    """All of it, and nothing of the next one: the topic begins where the subscription stands."""
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    checkpoint = Checkpoint()
    publish_to(client, topic, numbered(0, 10))
    read(options, checkpoint)
    for first in (10, 20):
        admin(server, "PUT", f"{path_of(topic)}/unload")  # a ledger of its own for what follows
        publish_to(client, topic, numbered(first, first + 10))
    if how == "truncated":
        admin(server, "DELETE", f"{path_of(topic)}/truncate")
    else:
        second = admin(server, "GET", f"{path_of(topic)}/internalStats")["ledgers"][1]
        expired = {"ledgerId": second["ledgerId"], "entryId": second["entries"] - 1}
        admin(server, "POST", f"{path_of(topic)}/subscription/held/expireMessages", expired)
        admin(server, "POST", f"{path_of(topic)}/trim")
    assert ledgers(server, topic) == 1
    with pytest.raises(DataLossError, match="was trimmed, and the query has read the topic up to"):
        read(options, checkpoint)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "not planned"])
@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_ledger_that_went_when_a_part_of_it_was_read_is_noticed(
    server: Standalone, client: pulsar.Client, topic: str, planned: bool, fails: bool
) -> None:
    """As when a TTL passes a query that is behind. Nothing else of the topic has gone."""
    options = options_for(
        server,
        topic=topic,
        startingOffsets="earliest",
        subscriptionName="held",
        maxEntriesPerTrigger="5",
        failOnDataLoss=str(fails).lower(),
    )
    publish_to(client, topic, numbered(0, 20), batching_enabled=False)
    checkpoint = Checkpoint()
    assert read(options, checkpoint, fails_in=1).values == numbered(0, 5)
    if not planned:
        checkpoint.planned.pop()
    admin(server, "PUT", f"{path_of(topic)}/unload")  # a ledger of its own for what follows
    publish_to(client, topic, numbered(20, 25), batching_enabled=False)
    (first, _) = admin(server, "GET", f"{path_of(topic)}/internalStats")["ledgers"]
    expired = {"ledgerId": first["ledgerId"], "entryId": first["entries"] - 1}
    admin(server, "POST", f"{path_of(topic)}/subscription/held/expireMessages", expired)
    admin(server, "POST", f"{path_of(topic)}/trim")
    assert ledgers(server, topic) == 1

    if fails:
        with pytest.raises(DataLossError, match="15 later entries are lost"):
            read(options, checkpoint)
    else:
        assert read(options, checkpoint).values == numbered(20, 25)


def test_what_went_before_a_query_was_begun_is_no_loss_and_what_went_since_is(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Of a topic that holds nothing then, and of which nothing was read."""
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    publish_to(client, topic, numbered(0, 10))
    admin(server, "DELETE", f"{path_of(topic)}/truncate")
    early, late = Checkpoint(), Checkpoint()
    for checkpoint in (early, late):
        assert read(options, checkpoint).values == []
        assert checkpoint.planned[0]["topics"] == {topic: "-1:-1"}
    publish_to(client, topic, numbered(10, 20))
    assert read(options, early).values == numbered(10, 20)

    admin(server, "PUT", f"{path_of(topic)}/unload")  # a ledger of its own for what follows
    publish_to(client, topic, numbered(20, 30))
    admin(server, "POST", f"{path_of(topic)}/subscription/held/skip_all")
    admin(server, "POST", f"{path_of(topic)}/trim")
    assert ledgers(server, topic) == 1
    with pytest.raises(DataLossError, match="was trimmed, and the query has read nothing"):
        read(options, late)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_topic_that_was_emptied_under_a_planned_batch(
    server: Standalone, client: pulsar.Client, topic: str, fails: bool
) -> None:
    options = options_for(
        server, topic=topic, startingOffsets="earliest", failOnDataLoss=str(fails).lower()
    )
    publish_to(client, topic, numbered(0, 10))
    checkpoint = Checkpoint()
    assert read(options, checkpoint, fails_in=0).values == []
    admin(server, "DELETE", f"{path_of(topic)}?force=true")
    admin(server, "PUT", path_of(topic))

    if fails:
        with pytest.raises(DataLossError, match="it is empty, and the checkpoint says"):
            read(options, checkpoint)
    else:
        assert read(options, checkpoint).values == []


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes on"])
def test_a_topic_that_was_made_anew_between_two_batches(
    server: Standalone, client: pulsar.Client, topic: str, fails: bool
) -> None:
    """While nothing is in it yet, and its ledgers cannot tell."""
    options = options_for(
        server, topic=topic, startingOffsets="earliest", failOnDataLoss=str(fails).lower()
    )
    publish_to(client, topic, numbered(0, 10))
    checkpoint = Checkpoint()
    assert read(options, checkpoint).values == numbered(0, 10)
    publish_to(client, topic, numbered(10, 20))
    admin(server, "DELETE", f"{path_of(topic)}?force=true")
    admin(server, "PUT", path_of(topic))

    if fails:
        with pytest.raises(DataLossError, match="it is empty, and has no subscription"):
            read(options, checkpoint)
    else:
        assert read(options, checkpoint).values == []
        publish_to(client, topic, numbered(20, 30))
        assert read(options, checkpoint).values == numbered(20, 30)


def test_a_query_has_one_subscription_also_after_a_restart_in_its_first_batch(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Another one would hold what comes from then on for ever."""
    options = options_for(server, topic=topic, startingOffsets="latest")
    publish_to(client, topic, numbered(0, 10))
    checkpoint = Checkpoint()
    read(options, checkpoint, fails_in=0)
    (name,) = admin(server, "GET", f"{path_of(topic)}/subscriptions")
    publish_to(client, topic, numbered(10, 20))
    assert read(options, checkpoint).values == numbered(10, 20)
    assert admin(server, "GET", f"{path_of(topic)}/subscriptions") == [name]


def test_a_restart_in_the_first_batch_lets_nothing_go(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """Spark asks for the beginning again, which is the end of the topic by now."""
    options = options_for(server, topic=topic, startingOffsets="latest", subscriptionName="held")
    publish_to(client, topic, numbered(0, 10))
    checkpoint = Checkpoint()
    read(options, checkpoint, fails_in=0)
    for first in (10, 20, 30):
        admin(server, "PUT", f"{path_of(topic)}/unload")  # a ledger of its own for what follows
        publish_to(client, topic, numbered(first, first + 10))
    assert read(options, checkpoint, fails_in=0).values == []
    admin(server, "POST", f"{path_of(topic)}/trim")
    assert read(options, checkpoint).values == numbered(10, 40)


def test_a_subscription_that_is_deleted_under_a_query_is_made_again(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    publish_to(client, topic, numbered(0, 10))
    with DrivenQuery(options, Checkpoint()) as query:
        query.run_available()
        admin(server, "DELETE", f"{path_of(topic)}/subscription/held")
        query.run_available()
    assert held_at(server, topic).endswith(":9")


def test_a_new_query_under_an_old_subscription_begins_where_it_says(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    """As after the loss of a checkpoint: everything is held anew, by the one that there is."""
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    publish_to(client, topic, numbered(0, 10))
    first = Checkpoint()
    read(options, first)
    publish_to(client, topic, numbered(10, 20))
    read(options, first)
    anew = Checkpoint()
    assert read(options, anew, fails_in=0).values == []
    assert held_at(server, topic) == f"{first.planned[0]['topics'][topic].partition(':')[0]}:-1"
    assert read(options, anew).values == numbered(0, 20)
    assert admin(server, "GET", f"{path_of(topic)}/subscriptions") == ["held"]


def test_a_ledger_that_was_read_and_trimmed_is_no_loss(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    options = options_for(server, topic=topic, startingOffsets="earliest", subscriptionName="held")
    checkpoint = Checkpoint()
    for first in (0, 10, 20, 30):
        publish_to(client, topic, numbered(first, first + 10))
        assert read(options, checkpoint).values == numbered(first, first + 10)
        admin(server, "PUT", f"{path_of(topic)}/unload")
        admin(server, "POST", f"{path_of(topic)}/trim")
    assert ledgers(server, topic) <= 3


def ledgers(server: Standalone, topic: str) -> int:
    return len(admin(server, "GET", f"{path_of(topic)}/internalStats")["ledgers"])


def read_all(server: Standalone, topic: str) -> list[bytes]:
    return read(options_for(server, topic=topic, startingOffsets="earliest"), Checkpoint()).values
