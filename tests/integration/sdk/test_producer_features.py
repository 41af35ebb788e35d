"""What producers can do beyond sending, with the real server and the official client as reader."""

import asyncio
import dataclasses
from collections.abc import Iterator

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from magnetar.sdk import (
    AccessMode,
    Client,
    ClientSettings,
    Compression,
    MessageId,
    Producer,
    ProducerSettings,
)
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.encryption import FileKeyReader
from magnetar.sdk.errors import MessageTooLargeError, PendingLimitError, SdkError
from magnetar.sdk.interceptors import ProducerInterceptor
from magnetar.sdk.producing.outgoing import OutgoingMessage
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire.errors import (
    MessageChecksumError,
    ProducerBusyError,
    ProducerFencedError,
)
from magnetar.sdk.wire.pulsar_pb2 import ServerError
from tests.http_calls import admin
from tests.integration.sdk.scripted_broker import Peer, ScriptedBroker, once
from tests.standalone import Standalone

BIG = bytes(range(256)) * 50_000  # 12.8 MB: three chunks of what a broker takes


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("features") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def official(standalone: Standalone) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(standalone.url, logger=logger)
    yield client
    client.close()


@pytest.fixture(scope="module")
def key_paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("keys")
    pair = rsa.generate_private_key(65537, 2048)
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(
        pair.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(
        pair.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return str(public), str(private)


async def read(
    official: pulsar.Client, topic: str, count: int, **options: object
) -> list[pulsar.Message]:
    def run() -> list[pulsar.Message]:
        consumer = official.subscribe(
            topic, "s", initial_position=pulsar.InitialPosition.Earliest, **options
        )
        try:
            return [consumer.receive(60_000) for _ in range(count)]
        finally:
            consumer.close()

    return await asyncio.to_thread(run)


# -- batches by key


async def test_batches_by_key_hold_one_key_each(client: Client, broker: ScriptedBroker) -> None:
    settings = ProducerSettings(batch_by_key=True, batch_messages_max=100)
    producer = await client.producer("t", settings)
    for at in range(12):
        producer.send_nowait(b"%d" % at, key=f"k{at % 3}")
    producer.send_nowait(b"plain")
    producer.send_nowait(b"ordered", key="k0", ordering_key=b"o")
    await producer.flush()
    batches = [MessageBatch(entry, EntrySource("t"), 1, 0) for entry in broker.entries]
    assert [batch.metadata.partition_key for batch in batches] == ["k0", "k1", "k2", "", "k0"]
    assert [batch.payloads() for batch in batches] == [
        [b"%d" % at for at in range(first, 12, 3)] for first in range(3)
    ] + [[b"plain"], [b"ordered"]]


async def test_limits_hold_for_all_open_batches_together(
    client: Client, broker: ScriptedBroker
) -> None:
    settings = ProducerSettings(batch_by_key=True, batch_messages_max=4, batch_delay_ms=60_000)
    producer = await client.producer("t", settings)
    async with asyncio.timeout(30):
        ids = await asyncio.gather(
            *(producer.send(b"%d" % at, key=f"k{at % 2}") for at in range(4))
        )
    assert ids == [MessageId(1, 0, 0), MessageId(1, 1, 0), MessageId(1, 0, 1), MessageId(1, 1, 1)]


async def test_key_shared_consumers_of_the_official_client_keep_keys_apart(
    standalone: Standalone, official: pulsar.Client
) -> None:
    consumers = [
        await asyncio.to_thread(
            official.subscribe, "by-key", "s", consumer_type=pulsar.ConsumerType.KeyShared
        )
        for _ in range(2)
    ]
    async with Client(standalone.url) as client:
        producer = await client.producer("by-key", ProducerSettings(batch_by_key=True))
        for at in range(60):
            producer.send_nowait(b"%d" % at, key=f"k{at % 6}")
        await producer.flush()

    def drain(consumer: pulsar.Consumer) -> list[tuple[str, int]]:
        found = []
        try:
            while True:
                message = consumer.receive(2_000)
                consumer.acknowledge(message)
                found.append((message.partition_key(), int(message.data())))
        except pulsar.Timeout:
            return found

    taken = await asyncio.gather(*(asyncio.to_thread(drain, each) for each in consumers))
    assert {key for key, _ in taken[0]} & {key for key, _ in taken[1]} == set()
    for found in taken:
        for key in {key for key, _ in found}:
            assert [at for own, at in found if own == key] == list(range(int(key[1]), 60, 6))
    assert sum(map(len, taken)) == 60


# -- chunks


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZLIB])
async def test_the_official_client_puts_our_chunks_together(
    standalone: Standalone, official: pulsar.Client, codec: Compression
) -> None:
    topic = f"chunks-{codec.value}"
    settings = ProducerSettings(
        chunking=True,
        compression=codec,
        chunk_bytes_max=0 if codec is Compression.NONE else 10_000,
    )
    async with Client(standalone.url) as client, await client.producer(topic, settings) as producer:
        producer.send_nowait(b"small before")
        await producer.send(BIG, key="k", properties={"of": "the whole"})
        await producer.send(b"small after")
        assert (producer.last_sequence_id, producer.stats().messages_stored) == (2, 3)
    messages = await read(official, topic, 3)
    assert [message.data() for message in messages] == [b"small before", BIG, b"small after"]
    assert (messages[1].partition_key(), messages[1].properties()) == ("k", {"of": "the whole"})


