"""The official client publishing and consuming all the time, and what it saw.

A message's body is its number. The producer counts a message as acknowledged when its receipt came;
gaps are measured between receipts, in seconds of this process's clock.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple

import pulsar

from tests.waiting import wait_until

_PACE_S = 0.004
_WAIT_S = 30.0
_LOGGER = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class Gap(NamedTuple):
    """The longest time without a receipt, and when it began."""

    seconds: float
    began_s: float


class Flow:
    """One producer and one consumer of one topic. A context manager."""

    def __init__(self, service_url: str, topic: str, **client_options: object) -> None:
        self._client = pulsar.Client(service_url, logger=_LOGGER, **client_options)
        self._producer = self._client.create_producer(
            topic,
            batching_enabled=False,
            send_timeout_millis=0,
            block_if_queue_full=True,
            max_pending_messages=100_000,
        )
        self._consumer = self._client.subscribe(
            topic, "flow", initial_position=pulsar.InitialPosition.Earliest
        )
        self.sent = 0
        self.receipts: list[tuple[float, int, pulsar.MessageId]] = []
        """When, which number, at which position."""
        self.failures: list[pulsar.Result] = []
        self.received: list[tuple[float, int, pulsar.MessageId]] = []
        self._is_publishing = True
        self._is_consuming = True
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._publish, self._take)
        ]

    def __enter__(self) -> "Flow":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_publishing = self._is_consuming = False
        for thread in self._threads:
            thread.join(_WAIT_S)
        self._client.close()

    def wait_until(self, condition: Callable[[], bool], what: str, wait_s: float = _WAIT_S) -> None:
        """
        Raises:
            AssertionError: it does not hold in time.
        """
        wait_until(condition, what, within_s=wait_s)

    def wait_receipts(self, count: int, wait_s: float = _WAIT_S) -> None:
        """Wait for so many more receipts."""
        enough = len(self.receipts) + count
        self.wait_until(lambda: len(self.receipts) >= enough, f"{count} more receipts", wait_s)

    def drain(self) -> None:
        """Publish no more, and wait until everything published is acknowledged and received."""
        self._is_publishing = False
        self._threads[0].join(_WAIT_S)
        self._producer.flush()
        numbers = set(range(self.sent))
        self.wait_until(
            lambda: numbers <= {number for _, number, _ in self.received}, "everything received"
        )

    def longest_gap(self, since_s: float) -> Gap:
        """Between receipts, from the last one before `since_s` on."""
        before = [at for at, _, _ in self.receipts if at <= since_s][-1:]
        times = before + [at for at, _, _ in self.receipts if at > since_s]
        return max(
            (Gap(later - at, at) for at, later in pairwise(times)),
            default=Gap(0.0, since_s),
        )

    def check(self) -> None:
        """Nothing acknowledged is missing, and first deliveries keep the order of the producer."""
        assert not self.failures, self.failures[:3]
        assert {number for _, number, _ in self.receipts} == set(range(self.sent))
        positions = {number: _position(place) for _, number, place in self.receipts}
        delivered: dict[int, list[tuple[int, int]]] = {}
        for _, number, place in self.received:
            delivered.setdefault(number, []).append(_position(place))
        for number, position in positions.items():
            assert position in delivered[number], f"{number} was acknowledged at {position}"
        first_deliveries = list(dict.fromkeys(number for _, number, _ in self.received))
        assert first_deliveries == sorted(first_deliveries)
        acknowledged = [positions[number] for number in sorted(positions)]
        assert acknowledged == sorted(acknowledged)

    def _publish(self) -> None:
        while self._is_publishing:
            number = self.sent
            self.sent += 1
            self._producer.send_async(b"%d" % number, partial(self._sent, number))
            time.sleep(_PACE_S)

    def _sent(self, number: int, result: pulsar.Result, place: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.receipts.append((time.monotonic(), number, place))
        else:
            self.failures.append(result)

    def _take(self) -> None:
        while self._is_consuming:
            try:
                message = self._consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            except pulsar.AlreadyClosed:
                return
            self.received.append((time.monotonic(), int(message.data()), message.message_id()))
            self._consumer.acknowledge(message)


def _position(place: pulsar.MessageId) -> tuple[int, int]:
    return place.ledger_id(), place.entry_id()
