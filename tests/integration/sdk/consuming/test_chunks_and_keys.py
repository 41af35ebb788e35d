"""Messages in chunks and encrypted ones, from our producers and from the official client."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

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
    Checkpoint,
    Client,
    Compression,
    ConsumerSettings,
    DeadLetterPolicy,
    MessageId,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)
from magnetar.sdk.encryption import CryptoFailureAction, FileKeyReader
from magnetar.sdk.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    NotSupportedError,
    TransactionEndedError,
)
from magnetar.sdk.schemas import INT64
from magnetar.sdk.wire.pulsar_pb2 import MessageMetadata
from magnetar.testing import Broker
from tests.integration.sdk.embedded import (
    EARLIEST,
    admin,
    data,
    make_partitioned,
    official,
    send,
    take,
)
from tests.waiting import until

FROM_START = ConsumerSettings(initial_position=EARLIEST)
SHARED = ConsumerSettings(
    initial_position=EARLIEST, subscription_type=SubscriptionType.SHARED, nack_delay_ms=10
)
CHUNKING = ProducerSettings(batching=False, chunking=True, chunk_bytes_max=1_000)
LARGE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A public and a private key."""
    folder = tmp_path_factory.mktemp("keys")
    pair = rsa.generate_private_key(65537, 2048)
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(
        pair.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(
        pair.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return public, private


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_chunks_are_one_message_for_all_there_is_to_do(
    client: Client, topic: str, compression: Compression
) -> None:
    settings = replace(CHUNKING, compression=compression, chunk_bytes_max=100)
    async with await client.consumer(topic, "s", SHARED) as consumer:
        async with await client.producer(topic, settings) as producer:
            await producer.send(LARGE, key="k")
            await producer.send(b"small")
        large, small = await take(consumer, 2)
        assert (large.data, large.key, small.data) == (LARGE, "k", b"small")
        first = large.message_id.first_chunk
        assert first is not None
        assert first < large.message_id
        consumer.negative_acknowledge(large)
        (again,) = await take(consumer, 1)
        assert (again.data, again.message_id, again.redelivery_count) == (
            LARGE,
            large.message_id,
            1,
        )
        await consumer.acknowledge_confirmed(again, small)
    async with await client.consumer(topic, "s", SHARED) as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=0.2)


async def test_the_id_of_a_sent_message_in_chunks_leads_to_its_first_chunk(
    client: Client, topic: str
) -> None:
    async with await client.producer(topic, replace(CHUNKING, chunk_bytes_max=100)) as producer:
        await producer.send(b"before")
        sent = await producer.send(LARGE)
        await producer.send(b"behind")
    assert sent.first_chunk is not None
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        _, large, _ = await take(consumer, 3)
        assert large.message_id.first_chunk == sent.first_chunk
        await consumer.seek(sent)
        assert [each.data for each in await take(consumer, 2)] == [LARGE, b"behind"]
    inclusive = ReaderSettings(start_inclusive=True)
    async with await client.reader(topic, sent, inclusive) as reader:
        assert (await reader.read_next(timeout_s=30)).data == LARGE
    async with await client.reader(topic, sent) as reader:
        assert (await reader.read_next(timeout_s=30)).data == b"behind"


async def test_the_newest_message_is_whole_though_it_was_sent_in_chunks(
    server: Broker, client: Client, topic: str
) -> None:
    async with await client.producer(topic, CHUNKING) as producer:
        await producer.send(b"before")
        await producer.send(LARGE)
    inclusive = ReaderSettings(start_inclusive=True)
    async with await client.reader(topic, MessageId.LATEST, inclusive) as reader:
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_s=30)).data == LARGE
        assert not await reader.has_message_available()
        await admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
        await reader.seek(MessageId.LATEST)
        assert (await reader.read_next(timeout_s=30)).data == LARGE
    settings = ConsumerSettings(durable=False, start_inclusive=True)
    async with await client.consumer(topic, "s", settings) as consumer:
        assert data(await take(consumer, 1)) == [LARGE]
        await send(client, topic, [b"behind"])
        assert data(await take(consumer, 1)) == [b"behind"]


async def test_chunks_of_the_official_client_arrive_and_it_reads_ours(
    server: Broker, client: Client, topic: str
) -> None:
    payload = LARGE * 1_100  # more than a broker takes at once

    def send_theirs(theirs: pulsar.Client) -> None:
        producer = theirs.create_producer(topic, chunking_enabled=True)
        producer.send(payload)

    await official(server, send_theirs)
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        assert (await consumer.receive(timeout_s=30)).data == payload
    async with await client.producer(topic, CHUNKING) as producer:
        await producer.send(LARGE)

    def read_theirs(theirs: pulsar.Client) -> list[int]:
        reader = theirs.create_reader(topic, pulsar.MessageId.earliest)
        return [len(reader.read_next(30_000).data()) for _ in range(2)]

    assert await official(server, read_theirs) == [len(payload), len(LARGE)]


