"""What the drill's client processes have in common: the official client, a history, an end."""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pulsar

from tests.chaos.cluster.checker import Message, Position
from tests.chaos.cluster.records import Recorder, key_of, message_of

READY = "ready"
END = "end"
"""The producer of the last message of each topic: whoever gets it has all."""
SHARED = "shared"
"""A subscription of two consumers, which leave some messages unacknowledged."""
SINGLE = "single"
"""A subscription with one active consumer, which acknowledges cumulatively."""
RECEIVE_TIMEOUT_MS = 500
"""Always with a timeout: without one this client may swap two messages of a reader."""
RETRY_S = 0.1
_OPEN_TIMEOUT_S = 120.0

T = TypeVar("T")


class Player:
    """One process: its client, its history, and the wish that it shall end."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.name: str = arguments.name
        self.topics: list[str] = arguments.topic
        self.interval_s: float = arguments.interval_ms / 1000
        self.has_keys: bool = arguments.keys
        self.is_exclusive: bool = arguments.exclusive
        self.recorder = Recorder(arguments.directory, arguments.name)
        self.stop = threading.Event()
        self._url: str = arguments.url
        self._log_path = arguments.directory / f"{arguments.name}.client.log"
        self._errors: list[BaseException] = []

    def connect(self) -> pulsar.Client:
        """A client of its own: several share nothing, not even a connection."""
        return pulsar.Client(
            self._url,
            operation_timeout_seconds=30,
            connection_timeout_ms=3000,
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self._log_path)),
        )

    def retry(self, what: str, attempt: Callable[[], T]) -> T:
        """Try until it succeeds: right after a fault a client may be refused."""
        until_s = time.monotonic() + _OPEN_TIMEOUT_S
        while True:
            try:
                return attempt()
            except pulsar.PulsarException as error:
                self.recorder.tried_again(f"{what}: {type(error).__name__}")
                if time.monotonic() > until_s:
                    raise
                self.stop.wait(RETRY_S)

    def take(self, message: pulsar.Message) -> tuple[Message, Position] | None:
        """Identify a message and its position; None, and a broken promise, if it is not ours."""
        position = position_of(message.message_id())
        found = message_of(message.data())
        if found is None:
            self.recorder.wrong(f"at {position} is {message.data()[:60]!r}")
            return None
        if self.has_keys and message.partition_key() != key_of(found):
            self.recorder.wrong(f"at {position} is {found}, with key {message.partition_key()!r}")
        return found, position

    def run(self, works: list[Callable[[], None]]) -> None:
        """Each on a thread of its own; an error of one ends the process with status 1."""
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        self.recorder.end()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised by the main thread
            self._errors.append(error)
            self.stop.set()


def position_of(message_id: pulsar.MessageId) -> Position:
    return Position(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def play(part: Callable[[Player], None]) -> None:
    """Run `part` with what the command line says. SIGTERM sets the player's `stop`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--interval-ms", type=float, default=10.0)
    parser.add_argument("--keys", action="store_true", help="messages have keys")
    parser.add_argument("--exclusive", action="store_true", help=f"{SINGLE} is no failover")
    player = Player(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda _number, _frame: player.stop.set())
    part(player)
