"""An official-client producer that sends every few milliseconds and notes when answers came."""

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import pulsar

INTERVAL_S = 0.002
_IN_FLIGHT_MAX = 20_000
_PAYLOAD = bytes(1024)
_CONNECT_TIMEOUT_MS = 3000
_WAIT_S = 60.0


class NoAnswersError(Exception):
    """The producer got no answer for a long time."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Longest times without an answer, in seconds."""

    longest_s: float
    """Longest time between two answers; the strike counts as an answer."""
    steady_s: float
    """Longest time between two answers in the second before the strike."""


class Publisher:
    """A context manager that sends messages all the time, and keeps them over reconnects."""

    def __init__(self, url: str, topic: str) -> None:
        self._answers_s: list[float] = []
        """Times of the answers, in the order in which the messages were sent."""
        self._sent_s: list[float] = []
        self._failed: list[str] = []
        self._stop = threading.Event()
        self._client = pulsar.Client(
            url,
            connection_timeout_ms=_CONNECT_TIMEOUT_MS,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
        self._producer = self._client.create_producer(
            topic, send_timeout_millis=0, max_pending_messages=_IN_FLIGHT_MAX
        )
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "Publisher":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._client.shutdown()

    def steady(self, seconds: float) -> None:
        """Let it send for a while, until all of that is answered."""
        self._wait_answered(time.monotonic() + seconds)

    def gap_since(self, strike_s: float, *, at_least_s: float) -> Gap:
        """Return the longest time without an answer after a moment.

        Args:
            strike_s: the moment, by `time.monotonic()`.
            at_least_s: how long afterwards to watch for a gap.

        Raises:
            NoAnswersError
        """
        self._wait_answered(max(strike_s, time.monotonic()) + at_least_s)
        before = [each for each in self._answers_s if strike_s - 1 <= each <= strike_s]
        after = [strike_s, *(each for each in self._answers_s if strike_s < each)]
        return Gap(_longest(after), _longest(before))

    def _wait_answered(self, until_s: float) -> None:
        """Wait until messages sent after that moment are answered."""
        give_up_s = until_s + _WAIT_S
        while True:
            answered = len(self._answers_s)
            if answered and self._sent_s[answered - 1] > until_s:
                return
            if self._failed or time.monotonic() > give_up_s:
                raise NoAnswersError(
                    f"{answered} of {len(self._sent_s)} messages answered; {self._failed[:3]}"
                )
            threading.Event().wait(0.02)

    def _send(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            self._sent_s.append(time.monotonic())
            try:
                self._producer.send_async(_PAYLOAD, self._on_result)
            except pulsar.PulsarException as error:
                self._failed.append(type(error).__name__)
                return
            next_s += INTERVAL_S
            self._stop.wait(max(0.0, next_s - time.monotonic()))

    def _on_result(self, result: pulsar.Result, _message_id: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self._answers_s.append(time.monotonic())
        elif not self._stop.is_set():
            self._failed.append(str(result))


def _longest(moments: list[float]) -> float:
    return max((b - a for a, b in pairwise(moments)), default=0.0)