async def test_a_chunked_message_above_the_bound_is_refused_and_the_next_is_read(
    client: Client, topic: str
) -> None:
    async with await client.producer(topic, CHUNKING) as producer:
        await producer.send(LARGE)
        await producer.send(b"next")
    settings = replace(FROM_START, chunked_message_bytes_max=len(LARGE) - 1)
    async with await client.consumer(topic, "s", settings) as consumer:
        refused = 0
        while True:
            try:
                message = await consumer.receive(timeout_s=30)
                break
            except CorruptMessageError:
                refused += 1
        assert (message.data, refused) == (b"next", 11)


async def test_what_is_encrypted_can_be_read_by_who_has_the_key(
    client: Client, topic: str, keys: tuple[Path, Path]
) -> None:
    reader = FileKeyReader(str(keys[0]), str(keys[1]))
    for settings in (
        ProducerSettings(encryption_keys=("k",), key_reader=reader, compression=Compression.LZ4),
        replace(CHUNKING, encryption_keys=("k",), key_reader=reader),
    ):
        async with await client.producer(topic, settings) as producer:
            await producer.send_many([LARGE, b"b"])
            await producer.flush()
    wanted = [LARGE, b"b", LARGE, b"b"]
    async with await client.consumer(topic, "s", replace(SHARED, key_reader=reader)) as consumer:
        messages = await take(consumer, 4)
        assert data(messages) == wanted
        await consumer.acknowledge_confirmed(*messages)
    async with await client.reader(topic, settings=ReaderSettings(key_reader=reader)) as own:
        assert [(await own.read_next(timeout_s=30)).data for _ in range(4)] == wanted
        assert not await own.has_message_available()


async def test_without_the_key_the_consumer_does_what_it_was_told(
    client: Client, topic: str, keys: tuple[Path, Path]
) -> None:
    reader = FileKeyReader(str(keys[0]), "")
    settings = ProducerSettings(encryption_keys=("k",), key_reader=reader)
    async with await client.producer(topic, settings) as producer:
        await producer.send(b"secret")
    await send(client, topic, [b"plain"])

    def told(action: CryptoFailureAction | None) -> ConsumerSettings:
        return replace(FROM_START, key_reader=reader, crypto_failure_action=action)

    async with await client.consumer(topic, "fail", told(None)) as consumer:
        with pytest.raises(EncryptedMessageError, match="key k"):
            await consumer.receive(timeout_s=30)
        assert data(await take(consumer, 1)) == [b"plain"]
    async with await client.consumer(
        topic, "discard", told(CryptoFailureAction.DISCARD)
    ) as consumer:
        (message,) = await take(consumer, 1)
        assert message.data == b"plain"
        await consumer.acknowledge_confirmed(message)
        assert not await consumer.has_message_available()
    async with await client.consumer(
        topic, "consume", told(CryptoFailureAction.CONSUME)
    ) as consumer:
        secret, plain = await take(consumer, 2)
        assert (secret.is_encrypted, plain.is_encrypted) == (True, False)
        assert secret.data != b"secret"


async def test_what_is_put_off_or_given_up_without_the_key_stays_whole_for_who_has_it(
    client: Client, topic: str, keys: tuple[Path, Path]
) -> None:
    blind, sighted = FileKeyReader(str(keys[0]), ""), FileKeyReader(*map(str, keys))
    sends = ProducerSettings(encryption_keys=("k",), key_reader=blind)
    async with await client.producer(topic, sends, schema=INT64) as producer:
        await producer.send(7, key=b"\xff")
        await producer.send(8, ordering_key=b"o")
    settings = replace(
        SHARED,
        key_reader=blind,
        crypto_failure_action=CryptoFailureAction.CONSUME,
        retry_topic=True,
        dead_letters=DeadLetterPolicy(redeliveries_max=1),
    )
    async with await client.consumer(topic, "work", settings) as consumer:
        for _ in range(4):
            await consumer.reconsume_later(await consumer.receive(timeout_s=30))
    for letters in (f"{topic}-work-RETRY", f"{topic}-work-DLQ"):
        own = ReaderSettings(key_reader=sighted)
        async with await client.reader(letters, settings=own, schema=INT64) as reader:
            found = [await reader.read_next(timeout_s=30) for _ in range(2)]
        assert [each.value() for each in found] == [7, 8]
        assert [each.key_bytes for each in found] == [b"\xff", None]
        assert [each.ordering_key for each in found] == [None, b"o"]


