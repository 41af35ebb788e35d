"""A producer of the drill: messages with random keys at a steady rate, until SIGTERM.

usage: python -m tests.chaos.scalable.publish URL DIRECTORY NUMBER RATE KEYS

No message is given up: the client keeps it over reconnects, splits and merges until it has a
receipt. At the end it writes how many messages of each key were confirmed, how many in all by then
in each second, and where publishing stood still: a part of the keys had messages without a receipt,
and none was confirmed for a while. While there is a file `held`, it sends nothing.
"""

import asyncio
import json
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from mmh3 import mmh3_32_uintdigest

from magnetar.sdk import Client, ClientSettings, MessageId, Producer, ProducerSettings
from magnetar.sdk.errors import PendingLimitError, SdkError
from tests.chaos.scalable.records import TOPIC, payload_of
from tests.chaos.scalable.stalls import GAP_S, SLOT_BITS, SLOTS

HELD = "held"
_TURN_S = 0.02
_BEHIND_S_MAX = 1.0
"""What could not be sent for longer is not caught up."""
_GAPS_MAX = 200_000
_FAILURES_MAX = 10
_RING_BITS = 32


class _Slot:
    """A part of the keys: those of a sixteenth of the ring."""

    __slots__ = ("pending", "since_s")

    def __init__(self) -> None:
        self.pending = 0
        self.since_s = 0.0
        """Of the last receipt, or of the first message without one."""


class _Load:
    """The messages of one producer."""

    def __init__(self, number: int, keys: int) -> None:
        self._number, self._keys = number, keys
        self._random = random.Random(number)
        self._loop = asyncio.get_running_loop()
        self._names = [f"k{key}" for key in range(keys)]
        slots = [_Slot() for _ in range(SLOTS)]
        numbers = [
            mmh3_32_uintdigest(name.encode()) >> (_RING_BITS - SLOT_BITS) for name in self._names
        ]
        self._slots = [(each, slots[each]) for each in numbers]
        """Of each key."""
        self._given = [0] * keys
        self._confirmed = [0] * keys
        self._total = 0
        self._totals: list[tuple[float, int]] = []
        self._gaps: list[tuple[int, float, float]] = []
        self._gaps_left_off = 0
        self._failures: list[str] = []
        self.held_s = 0.0

    def send(self, producer: Producer) -> None:
        """Give one message to the client.

        Raises:
            PendingLimitError: not now.
        """
        key = int(self._random.random() * self._keys)
        payload = payload_of(self._number, key, self._given[key])
        producer.send_nowait(payload, key=self._names[key], on_sent=partial(self._on_sent, key))
        self._given[key] += 1
        _, slot = self._slots[key]
        if not slot.pending:
            slot.since_s = self._loop.time()
        slot.pending += 1

    def _on_sent(self, key: int, _id: MessageId | None, error: SdkError | None) -> None:
        now_s = self._loop.time()
        number, slot = self._slots[key]
        if now_s - slot.since_s > GAP_S:
            self._note(number, slot.since_s, now_s)
        slot.since_s = now_s
        slot.pending -= 1
        if error is not None:
            if len(self._failures) < _FAILURES_MAX:
                self._failures.append(str(error))
            return
        self._confirmed[key] += 1
        self._total += 1

    def _note(self, slot: int, since_s: float, until_s: float) -> None:
        if len(self._gaps) < _GAPS_MAX:
            self._gaps.append((slot, since_s, until_s))
        else:
            self._gaps_left_off += 1

    def tick(self) -> None:
        """Write down how many are confirmed, once a second."""
        now_s = self._loop.time()
        if not self._totals or now_s - self._totals[-1][0] >= 1:
            self._totals.append((now_s, self._total))

    def result(self) -> dict[str, Any]:
        self._totals.append((self._loop.time(), self._total))
        return {
            "confirmed": self._confirmed,
            "totals": self._totals,
            "gaps": self._gaps,
            "gaps_left_off": self._gaps_left_off,
            "held_s": round(self.held_s, 1),
            "failures": self._failures,
        }


def _is_held(held: Path) -> bool:
    """Whether consumers are too far behind."""
    return held.exists()


async def _send(
    producer: Producer, load: _Load, rate: float, stop: asyncio.Event, held: Path
) -> None:
    loop = asyncio.get_running_loop()
    at_s = loop.time()
    while not stop.is_set():
        load.tick()
        now_s = loop.time()
        if _is_held(held):
            load.held_s += _TURN_S
            at_s = now_s
        at_s = max(at_s, now_s - _BEHIND_S_MAX)
        try:
            while at_s < now_s:
                load.send(producer)
                at_s += 1 / rate
        except PendingLimitError:
            pass
        await asyncio.sleep(_TURN_S)


async def publish(url: str, directory: Path, number: int, rate: float, keys: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    load = _Load(number, keys)
    settings = ProducerSettings(name=f"p{number}", send_timeout_ms=0)
    async with (
        Client(url, ClientSettings(operation_timeout_ms=180_000)) as client,
        client.producer(TOPIC, settings) as producer,
    ):
        await _send(producer, load, rate, stop, directory / HELD)
        await producer.flush()
    (directory / f"{number}.published").write_text(json.dumps(load.result()))


def main(arguments: list[str]) -> None:
    url, directory, number, rate, keys = arguments
    asyncio.run(publish(url, Path(directory), int(number), float(rate), int(keys)))


if __name__ == "__main__":
    main(sys.argv[1:])
