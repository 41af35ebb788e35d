"""Publishing by the SDK from one process, beside the official client in the same run.

Rates: 100 B messages as fast as receipts allow, unbatched and in batches of 1000. Latencies, from
the call to the receipt: one message at a time, and at 2000 messages per second, all unbatched. Both
clients take turns against one `magnetar standalone`, which shares the machine with them. The report
has the medians of the rounds.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

import pulsar
import uvloop

from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from tests.bench.report import FULL, Effort, Figure, Report
from tests.standalone import Standalone

_PAYLOAD = bytes(100)
_UNBATCHED_MIN = 60_000
_BATCHED_MIN = 300_000
_BATCH = 1_000
_THEIR_BATCHED = 600_000
"""Messages of the official client in batches: 600 full ones, several seconds of a steady rate. It
takes one message per call, so as many messages as for the SDK would take minutes, for the same
rate."""
_RATE = 2_000
_IN_FLIGHT = 1_000
_WAIT_S = 120.0

Load = Callable[[str, int], list[float]]
"""Runs a load of so many messages; returns the rate, or p50 and p99 in ms."""


class SdkBench:
    """Measures both clients; its figures go to the report."""

    def __init__(self, report: Report, effort: Effort) -> None:
        self._report = report
        is_full = effort is FULL
        self._rounds = 3 if is_full else 1
        self._scale = 1 if is_full else 10

    def sdk(self) -> None:
        """Measure rates, then latencies."""
        with Standalone(self._report.directory / "sdk") as server:
            for batching, messages, least in (
                (False, (300_000, 300_000), _UNBATCHED_MIN),
                (True, (3_000_000, _THEIR_BATCHED), _BATCHED_MIN),
            ):
                ours, theirs = messages
                counts = (ours // self._scale, theirs // self._scale)
                self._rate(server.url, batching, counts, least)
            for name, both, count in (
                ("one at a time", (_our_turns, _their_turns), 5_000),
                (f"at {_RATE} messages/s", (_our_pace, _their_pace), 20_000),
            ):
                self._latency(server.url, name, both, count // self._scale)

    def _rate(self, url: str, batching: bool, messages: tuple[int, int], least: int) -> None:
        ours, theirs = self._in_turn(
            (partial(_our_rate, batching), partial(_their_rate, batching)), url, messages
        )
        value = statistics.median(run[0] for run in ours)
        beside = statistics.median(run[0] for run in theirs)
        self._report.add(
            Figure(
                name=f"SDK, {'batched' if batching else 'unbatched'}, 100 B, one process",
                unit="messages/s",
                value=round(value),
                target=f">= {least}",
                met=value >= least,
                ratio=round(value / beside, 2),
                beside="the official client",
                beside_value=round(beside),
                runs=[round(run[0]) for run in ours],
            )
        )

    def _latency(self, url: str, name: str, loads: tuple[Load, Load], messages: int) -> None:
        ours, theirs = self._in_turn(loads, url, (messages, messages))
        for place, part in enumerate(("p50", "p99")):
            value = statistics.median(run[place] for run in ours)
            beside = statistics.median(run[place] for run in theirs)
            self._report.add(
                Figure(
                    name=f"SDK, publish latency {part}, {name}",
                    unit="ms",
                    value=round(value, 3),
                    target="<= the official client's" if part == "p99" else "told",
                    met=part == "p50" or value <= beside,
                    ratio=round(value / beside, 2),
                    beside="the official client",
                    beside_value=round(beside, 3),
                    runs=[round(run[place], 3) for run in ours],
                )
            )

    def _in_turn(
        self, loads: tuple[Load, Load], url: str, messages: tuple[int, int]
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Return the results of both clients, measured one after the other in each round."""
        results: tuple[list[list[float]], list[list[float]]] = ([], [])
        for load, count in zip(loads, messages, strict=True):
            load(url, max(100, count // 20))  # connections, caches, the topic
        for _ in range(self._rounds):
            for load, count, found in zip(loads, messages, results, strict=True):
                found.append(load(url, count))
        return results


def _quantiles(latencies_s: list[float]) -> list[float]:
    ordered = sorted(latencies_s)
    return [1_000 * ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99)]


# -- the SDK


def _our_rate(batching: bool, url: str, messages: int) -> list[float]:
    async def run() -> list[float]:
        settings = ProducerSettings(
            batching=batching,
            batch_messages_max=_BATCH,
            pending_messages_max=_IN_FLIGHT * (100 if batching else 1),
        )
        async with Client(url) as client, await client.producer("ours-rate", settings) as producer:
            payloads = [_PAYLOAD] * messages
            begun_s = time.perf_counter()
            await producer.send_many(payloads)
            await producer.flush()
            return [messages / (time.perf_counter() - begun_s)]

    return uvloop.run(run())


def _our_turns(url: str, messages: int) -> list[float]:
    async def run() -> list[float]:
        settings = ProducerSettings(batching=False)
        latencies_s: list[float] = []
        async with Client(url) as client, await client.producer("ours-turns", settings) as producer:
            for _ in range(messages):
                begun_s = time.perf_counter()
                await producer.send(_PAYLOAD)
                latencies_s.append(time.perf_counter() - begun_s)
        return _quantiles(latencies_s)

    return uvloop.run(run())


def _our_pace(url: str, messages: int) -> list[float]:
    latencies_s: list[float] = []

    def told(begun_s: float, message_id: MessageId | None, error: SdkError | None) -> None:
        assert error is None, error
        latencies_s.append(time.perf_counter() - begun_s)

    async def run() -> None:
        settings = ProducerSettings(batching=False)
        async with Client(url) as client, await client.producer("ours-pace", settings) as producer:
            start_s = time.perf_counter()
            for at in range(messages):
                wait_s = start_s + at / _RATE - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                producer.send_nowait(_PAYLOAD, on_sent=partial(told, time.perf_counter()))

    uvloop.run(run())
    return _quantiles(latencies_s)


# -- the official client


def _official(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def _their_rate(batching: bool, url: str, messages: int) -> list[float]:
    client = _official(url)
    failed: list[object] = []

    def told(result: object, message_id: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    try:
        producer = client.create_producer(
            "theirs-rate",
            batching_enabled=batching,
            batching_max_messages=_BATCH,
            batching_max_allowed_size_in_bytes=1 << 20,
            max_pending_messages=_IN_FLIGHT * (100 if batching else 1),
            block_if_queue_full=True,
        )
        begun_s = time.perf_counter()
        for _ in range(messages):
            producer.send_async(_PAYLOAD, told)
        producer.flush()
        rate = messages / (time.perf_counter() - begun_s)
    finally:
        client.close()
    assert not failed, failed[0]
    return [rate]


def _their_turns(url: str, messages: int) -> list[float]:
    client = _official(url)
    latencies_s: list[float] = []
    try:
        producer = client.create_producer("theirs-turns", batching_enabled=False)
        for _ in range(messages):
            begun_s = time.perf_counter()
            producer.send(_PAYLOAD)
            latencies_s.append(time.perf_counter() - begun_s)
    finally:
        client.close()
    return _quantiles(latencies_s)


def _their_pace(url: str, messages: int) -> list[float]:
    client = _official(url)
    latencies_s: list[float] = []
    failed: list[object] = []
    done = threading.Event()

    def told(begun_s: float, result: object, message_id: object) -> None:
        # An error raised here would end the process: the client's own code makes the call.
        if result != pulsar.Result.Ok:
            failed.append(result)
        latencies_s.append(time.perf_counter() - begun_s)
        if len(latencies_s) == messages:
            done.set()

    try:
        producer = client.create_producer(
            "theirs-pace", batching_enabled=False, block_if_queue_full=True
        )
        start_s = time.perf_counter()
        for at in range(messages):
            wait_s = start_s + at / _RATE - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            producer.send_async(_PAYLOAD, partial(told, time.perf_counter()))
        producer.flush()
        assert done.wait(_WAIT_S), f"{len(latencies_s)} of {messages} receipts"
    finally:
        client.close()
    assert not failed, failed[0]
    return _quantiles(latencies_s)
