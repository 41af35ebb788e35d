"""`magnetar perf consume`: take messages from one subscription.

The number of messages in a batch comes from the entry's metadata; batches are split only with
`decode`. (Checksums are always verified.) Latency is the time from the producer's publish time to
the moment when the entry is taken. On a live topic this is the end-to-end latency; when catching
up, it is the age of the backlog.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import uvloop

from magnetar.sdk.batch import MessageBatch
from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.perf.result import WAITED, LatencyHistogram, PerfResult
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    SubscriptionType,
)

_ENTRIES_PER_TURN_MAX = 500
_WAIT_S = 0.25


class AckMode(Enum):
    """How messages are acknowledged; an entry is one acknowledgement."""

    INDIVIDUAL = "individual"
    CUMULATIVE = "cumulative"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The load of a run. In any case a run ends when no message has come for `idle_s`."""

    url: str = "pulsar://127.0.0.1:6650"
    client: ClientSettings = field(default_factory=ClientSettings)
    topic: str = "perf"
    subscription: str = "perf"
    subscription_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    consumers: int = 1
    """Number of consumers, each on a connection of its own."""
    messages: int | None = None
    """Stop after so many messages (a batch may add a few more)."""
    seconds: float | None = None
    idle_s: float = 5.0
    """Stop when no message has come for this time, in seconds."""
    ack: AckMode = AckMode.INDIVIDUAL
    decode: bool = False
    """Whether to split batches into their messages, as an application would."""
    receiver_queue: int = 20_000
    """Messages that the broker may send ahead, for each consumer."""
    from_latest: bool = False
    """Whether a new subscription begins at the end of the topic, not at its first message."""

    def __post_init__(self) -> None:
        if self.consumers < 1:
            raise ValueError("consumers must be at least 1")
        if self.consumers > 1 and self.subscription_type is SubscriptionType.EXCLUSIVE:
            raise ValueError("an exclusive subscription takes one consumer only")
        if self.ack is AckMode.CUMULATIVE and not self.subscription_type.keeps_order:
            raise ValueError("a shared subscription does not support cumulative acknowledgements")


class _Run:
    """The sums of all consumers of a run."""

    def __init__(self, options: ConsumeOptions, on_progress: Callable[[int], None] | None) -> None:
        self.options = options
        self.on_progress = on_progress
        self.latency = LatencyHistogram()
        self.messages = 0
        self.entries = 0
        self.payload_bytes = 0
        self.waited = 0
        """Messages that were published before the run began."""
        self.started_ms = time.time_ns() // 1_000_000
        self.started_s = self.last_s = time.monotonic()
        self.first_s = 0.0

    @property
    def is_over(self) -> bool:
        options, now_s = self.options, time.monotonic()
        if options.messages is not None and self.messages >= options.messages:
            return True
        if options.seconds is not None and now_s - self.started_s >= options.seconds:
            return True
        return now_s - self.last_s >= options.idle_s


def run_consume(options: ConsumeOptions) -> PerfResult:
    """Run `consume` in an event loop of its own."""
    return uvloop.run(consume(options))


async def consume(
    options: ConsumeOptions, *, on_progress: Callable[[int], None] | None = None
) -> PerfResult:
    """Take messages until the options say enough. The measured time is from first to last message.

    `on_progress` is called now and then with the number of messages so far.

    Raises:
        SdkError: the broker is not reachable, or a message cannot be read.
    """
    settings = ConsumerSettings(
        subscription_type=options.subscription_type,
        initial_position=(
            InitialPosition.LATEST if options.from_latest else InitialPosition.EARLIEST
        ),
        receiver_queue_messages=options.receiver_queue,
    )
    clients = [Client(options.url, options.client) for _ in range(options.consumers)]
    try:
        consumers = [
            await client.consumer(options.topic, options.subscription, settings)
            for client in clients
        ]
        run = _Run(options, on_progress)
        cpu_started_s = time.process_time()
        await asyncio.gather(*(_consume(consumer, run) for consumer in consumers))
        cpu_s = time.process_time() - cpu_started_s
    finally:
        for client in clients:
            await client.close()
    return PerfResult(
        messages=run.messages,
        seconds=max(0.0, run.last_s - run.first_s) if run.messages else 0.0,
        payload_bytes=run.payload_bytes,
        latency=run.latency,
        extra={
            "entries": run.entries,
            WAITED: run.waited,
            "consumers": options.consumers,
            "subscription_type": options.subscription_type.value,
            "ack": options.ack.value,
            "decode": int(options.decode),
            "client_cpu_us_per_msg": round(cpu_s / max(1, run.messages) * 1e6, 3),
        },
    )


async def _consume(consumer: Consumer, run: _Run) -> None:
    options = run.options
    while not run.is_over:
        batches = await consumer.receive_batches(_ENTRIES_PER_TURN_MAX, timeout_s=_WAIT_S)
        if not batches:
            continue
        now_ms = time.time_ns() // 1_000_000
        run.last_s = time.monotonic()
        if run.first_s == 0.0:
            run.first_s = run.last_s
        _count(run, batches, now_ms)
        if options.ack is AckMode.INDIVIDUAL:
            consumer.acknowledge_many(batches)
        elif options.ack is AckMode.CUMULATIVE:
            consumer.acknowledge_cumulative(batches[-1])
        if run.on_progress is not None:
            run.on_progress(run.messages)


def _count(run: _Run, batches: Sequence[MessageBatch], now_ms: int) -> None:
    decode = run.options.decode
    payload_bytes = 0
    # Neighbours were published in the same millisecond: record them together.
    publish_ms, count = batches[0].metadata.publish_time, 0
    for batch in batches:
        if decode:
            payload_bytes += sum(len(message.data) for message in batch.messages())
        else:
            payload_bytes += batch.payload_bytes
        time_ms = batch.metadata.publish_time
        if time_ms != publish_ms:
            _record(run, publish_ms, now_ms, count)
            publish_ms, count = time_ms, 0
        count += batch.count
    _record(run, publish_ms, now_ms, count)
    run.payload_bytes += payload_bytes
    run.entries += len(batches)


def _record(run: _Run, publish_ms: int, now_ms: int, count: int) -> None:
    run.latency.record((now_ms - publish_ms) * 1000, count)
    run.messages += count
    if publish_ms < run.started_ms:
        run.waited += count
