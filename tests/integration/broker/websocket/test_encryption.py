"""Messages that their clients encrypt: WebSocket clients pass them on, or leave them out."""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.broker.websocket.sockets import Topic, status_of
from tests.standalone import Standalone

EARLIEST = "subscriptionInitialPosition=Earliest"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    folder: Path = tmp_path_factory.mktemp("keys")
    key = rsa.generate_private_key(65537, 2048)
    (folder / "private").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    (folder / "public").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return pulsar.CryptoKeyReader(str(folder / "public"), str(folder / "private"))


@pytest.fixture
def client(server: Standalone) -> Iterator[pulsar.Client]:
    made = pulsar.Client(server.url)
    yield made
    made.close()


async def test_an_encrypted_message_passes_through_both_ways(
    client: pulsar.Client, keys: pulsar.CryptoKeyReader, topic: Topic
) -> None:
    """The official client encrypts; who passes it on over WebSocket cannot read it; the official
    client decrypts what arrives."""
    producer = await asyncio.to_thread(
        lambda: client.create_producer(
            topic.url,
            encryption_key="key",
            crypto_key_reader=keys,
            compression_type=pulsar.CompressionType.LZ4,
            batching_enabled=False,
        )
    )
    await asyncio.to_thread(producer.send, b"secret", {"a": "b"})
    async with topic.consumer(f"{EARLIEST}&cryptoFailureAction=CONSUME") as consumer:
        message = await consumer.receive()
        context = message["encryptionContext"]
        assert b64decode(message["payload"]) != b"secret"
        assert message["properties"] == {"a": "b"}
        assert (context["compressionType"], context["uncompressedMessageSize"]) == ("LZ4", 6)
        assert context["batchSize"] is None
        await consumer.ack(message["messageId"])

    other = Topic(topic.port, "public/default/passed-on")
    reading = await asyncio.to_thread(
        lambda: client.subscribe(other.url, "s", crypto_key_reader=keys)
    )
    encoded = b64encode(json.dumps(context["keys"]).encode()).decode()
    query = f"encryptionKeys={encoded}".replace("+", "%2B")
    async with other.producer(query) as passing:
        answer = await passing.publish(
            b64decode(message["payload"]),
            properties=message["properties"],
            encryptionParam=context["param"],
            compressionType=context["compressionType"],
            uncompressedMessageSize=context["uncompressedMessageSize"],
        )
        assert answer["result"] == "ok"
        received = await asyncio.to_thread(reading.receive, 20_000)
        assert (received.data(), received.properties()) == (b"secret", {"a": "b"})
        for wrong, code in (
            ({"compressionType": "LZ4"}, 3),
            ({"uncompressedMessageSize": 1}, 3),
            ({"compressionType": "RAR", "uncompressedMessageSize": 1}, 3),
            ({"encryptionParam": "no base64"}, 7),
        ):
            assert (await passing.publish("x", **wrong))["result"] == f"send-error:{code}"


async def test_who_does_not_want_encrypted_messages_gets_the_others(
    client: pulsar.Client, keys: pulsar.CryptoKeyReader, topic: Topic
) -> None:
    producer = await asyncio.to_thread(
        lambda: client.create_producer(
            topic.url,
            encryption_key="key",
            crypto_key_reader=keys,
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,  # a batch is what is flushed
        )
    )
    for payload in (b"one", b"two"):
        producer.send_async(payload, lambda *_: None)
    await asyncio.to_thread(producer.flush)
    async with topic.producer() as plain:
        await plain.publish_ok("plain")
    for action, again in (("", 3), ("FAIL", 3), ("DISCARD", 1), ("nonsense", 3)):
        query = f"{EARLIEST}&cryptoFailureAction={action}"
        async with topic.consumer(query, subscription=f"s{action}") as consumer:
            assert await consumer.payload(ack=False) == "plain"
            await consumer.is_end()
        # What was discarded is acknowledged, what failed is not.
        query = f"{EARLIEST}&cryptoFailureAction=CONSUME"
        async with topic.consumer(query, subscription=f"s{action}") as consumer:
            frames = [await consumer.receive() for _ in range(2 if again == 3 else 1)]
            sizes = [each.get("encryptionContext", {}).get("batchSize") for each in frames]
            assert sizes == ([2, None] if again == 3 else [None])
    async with topic.reader("messageId=earliest") as reader:
        assert await reader.payload() == "plain"


@pytest.mark.parametrize(
    "keys_text", ["name,other", "bm8ganNvbg==", "e30x", "W10=", "eyJhIjp7fX0="]
)
async def test_keys_that_are_none_are_refused(topic: Topic, keys_text: str) -> None:
    assert await status_of(topic.producer(f"encryptionKeys={keys_text}")) == 400
