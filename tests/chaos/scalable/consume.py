"""A stream consumer of the drill, until it is killed, or leaves at SIGTERM.

usage: python -m tests.chaos.scalable.consume URL DIRECTORY NAME

It writes down what it is given before it acknowledges that, and has each acknowledgement confirmed.
"""

import asyncio
import signal
import sys
from pathlib import Path

from magnetar.sdk import Client, ClientSettings, Consumer, ConsumerSettings, InitialPosition
from magnetar.sdk.errors import SdkError
from tests.chaos.scalable.records import SUBSCRIPTION, TOPIC, Journal, Kind, journal_path

_ENTRIES_MAX = 500
_WAIT_S = 0.5


async def _consume(consumer: Consumer, journal: Journal, stop: asyncio.Event) -> None:
    while not stop.is_set():
        batches = await consumer.receive_batches(_ENTRIES_MAX, timeout_s=_WAIT_S)
        if not batches:
            continue
        journal.received(batches)
        try:
            await consumer.acknowledge_confirmed(*batches)
        except SdkError:
            journal.acknowledged(Kind.UNCONFIRMED)
        else:
            journal.acknowledged(Kind.CONFIRMED)


async def consume(url: str, directory: Path, name: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = ConsumerSettings(name=name, initial_position=InitialPosition.EARLIEST)
    journal = Journal(journal_path(directory, name))
    async with Client(url, ClientSettings(operation_timeout_ms=30_000)) as client:
        while not stop.is_set():
            try:
                async with client.stream_consumer(TOPIC, SUBSCRIPTION, settings) as consumer:
                    await _consume(consumer, journal, stop)
            except SdkError as error:
                sys.stderr.write(f"{name} begins again: {error}\n")
                await asyncio.sleep(_WAIT_S)


def main(arguments: list[str]) -> None:
    url, directory, name = arguments
    asyncio.run(consume(url, Path(directory), name))


if __name__ == "__main__":
    main(sys.argv[1:])
