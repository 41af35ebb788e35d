"""Helpers around the official client: quiet, and without a wait that is not for an event."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pulsar

PUBLISH_TIMEOUT_S: Final = 120
RECEIVE_TIMEOUT_MS: Final = 30_000
"""How long a message that must come may take; far above what a loaded machine needs."""


def connect(url: str, *, log_path: Path | str = "/dev/null") -> pulsar.Client:
    """A client that logs to a file only."""
    return pulsar.Client(
        url,
        operation_timeout_seconds=30,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log_path)),
    )


class Sent:
    """Counts acknowledgements of `send_async` and keeps the id of each message by its index.

    The client's threads call back here. A callback must not raise: that would end the process.
    """

    def __init__(self, count: int) -> None:
        self.ids: list[pulsar.MessageId | None] = [None] * count
        self.failed: list[tuple[int, pulsar.Result]] = []
        self._lock = threading.Lock()
        self._left = count
        self._all = threading.Event()

    def callback(self, index: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        return partial(self._on_result, index)

    def _on_result(self, index: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                self.ids[index] = message_id
            else:
                self.failed.append((index, result))
            self._left -= 1
            if self._left == 0:
                self._all.set()

    def wait_all(self) -> list[pulsar.MessageId]:
        """The ids of all messages; fails if one was refused."""
        assert self._all.wait(PUBLISH_TIMEOUT_S), f"{self._left} messages without an answer"
        assert not self.failed, f"refused: {self.failed[:3]} of {len(self.failed)}"
        ids = [each for each in self.ids if each is not None]
        assert len(ids) == len(self.ids)
        return ids


def publish(
    producer: pulsar.Producer, messages: Sequence[bytes | tuple[str | None, bytes]]
) -> list[pulsar.MessageId]:
    """Publish payloads, or pairs of key and payload; return their ids when all are stored."""
    sent = Sent(len(messages))
    for index, message in enumerate(messages):
        key, payload = (None, message) if isinstance(message, bytes) else message
        producer.send_async(payload, sent.callback(index), partition_key=key)
    producer.flush()
    return sent.wait_all()


def publish_to(
    client: pulsar.Client,
    topic: str,
    messages: Sequence[bytes | tuple[str | None, bytes]],
    **settings: Any,
) -> None:
    """Publish payloads, or pairs of key and payload, by a producer for them alone."""
    producer = client.create_producer(topic, block_if_queue_full=True, **settings)
    publish(producer, messages)
    producer.close()


def receive(consumer: pulsar.Consumer) -> pulsar.Message:
    """The next message, which must come."""
    return consumer.receive(timeout_millis=RECEIVE_TIMEOUT_MS)


def read_next(reader: pulsar.Reader) -> pulsar.Message:
    """The reader's next message.

    Always with a timeout: without one the official client takes its asynchronous path, which looks
    at its queue and then registers its wish, not in one step. A message that arrives in between is
    overtaken by the next one. The broker had sent them in order (3 of 42 million were swapped).
    """
    return reader.read_next(timeout_millis=RECEIVE_TIMEOUT_MS)


def receive_payloads(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Receive and acknowledge, each by itself."""
    payloads = []
    for _ in range(count):
        message = receive(consumer)
        payloads.append(message.data())
        consumer.acknowledge(message)
    return payloads


def assert_nothing_left(client: pulsar.Client, consumer: pulsar.Consumer, topic: str) -> None:
    """The next thing that comes is a message published now: so nothing else was outstanding.

    This needs no waiting for something not to come. The message is acknowledged.
    """
    marker = b"nothing is left before this"
    producer = client.create_producer(topic)
    producer.send(marker)
    producer.close()
    assert receive_payloads(consumer, 1) == [marker]