async def test_both_clients_read_what_the_other_encrypts(
    server: Broker, client: Client, topic: str, keys: tuple[Path, Path]
) -> None:
    public, private = map(str, keys)
    crypto = pulsar.CryptoKeyReader(public, private)

    def send_theirs(theirs: pulsar.Client) -> None:
        producer = theirs.create_producer(topic, encryption_key="k", crypto_key_reader=crypto)
        producer.send(b"theirs", partition_key="key")

    await official(server, send_theirs)
    reader = FileKeyReader(public, private)
    settings = ProducerSettings(encryption_keys=("k",), key_reader=reader)
    async with await client.producer(topic, settings) as producer:
        await producer.send(b"ours")
    async with await client.consumer(
        topic, "s", replace(FROM_START, key_reader=reader)
    ) as consumer:
        messages = await take(consumer, 2)
        assert [(each.data, each.key) for each in messages] == [
            (b"theirs", "key"),
            (b"ours", None),
        ]

    def read_theirs(theirs: pulsar.Client) -> Counter[bytes]:
        own = theirs.subscribe(
            topic,
            "t",
            crypto_key_reader=crypto,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        return Counter(own.receive(30_000).data() for _ in range(2))

    assert await official(server, read_theirs) == Counter([b"theirs", b"ours"])


async def test_incomplete_messages_are_bounded_and_given_up(client: Client, topic: str) -> None:
    """The second half never comes; what was there of it is acknowledged, as was asked for."""
    settings = replace(
        SHARED, chunked_message_age_ms=500, acknowledge_incomplete_chunks=True, ack_group_ms=1
    )
    # The age bounds the message that is complete as well: its chunks come from what is stored.
    async with await client.producer(topic, CHUNKING) as producer:
        await producer.send(b"before")
        await send_first_chunk(client, topic)
        await producer.send(LARGE)
    async with await client.consumer(topic, "s", settings) as consumer:
        assert data(await take(consumer, 1)) == [b"before"]
        assert (await consumer.receive(timeout_s=30)).data == LARGE
        await until(lambda: consumer.stats().acknowledged >= 1)


async def test_a_reader_waits_for_nothing_that_will_not_come(client: Client, topic: str) -> None:
    """The last of what there is has no end: it is no message, until its end follows."""
    await send(client, topic, [b"before"], key="a")
    await send_first_chunk(client, topic)
    async with await client.reader(topic) as reader:
        assert (await reader.read_next(timeout_s=30)).data == b"before"
        await until(lambda: reader.consumer.stats().received_bytes > 0)
        assert await reader.read_many(1, timeout_s=1) == []
        assert not await reader.has_message_available()
        await send(client, topic, [b"after"])
        assert await reader.has_message_available()
        assert (await reader.read_next(timeout_s=30)).data == b"after"
    async with asyncio.timeout(30), await client.table_view(topic) as view:
        assert dict(view) == {"a": b"before"}
        await view.refresh()


async def test_a_reader_of_what_it_cannot_read_comes_to_an_end(
    client: Client, topic: str, keys: tuple[Path, Path]
) -> None:
    reader = FileKeyReader(str(keys[0]), "")
    settings = ProducerSettings(encryption_keys=("k",), key_reader=reader)
    async with await client.producer(topic, settings) as producer:
        await producer.send(b"secret")
    async with await client.reader(topic, settings=ReaderSettings(key_reader=reader)) as own:
        assert await own.has_message_available()
        with pytest.raises(EncryptedMessageError):
            await own.read_next(timeout_s=30)
        assert not await own.has_message_available()


@pytest.mark.parametrize("is_whole", [False, True])
async def test_a_cumulative_acknowledgement_spares_a_chunked_message_that_began_before(
    client: Client, topic: str, is_whole: bool
) -> None:
    """The next consumer gets all its chunks, and nothing that was acknowledged."""
    settings = replace(FROM_START, subscription_type=SubscriptionType.FAILOVER)
    await send_entries(client, topic, ["x", "a0", "b0", "y", "a1"])
    if is_whole:
        await send_entries(client, topic, ["b1", "z"])
    async with await client.consumer(topic, "s", settings) as consumer:
        first = await take(consumer, 4 if is_whole else 3)
        assert data(first) == [b"x", b"y", b"a0a1", b"b0b1"][: len(first)]
        if not is_whole:
            assert await consumer.receive_many(1, timeout_s=0.1) == []
        consumer.acknowledge_cumulative(first[2])
        await consumer.flush_acks(confirmed=True)
    if not is_whole:
        await send_entries(client, topic, ["b1", "z"])
    async with await client.consumer(topic, "s", settings) as consumer:
        rest = await take(consumer, 2)
        assert data(rest) == [b"b0b1", b"z"]
        consumer.acknowledge_cumulative(rest[1])
        await consumer.flush_acks(confirmed=True)
    async with await client.consumer(topic, "s", settings) as consumer:
        await send_entries(client, topic, ["end"])
        assert data(await take(consumer, 1)) == [b"end"]


async def test_a_reader_that_attaches_again_gets_a_chunked_message_that_began_before(
    server: Broker, client: Client, topic: str
) -> None:
    await send_entries(client, topic, ["a0", "b0", "x", "a1"])
    async with await client.reader(topic) as reader:
        assert data([await reader.read_next(timeout_s=30) for _ in range(2)]) == [b"x", b"a0a1"]
        await admin(server, "PUT", f"{topic.replace('://', '/')}/unload")
        assert not await reader.has_message_available()
        await send_entries(client, topic, ["b1", "y"])
        assert data([await reader.read_next(timeout_s=30) for _ in range(2)]) == [b"b0b1", b"y"]
        assert not await reader.has_message_available()


async def test_a_transaction_refuses_to_acknowledge_a_part_of_a_chunked_message(
    client: Client, topic: str
) -> None:
    await send_entries(client, topic, ["x", "a0", "b0", "a1", "b1"])
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        x, a, b = await take(consumer, 3)
        refused = await client.transaction().begin()
        with pytest.raises(NotSupportedError, match="singly, in a new transaction"):
            await consumer.acknowledge_cumulative(a, transaction=refused)
        with pytest.raises(TransactionEndedError):
            await refused.commit()
        async with client.transaction() as txn:
            await consumer.acknowledge_cumulative(x, transaction=txn)
            await consumer.acknowledge(a, transaction=txn)
    async with await client.consumer(topic, "s", FROM_START) as consumer:
        assert data(await take(consumer, 1)) == [b.data]


async def test_a_reader_behind_a_chunked_message_gets_what_began_within_it(
    client: Client, topic: str
) -> None:
    await send_entries(client, topic, ["a0", "b0", "x", "a1", "b1", "y"])
    async with await client.reader(topic) as reader:
        _, behind = [await reader.read_next(timeout_s=30) for _ in range(2)]
    async with await client.reader(topic, behind.message_id) as reader:
        assert data([await reader.read_next(timeout_s=30) for _ in range(2)]) == [b"b0b1", b"y"]


@pytest.mark.parametrize("partitions", [0, 1])
async def test_another_reader_continues_between_chunks_by_the_id_to_resume_at(
    server: Broker, client: Client, topic: str, partitions: int
) -> None:
    if partitions:
        await make_partitioned(server, topic, partitions)
    part = f"{topic}-partition-0" if partitions else topic
    await send_entries(client, part, ["a0", "b0", "x", "a1", "y", "b1", "z"])
    async with await client.reader(topic) as reader:
        await reader.read_next(timeout_s=30)
        last = await reader.read_next(timeout_s=30)
        resume_id = reader.consumer.resume_id(last.message_id)
    assert resume_id == last.message_id
    async with await client.reader(part, resume_id) as reader:
        rest = [await reader.read_next(timeout_s=30) for _ in range(3)]
    assert data(rest) == [b"y", b"b0b1", b"z"]


@pytest.mark.parametrize("taken", [1, 2, 3])
async def test_a_checkpoint_between_chunks_leads_to_the_whole_message_and_nothing_twice(
    client: Client, topic: str, taken: int
) -> None:
    await send_entries(client, topic, ["a0", "b0", "x", "a1", "y", "b1", "z"])
    async with await client.checkpoint_consumer(topic) as reader:
        first = [(await reader.read_next(timeout_s=30)).data for _ in range(taken)]
        kept = Checkpoint.from_bytes(reader.checkpoint().to_bytes())
    async with await client.checkpoint_consumer(topic, kept) as reader:
        assert reader.checkpoint().to_bytes() == kept.to_bytes()
        rest = [(await reader.read_next(timeout_s=30)).data for _ in range(5 - taken)]
        assert not await reader.has_message_available()
    assert first + rest == [b"x", b"a0a1", b"y", b"b0b1", b"z"]


async def send_first_chunk(client: Client, topic: str) -> None:
    """A chunk whose others will never follow."""
    await send_entries(client, topic, ["half0"])


async def send_entries(client: Client, topic: str, names: list[str]) -> None:
    """Entries in this order: a name with a digit is that chunk of a message of two."""
    async with await client.producer(topic, ProducerSettings(batching=False)) as producer:
        for name in names:
            metadata = MessageMetadata()
            if name[-1].isdigit():
                metadata.uuid, metadata.chunk_id = name[:-1], int(name[-1])
                metadata.num_chunks_from_msg = 2
                metadata.total_chunk_msg_size = 2 * len(name)
            producer.send_encoded_nowait(name.encode(), metadata)
            await producer.flush()
