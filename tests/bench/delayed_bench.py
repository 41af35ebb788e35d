"""Very many delayed messages on one topic: the broker's memory, and the cost of a kill -9.

A Shared consumer is connected while they are published, so that the broker indexes them as they
come. The broker is killed and started again. The measured time ends when the consumer has a message
that is not delayed: the topic is then loaded with its index. Finally a policy switches the delays
off, and every withheld message must arrive once.
"""

import threading
import time
from typing import Final

import pulsar

from tests.bench.report import FULL, Effort, Figure, Report
from tests.cluster import ProcessCluster
from tests.http_calls import admin

MESSAGES: Final = 1_000_000
MESSAGES_QUICK: Final = 40_000
_MEMORY_MB_MAX: Final = 300
_LOAD_S_MAX: Final = 10.0
_BYTES: Final = 100
_IN_FLIGHT: Final = 2000
_DELAY_MS: Final = 6 * 3600 * 1000
_SPREAD_MS: Final = 3600 * 1000
_RECEIVE_MS: Final = 60_000
_TOPIC: Final = "persistent/public/default/delayed"


class DelayedBench:
    """Measures delayed messages; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        self._count = MESSAGES if effort is FULL else MESSAGES_QUICK

    def delayed(self) -> None:
        count = self._count
        with ProcessCluster(self._report.directory / "delayed") as cluster:
            client, consumer = _join(cluster)
            before_mb = cluster.servers[-1].resident_bytes() / 1e6
            seconds = _publish(client, count)
            _take_marker(client, consumer)
            after_mb = cluster.servers[-1].resident_bytes() / 1e6
            withheld = _withheld(cluster)
            cluster.servers[-1].kill()
            client.shutdown()

            cluster.restart_broker()
            begun_s = time.perf_counter()
            client, consumer = _join(cluster)
            _take_marker(client, consumer)
            load_s = time.perf_counter() - begun_s
            again = _withheld(cluster)
            loaded_mb = cluster.servers[-1].resident_bytes() / 1e6

            peak_mb, missing, deliver_s = _release(cluster, consumer, count)
            client.close()
        details: dict[str, object] = {
            "messages": count,
            "published_per_s": round(count / seconds),
            "before_mb": round(before_mb),
            "after_kill_mb": round(loaded_mb),
            "while_delivered_mb": round(peak_mb),
            "withheld": withheld,
            "withheld_after_kill": again,
            "lost": missing,
            "delivered_per_s": round(count / deliver_s),
        }
        highest_mb = max(after_mb, loaded_mb, peak_mb)
        self._report.add(
            Figure(
                name=f"memory of a broker with {count} delayed messages",
                unit="MB",
                value=round(highest_mb),
                target=f"<= {_MEMORY_MB_MAX}",
                met=highest_mb <= _MEMORY_MB_MAX and withheld == again == count and not missing,
                details=details,
            )
        )
        self._report.add(
            Figure(
                name="loading them after kill -9",
                unit="s",
                value=round(load_s, 2),
                target=f"<= {_LOAD_S_MAX}",
                met=load_s <= _LOAD_S_MAX,
            )
        )


def _join(cluster: ProcessCluster) -> tuple[pulsar.Client, pulsar.Consumer]:
    client = pulsar.Client(
        cluster.url,
        operation_timeout_seconds=60,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"),
    )
    consumer = client.subscribe(
        _TOPIC.replace("/", "://", 1), "s", consumer_type=pulsar.ConsumerType.Shared
    )
    return client, consumer


def _publish(client: pulsar.Client, count: int) -> float:
    """Publish messages with mixed delivery times; return the seconds it took."""
    producer = client.create_producer(
        _TOPIC.replace("/", "://", 1),
        batching_enabled=False,
        max_pending_messages=_IN_FLIGHT,
        block_if_queue_full=True,
    )
    failed: list[pulsar.Result] = []

    def on_sent(result: pulsar.Result, _id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    due_ms = int(time.time() * 1000) + _DELAY_MS
    begun_s = time.perf_counter()
    for number in range(count):
        producer.send_async(
            number.to_bytes(_BYTES, "big"),
            on_sent,
            deliver_at=due_ms + number * 7919 % _SPREAD_MS,
        )
    producer.flush()
    seconds = time.perf_counter() - begun_s
    producer.close()
    assert not failed, failed[:3]
    return seconds


def _take_marker(client: pulsar.Client, consumer: pulsar.Consumer) -> None:
    """Publish a message without delay and receive it: it overtakes all delayed ones."""
    producer = client.create_producer(_TOPIC.replace("/", "://", 1))
    producer.send(b"now")
    producer.close()
    message = consumer.receive(timeout_millis=_RECEIVE_MS)
    assert message.data() == b"now", message.data()
    consumer.acknowledge(message)


def _withheld(cluster: ProcessCluster) -> int:
    stats = admin(cluster.http_port, "GET", f"{_TOPIC}/stats")
    return int(stats["subscriptions"]["s"]["msgDelayed"])


def _release(
    cluster: ProcessCluster, consumer: pulsar.Consumer, count: int
) -> tuple[float, int, float]:
    """Switch delays off and receive everything: peak memory in MB, messages lost, seconds."""
    begun_s = time.perf_counter()
    path = "namespaces/public/default/delayedDelivery"
    admin(cluster.http_port, "POST", path, {"active": False, "tickTime": 1000})
    peak_mb = 0.0
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak_mb
        while not is_over.wait(0.1):
            peak_mb = max(peak_mb, cluster.servers[-1].resident_bytes() / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = bytearray(count)
    left = count
    try:
        while left:
            message = consumer.receive(timeout_millis=_RECEIVE_MS)
            consumer.acknowledge(message)
            if message.data() == b"now":
                continue  # its acknowledgement was lost with the broker
            number = int.from_bytes(message.data(), "big")
            if not found[number]:
                found[number] = 1
                left -= 1
    except pulsar.Timeout:
        pass
    finally:
        is_over.set()
        watcher.join()
    return peak_mb, left, time.perf_counter() - begun_s