async def test_chunks_are_sent_again_after_a_lost_connection_and_keep_their_order(
    client: Client, broker: ScriptedBroker
) -> None:
    def drop_third(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.SEND and len(broker.entries) == 2:
            peer.transport.abort()
            return True
        return False

    broker.faults.append(once(drop_third))
    producer = await client.producer("t", ProducerSettings(chunking=True))
    payload = bytes(range(250)) * 2_000
    message_id = await producer.send(payload)
    chunks = [MessageBatch(entry, EntrySource("t"), 1, 0) for entry in broker.entries]
    # What had no receipt comes again: the first two may be there twice, each whole and in order.
    last_run = chunks[-chunks[0].metadata.num_chunks_from_msg :]
    places = [chunk.metadata.chunk_id for chunk in chunks]
    assert places[-1] == chunks[0].metadata.num_chunks_from_msg - 1
    whole = {chunk.metadata.chunk_id: chunk.body() for chunk in chunks}
    assert b"".join(whole[at] for at in range(len(whole))) == payload
    assert {chunk.metadata.uuid for chunk in chunks} == {"made-up-0"}
    assert {chunk.metadata.total_chunk_msg_size for chunk in chunks} == {len(payload)}
    assert message_id.entry_id == len(broker.entries) - 1
    assert len(last_run) > 1
    assert await producer.send(b"next") == MessageId(1, len(broker.entries) - 1, 0)


async def test_without_chunking_a_large_message_is_refused_and_the_way_out_is_named(
    client: Client,
) -> None:
    producer = await client.producer("t")
    with pytest.raises(MessageTooLargeError, match="chunking"):
        await producer.send(bytes(200_000))


async def test_metadata_that_leave_no_room_for_a_chunk_are_told(client: Client) -> None:
    producer = await client.producer("t", ProducerSettings(chunking=True))
    with pytest.raises(MessageTooLargeError, match="no room for a chunk"):
        await producer.send(bytes(200_000), properties={"big": "x" * 120_000})
    await producer.send(b"next")


# -- encryption


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
async def test_the_official_client_decrypts_what_we_encrypt(
    standalone: Standalone,
    official: pulsar.Client,
    key_paths: tuple[str, str],
    batching: bool,
    codec: Compression,
) -> None:
    topic = f"secret-{batching}-{codec.value}"
    settings = ProducerSettings(
        batching=batching,
        compression=codec,
        encryption_keys=("mine",),
        key_reader=FileKeyReader(public_path=key_paths[0]),
    )
    sent = [b"secret %d" % at * 20 for at in range(5)]
    async with Client(standalone.url) as client, await client.producer(topic, settings) as producer:
        await producer.send_many(sent)
        await producer.send(b"by itself", key="k")
        reader = await client.reader(topic)
        [entry] = await reader.consumer.receive_batches(1, timeout_s=30)
        assert entry.is_encrypted
        assert b"secret" not in entry.messages()[0].data
    messages = await read(official, topic, 6, crypto_key_reader=pulsar.CryptoKeyReader(*key_paths))
    assert [message.data() for message in messages] == [*sent, b"by itself"]


async def test_encrypted_chunks_are_read_by_the_official_client(
    standalone: Standalone, official: pulsar.Client, key_paths: tuple[str, str]
) -> None:
    settings = ProducerSettings(
        chunking=True,
        encryption_keys=("mine",),
        key_reader=FileKeyReader(public_path=key_paths[0]),
    )
    async with Client(standalone.url) as client:
        producer = await client.producer("secret-chunks", settings)
        await producer.send(BIG)
    [message] = await read(
        official, "secret-chunks", 1, crypto_key_reader=pulsar.CryptoKeyReader(*key_paths)
    )
    assert message.data() == BIG


# -- access modes


async def test_exclusive_refuses_others_and_waiting_gets_its_turn(standalone: Standalone) -> None:
    exclusive = ProducerSettings(access_mode=AccessMode.EXCLUSIVE)
    waiting = ProducerSettings(access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    # The operation timeout does not count for who waits.
    short = ClientSettings(operation_timeout_ms=1_000)
    async with (
        Client(standalone.url) as client,
        Client(standalone.url) as other,
        Client(standalone.url, short) as impatient,
    ):
        first = await client.producer("exclusive", exclusive)
        assert first.topic_epoch == 0
        with pytest.raises(ProducerFencedError):
            await other.producer("exclusive", exclusive)
        with pytest.raises(ProducerBusyError):
            await other.producer("exclusive")
        turn = asyncio.create_task(impatient.producer("exclusive", waiting))
        done, _ = await asyncio.wait([turn], timeout=1.5)
        assert not done
        await first.close()
        second = await turn
        assert second.topic_epoch == 1
        await second.send(b"mine now")


async def keep_sending(producer: Producer) -> None:
    while True:
        await producer.send(b"too late")


async def test_fencing_takes_the_topic_from_who_has_it(standalone: Standalone) -> None:
    async with Client(standalone.url) as client:
        old = await client.producer("fenced", ProducerSettings(access_mode=AccessMode.EXCLUSIVE))
        await old.send(b"old")
        fencing = ProducerSettings(access_mode=AccessMode.EXCLUSIVE_WITH_FENCING)
        new = await client.producer("fenced", fencing)
        await new.send(b"new")
        assert (old.topic_epoch, new.topic_epoch) == (0, 1)
        with pytest.raises(ProducerFencedError):
            await keep_sending(old)
        reader = await client.reader("fenced")
        assert [message.data for message in await reader.read_many(9, timeout_s=30)] in (
            [b"old", b"new"],
            [b"old"],  # the rest was still on its way
        )


# -- sequence ids


async def test_sequence_ids_of_the_application_make_retries_harmless(
    standalone: Standalone,
) -> None:
    named = ProducerSettings(name="importer")
    async with Client(standalone.url) as client:
        await client.producer("deduplicated")
        path = "persistent/public/default/deduplicated/deduplicationEnabled"
        await asyncio.to_thread(admin, standalone, "POST", path, True)
        async with await client.producer("deduplicated", named) as producer:
            assert producer.last_stored_sequence_id == -1
            await producer.send(b"10", sequence_id=10)
            await producer.send(b"20", sequence_id=20)
            producer.send_nowait(b"30", sequence_id=30)
            producer.send_nowait(b"31", sequence_id=31)
            with pytest.raises(ValueError, match="must be above 31"):
                producer.send_nowait(b"again", sequence_id=31)
            await producer.flush()
        # The importer starts anew, and does not know how far it came.
        async with await client.producer("deduplicated", named) as producer:
            assert producer.last_stored_sequence_id == 31
            assert await producer.send(b"20", sequence_id=20) == MessageId(-1, -1)
            assert (await producer.send(b"40", sequence_id=40)).entry_id >= 0
            await producer.send(b"41")
            assert producer.last_stored_sequence_id == 41
        reader = await client.reader("deduplicated")
        messages = [await reader.read_next(timeout_s=30) for _ in range(6)]
        assert [message.data for message in messages] == [
            b"10",
            b"20",
            b"30",
            b"31",
            b"40",
            b"41",
        ]
        assert [message.sequence_id for message in messages] == [10, 20, 30, 31, 40, 41]


# -- interceptors, limits, figures


class Stamping(ProducerInterceptor):
    def __init__(self) -> None:
        self.told: list[tuple[bytes, MessageId | None]] = []

    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        return dataclasses.replace(message, properties={"topic": topic})

    def on_sent(
        self,
        topic: str,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: SdkError | None,
    ) -> None:
        self.told.append((message.payload, message_id))


class Failing(Stamping):
    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        raise RuntimeError("the application's own fault")


async def test_interceptors_see_and_change_messages_and_their_faults_lose_nothing(
    client: Client, broker: ScriptedBroker
) -> None:
    stamping, failing = Stamping(), Failing()
    producer = await client.producer("t", ProducerSettings(interceptors=(failing, stamping)))
    first = await producer.send(b"one")
    await producer.send_many([b"two"])
    await producer.flush()
    assert stamping.told == [(b"one", first), (b"two", MessageId(1, 1, 0))]
    assert len(failing.told) == 2
    batches = [MessageBatch(entry, EntrySource("t"), 1, 0) for entry in broker.entries]
    assert [message.properties for batch in batches for message in batch.messages()] == [
        {"topic": "persistent://public/default/t"}
    ] * 2


@pytest.mark.parametrize("call", ["send_nowait", "send_many"])
async def test_flush_raises_the_errors_of_sends_without_a_callback_also_with_interceptors(
    client: Client, broker: ScriptedBroker, call: str
) -> None:
    def refuse(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.SEND:
            peer.refuse_send(command.send.sequence_id, ServerError.ChecksumError)
        return command.type == BaseCommand.SEND

    stamping = Stamping()
    producer = await client.producer("t", ProducerSettings(interceptors=(stamping,)))
    broker.faults.append(refuse)
    if call == "send_nowait":
        producer.send_nowait(b"one")
    else:
        await producer.send_many([b"one"])
    with pytest.raises(MessageChecksumError):
        await producer.flush()
    assert stamping.told == [(b"one", None)]
    await producer.flush()


async def test_the_memory_limit_is_shared_by_all_producers(broker: ScriptedBroker) -> None:
    def hold(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.SEND:
            held.append((peer, command))
        return command.type == BaseCommand.SEND

    held: list[tuple[Peer, BaseCommand]] = []
    settings = ClientSettings(memory_bytes_max=1_000)
    async with Client(broker.url, settings) as client:
        one, two = [
            await client.producer(f"t{number}", ProducerSettings(batching=False))
            for number in range(2)
        ]
        broker.faults.append(hold)
        one.send_nowait(bytes(600))
        two.send_nowait(bytes(400))
        with pytest.raises(PendingLimitError, match="memory limit"):
            one.send_nowait(bytes(1))
        waiting = [asyncio.create_task(each.send(bytes(500))) for each in (one, two)]
        cancelled = asyncio.create_task(one.send(bytes(500)))
        await broker.wait_command(BaseCommand.SEND, 2)
        cancelled.cancel()
        assert not any(task.done() for task in waiting)
        assert client.producer_stats().bytes_pending == 1_000
        broker.faults.clear()
        for peer, command in held:
            peer.store(command, b"")
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)
        stats = client.producer_stats()
        assert (stats.messages_stored, stats.bytes_stored, stats.bytes_pending) == (4, 2_000, 0)


async def test_a_large_message_waits_for_memory_that_another_producer_holds(
    broker: ScriptedBroker,
) -> None:
    def hold(peer: Peer, command: BaseCommand) -> bool:
        if command.type == BaseCommand.SEND:
            held.append((peer, command))
        return command.type == BaseCommand.SEND

    held: list[tuple[Peer, BaseCommand]] = []
    async with Client(broker.url, ClientSettings(memory_bytes_max=1_000)) as client:
        one = await client.producer("t0", ProducerSettings(batching=False))
        two = await client.producer("t1", ProducerSettings(batching=False))
        broker.faults.append(hold)
        one.send_nowait(bytes(600))
        waiting = asyncio.create_task(two.send(bytes(500)))
        await broker.wait_command(BaseCommand.SEND)
        broker.faults.clear()
        for peer, command in held:
            peer.store(command, b"")
        async with asyncio.timeout(5):
            await waiting


async def test_closing_frees_those_who_wait_for_memory(broker: ScriptedBroker) -> None:
    def hold(peer: Peer, command: BaseCommand) -> bool:
        return command.type == BaseCommand.SEND

    async with Client(broker.url, ClientSettings(memory_bytes_max=100)) as client:
        producer = await client.producer("t")
        broker.faults.append(hold)
        producer.send_nowait(bytes(100))
        waiting = asyncio.create_task(producer.send(b"x"))
        await broker.wait_command(BaseCommand.SEND)
        await producer.close(flush=False)
        with pytest.raises(SdkError):
            await waiting
        assert client.producer_stats().bytes_pending == 0


async def test_figures_count_what_was_stored_and_what_failed(
    client: Client, broker: ScriptedBroker
) -> None:
    producer = await client.producer("t")
    await producer.send_many([bytes(10)] * 50)
    await producer.flush()
    stats = producer.stats()
    assert (stats.messages_stored, stats.bytes_stored, stats.entries_stored) == (50, 500, 1)
    assert 0 < stats.latency_ms_mean <= stats.latency_ms_max
    broker.faults.append(lambda peer, command: command.type == BaseCommand.SEND)
    producer.send_nowait(b"never", on_sent=lambda message_id, error: None)
    assert producer.stats().messages_pending == 1
    await producer.close(flush=False)
    assert (producer.stats().messages_failed, producer.stats().messages_pending) == (1, 0)
