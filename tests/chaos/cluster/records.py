"""What the drill's clients write down, line by line, and how the judgement reads it.

Each process appends to one file, `NAME.history`; a line is a letter and its fields. All processes
run on one host and share its monotonic clock.

    a TOPIC PRODUCER NUMBER POSITION TIME           a producer was told where its message is
    n TOPIC PRODUCER COUNT                          how many messages it began to send
    r TOPIC READER PRODUCER NUMBER POSITION TIME    a reader was given a message
    d TOPIC SUBSCRIPTION PRODUCER NUMBER POSITION TIME      a consumer was given a message
    k TOPIC SUBSCRIPTION POSITION TIME              a consumer acknowledged it
    e REASON                                        something that a client had to try again
    w TEXT                                          a promise was broken under the client's eyes
    . (nothing)                                     the process came to its orderly end
"""

import os
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.cluster.checker import (
    AckedAt,
    Acknowledged,
    Delivery,
    History,
    Message,
    Position,
    Subscription,
)

SUFFIX = ".history"
_FILLER = bytes(zlib.crc32(b"%d" % at) & 0xFF for at in range(9_000))
_FILLER_BYTES_MAX = 400
_KEYS = 7


def payload_of(message: Message) -> bytes:
    """The payload of a message can be computed from its name: whoever gets it can check it."""
    head = f"{message.producer}|{message.number}|".encode()
    mixed = zlib.crc32(head)
    return head + _FILLER[mixed & 0x1FFF :][: mixed >> 16 & 0xFF | mixed % _FILLER_BYTES_MAX]


def message_of(payload: bytes) -> Message | None:
    """The message with this payload; None if it is no payload of ours."""
    producer, bar, rest = payload.partition(b"|")
    number, second_bar, _ = rest.partition(b"|")
    if not (bar and second_bar and number.isdigit()):
        return None
    message = Message(producer.decode(errors="replace"), int(number))
    return message if payload_of(message) == payload else None


def key_of(message: Message) -> str:
    """Return the key of a message, where messages have keys. A key belongs to one producer."""
    return f"{message.producer}:{message.number % _KEYS}"


class Recorder:
    """One process's file; callable from any thread. A line is in the file when the call returns."""

    def __init__(self, directory: Path, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(directory / f"{name}{SUFFIX}", flags, 0o644)
        self._lock = threading.Lock()
        self._sent: dict[tuple[str, str], int] = {}

    def sending(self, topic: str, message: Message) -> None:
        """Only counted; written down at the end."""
        self._sent[topic, message.producer] = message.number + 1

    def acknowledged(self, topic: str, message: Message, position: Position) -> None:
        self._write("a", topic, *message, _text(position), _now())

    def read(self, topic: str, reader: str, message: Message, position: Position) -> None:
        self._write("r", topic, reader, *message, _text(position), _now())

    def delivered(self, topic: str, subscription: str, message: Message, at: Position) -> None:
        self._write("d", topic, subscription, *message, _text(at), _now())

    def acked(self, topic: str, subscription: str, position: Position) -> None:
        self._write("k", topic, subscription, _text(position), _now())

    def tried_again(self, reason: str) -> None:
        self._write("e", reason)

    def wrong(self, text: str) -> None:
        self._write("w", text)

    def end(self) -> None:
        for (topic, producer), count in self._sent.items():
            self._write("n", topic, producer, count)
        self._write(".")

    def _write(self, *fields: object) -> None:
        line = " ".join(map(str, fields)).replace("\n", " ")
        with self._lock:
            os.write(self._file, line.encode() + b"\n")


class Records:
    """All that the processes wrote down."""

    def __init__(self) -> None:
        self.histories: dict[str, History] = {}
        self.wrong: list[str] = []
        self.tried_again: dict[str, int] = {}
        self.ended: set[str] = set()
        """The processes that came to an orderly end."""
        self.acknowledged_s: dict[str, list[float]] = {}
        """By topic: when messages were acknowledged, in the order of the files."""

    def load(self, directory: Path, *, content_reader: str, ordered: Iterable[str]) -> "Records":
        """Read all files.

        Args:
            directory: where they are.
            content_reader: the reader whose word is what the topics hold.
            ordered: the subscriptions that have one active consumer at a time.
        """
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            with path.open(errors="replace") as lines:
                for line in lines:
                    self._take(path.stem, line.rstrip("\n").split(" "), content_reader)
        for history in self.histories.values():
            for name, subscription in history.subscriptions.items():
                subscription.is_ordered = name in ordered
                # Several processes; almost sorted, so this is linear.
                subscription.deliveries.sort(key=lambda each: each.at_s)
                subscription.acked.sort(key=lambda each: each.at_s)
        return self

    def _take(self, process: str, fields: list[str], content_reader: str) -> None:
        letter = fields[0]
        if letter == "e":
            reason = " ".join(fields[1:])
            self.tried_again[reason] = self.tried_again.get(reason, 0) + 1
        elif letter == "w":
            self.wrong.append(f"{process}: {' '.join(fields[1:])}")
        elif letter == ".":
            self.ended.add(process)
        else:
            self._take_of_topic(letter, self._history(fields[1]), fields[2:], content_reader)

    def _take_of_topic(
        self, letter: str, history: History, fields: list[str], content_reader: str
    ) -> None:
        if letter == "a":
            producer, number, position, at_s = fields
            message = Message(producer, int(number))
            history.acknowledged.append(Acknowledged(message, _position(position)))
            self.acknowledged_s.setdefault(history.topic, []).append(float(at_s))
        elif letter == "n":
            producer, count = fields
            history.sent[producer] = max(int(count), history.sent.get(producer, 0))
        elif letter == "k":
            subscription, position, at_s = fields
            _of(history, subscription).acked.append(AckedAt(_position(position), float(at_s)))
        elif letter in "rd":
            who, producer, number, position, at_s = fields
            delivery = Delivery(_position(position), Message(producer, int(number)), float(at_s))
            if letter == "d":
                _of(history, who).deliveries.append(delivery)
            elif who == content_reader:
                history.content.append(delivery)
            else:
                history.readers.setdefault(who, []).append(delivery)

    def _history(self, topic: str) -> History:
        found = self.histories.get(topic)
        if found is None:
            found = self.histories[topic] = History(topic)
        return found


def _of(history: History, subscription: str) -> Subscription:
    return history.subscriptions.setdefault(subscription, Subscription())


def _now() -> str:
    return f"{time.monotonic():.4f}"


def _text(position: Position) -> str:
    return ":".join(map(str, position))


def _position(text: str) -> Position:
    ledger_id, entry_id, batch_index = text.split(":")
    return Position(int(ledger_id), int(entry_id), int(batch_index))
