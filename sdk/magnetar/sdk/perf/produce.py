"""`magnetar perf produce`: messages of one size to one topic.

The load is closed: at most `in_flight` messages are without receipt. Latency is the time from the
call that sent a message to its receipt; every message of a batch counts.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import uvloop

from magnetar.sdk.client import Client
from magnetar.sdk.pending_sends import PendingSend
from magnetar.sdk.perf.result import LatencyHistogram, PerfResult
from magnetar.sdk.producer import Producer
from magnetar.sdk.settings import ClientSettings, ProducerSettings
from magnetar.sdk.wire.compression import Compression

MESSAGES_DEFAULT = 100_000
_PACE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    """The load of a run. Give `messages` or `seconds`; with neither, 100 000 messages are sent."""

    url: str = "pulsar://127.0.0.1:6650"
    client: ClientSettings = field(default_factory=ClientSettings)
    topic: str = "perf"
    messages: int | None = None
    seconds: float | None = None
    size: int = 1_024
    """Payload size of a message, in bytes."""
    in_flight: int | None = None
    """Most messages without receipt; by default 1000, or a hundred batches."""
    batch_size: int = 0
    """Messages per batch; 0: not batched, one entry for each."""
    rate: float | None = None
    """Messages per second; None: as fast as receipts allow."""
    compression: Compression = Compression.NONE

    def __post_init__(self) -> None:
        if self.size < 0 or self.batch_size < 0:
            raise ValueError("size and batch size must not be negative")
        for value in (self.messages, self.seconds, self.in_flight, self.rate):
            if value is not None and value <= 0:
                raise ValueError("messages, seconds, in flight and rate must be above 0")

    @property
    def in_flight_effective(self) -> int:
        if self.in_flight is not None:
            return self.in_flight
        return 1_000 if self.batch_size == 0 else 100 * self.batch_size

    def producer_settings(self) -> ProducerSettings:
        batch_size = max(1, self.batch_size)
        return ProducerSettings(
            batching=self.batch_size > 0,
            batch_messages_max=batch_size,
            batch_bytes_max=min(4 * 1024 * 1024, max(128 * 1024, batch_size * (self.size + 32))),
            pending_messages_max=self.in_flight_effective,
            pending_bytes_max=256 * 1024 * 1024,
            compression=self.compression,
        )


def run_produce(options: ProduceOptions) -> PerfResult:
    """Run `produce` in an event loop of its own."""
    return uvloop.run(produce(options))


async def produce(
    options: ProduceOptions, *, on_progress: Callable[[int], None] | None = None
) -> PerfResult:
    """Send the load and wait for all receipts.

    `on_progress` is called now and then with the number of messages stored so far.

    Raises:
        SdkError: the broker is not reachable, or a message failed.
    """
    async with Client(options.url, options.client) as client:
        producer = await client.producer(options.topic, options.producer_settings())
        latency = LatencyHistogram()

        def on_confirmed(sends: Sequence[PendingSend], now_s: float) -> None:
            _record(latency, sends, now_s)
            if on_progress is not None:
                on_progress(latency.count)

        producer.on_confirmed = on_confirmed
        started_s, cpu_started_s = time.monotonic(), time.process_time()
        if options.rate is None:
            await _at_full_speed(producer, options, started_s)
        else:
            await _at_rate(producer, options, options.rate, started_s)
        await producer.flush()
        seconds = time.monotonic() - started_s
        cpu_s = time.process_time() - cpu_started_s
    messages = latency.count
    return PerfResult(
        messages=messages,
        seconds=seconds,
        payload_bytes=messages * options.size,
        latency=latency,
        extra={
            "size": options.size,
            "in_flight": options.in_flight_effective,
            "batch_size": options.batch_size,
            "client_cpu_us_per_msg": round(cpu_s / max(1, messages) * 1e6, 3),
        },
    )


def _record(latency: LatencyHistogram, sends: Sequence[PendingSend], now_s: float) -> None:
    """Record the latencies of sends. Sends of one call have one time: they are counted together."""
    sent_at_s, count = sends[0].sent_at_s, 0
    for send in sends:
        if send.sent_at_s != sent_at_s:
            latency.record(int((now_s - sent_at_s) * 1e6), count)
            sent_at_s, count = send.sent_at_s, 0
        count += send.messages
    latency.record(int((now_s - sent_at_s) * 1e6), count)


def _payload(size: int) -> bytes:
    # The same incompressible bytes in each run, so that runs can be compared.
    return random.Random(0).randbytes(size)


async def _at_full_speed(producer: Producer, options: ProduceOptions, started_s: float) -> None:
    limit = _limit(options)
    chunk = [_payload(options.size)] * max(1_000, 10 * options.batch_size)
    sent = 0
    while sent < limit and not _is_over(options, started_s):
        some = chunk if limit - sent >= len(chunk) else chunk[: int(limit - sent)]
        await producer.send_many(some)
        sent += len(some)


async def _at_rate(
    producer: Producer, options: ProduceOptions, rate: float, started_s: float
) -> None:
    limit = _limit(options)
    payload = _payload(options.size)
    sent = 0
    while sent < limit and not _is_over(options, started_s):
        due = min(limit, (time.monotonic() - started_s) * rate) - sent
        if due >= 1:
            await producer.send_many([payload] * int(due))
            sent += int(due)
        await asyncio.sleep(min(_PACE_S, 1 / rate))


def _limit(options: ProduceOptions) -> float:
    if options.messages is not None:
        return options.messages
    return MESSAGES_DEFAULT if options.seconds is None else float("inf")


def _is_over(options: ProduceOptions, started_s: float) -> bool:
    return options.seconds is not None and time.monotonic() - started_s >= options.seconds
