"""A producer of the drill: messages with random keys at a steady rate, until SIGTERM.

usage: python -m tests.chaos.scalable.publish URL DIRECTORY NUMBER RATE KEYS

No message is given up: the client keeps it over reconnects, splits and merges until it has a
receipt. At the end it writes how many messages of each key were confirmed.
"""

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path

from magnetar.sdk import Client, ClientSettings, MessageId, Producer, ProducerSettings
from magnetar.sdk.errors import PendingLimitError, SdkError
from tests.chaos.scalable.records import TOPIC, payload_of

_TURN_S = 0.02
_BEHIND_S_MAX = 1.0
"""What could not be sent for longer is not caught up."""


class _Load:
    """The messages of one producer."""

    def __init__(self, number: int, keys: int) -> None:
        self._number, self._keys = number, keys
        self._random = random.Random(number)
        self._given: Counter[int] = Counter()
        self.confirmed: Counter[int] = Counter()
        self.failures: list[str] = []

    def send(self, producer: Producer) -> None:
        """Give one message to the client.

        Raises:
            PendingLimitError: not now.
        """
        key = self._random.randrange(self._keys)

        def on_sent(_id: MessageId | None, error: SdkError | None) -> None:
            if error is None:
                self.confirmed[key] += 1
            else:
                self.failures.append(str(error))

        payload = payload_of(self._number, key, self._given[key])
        producer.send_nowait(payload, key=f"k{key}", on_sent=on_sent)
        self._given[key] += 1


async def _send(producer: Producer, load: _Load, rate: float, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    at_s = loop.time()
    while not stop.is_set():
        at_s = max(at_s, loop.time() - _BEHIND_S_MAX)
        try:
            while at_s <= loop.time():
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
        await _send(producer, load, rate, stop)
        await producer.flush()
    result = {"confirmed": load.confirmed, "failures": load.failures[:10]}
    (directory / f"{number}.published").write_text(json.dumps(result))


def main(arguments: list[str]) -> None:
    url, directory, number, rate, keys = arguments
    asyncio.run(publish(url, Path(directory), int(number), float(rate), int(keys)))


if __name__ == "__main__":
    main(sys.argv[1:])
