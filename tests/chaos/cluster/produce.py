"""Producers of the drill: one per topic, a message every few milliseconds, for ever.

A message that was sent is never given up: the client keeps it over reconnects and sends it again,
and the topic decides whether it is there twice. The second process of them sends in batches.

usage: python -m tests.chaos.cluster.produce --url URL --directory DIR --name NAME --topic TOPIC...
"""

import threading
from functools import partial

import pulsar

from tests.chaos.cluster.checker import Message
from tests.chaos.cluster.player import Player, play, position_of
from tests.chaos.cluster.records import key_of, payload_of

IN_FLIGHT_MAX = 400
_FLUSH_TIMEOUT_S = 90.0


def produce(player: Player) -> None:
    client = player.connect()
    producers = [
        _Producer(player, client, topic, f"{player.name}-{number}")
        for number, topic in enumerate(player.topics)
    ]
    player.run([producer.run for producer in producers])
    client.close()


class _Producer:
    """One producer of one topic."""

    def __init__(self, player: Player, client: pulsar.Client, topic: str, name: str) -> None:
        self._player = player
        self._client = client
        self._topic = topic
        self._name = name
        self._room = threading.Semaphore(IN_FLIGHT_MAX)
        self._number = 0
        self._is_closed = threading.Event()
        self._producer = self._open()

    def run(self) -> None:
        player = self._player
        while not player.stop.wait(player.interval_s):
            if self._is_closed.is_set():
                self._is_closed.clear()
                self._producer = self._open()
            if not self._room.acquire(timeout=1):
                continue
            message = Message(self._name, self._number)
            self._number += 1
            player.recorder.sending(self._topic, message)
            try:
                self._send(message)
            except pulsar.PulsarException as error:
                self._on_failure(f"send: {type(error).__name__}")
        # What is in flight is waited for one by one: the client's flush has no limit of time.
        for _ in range(IN_FLIGHT_MAX):
            if not self._room.acquire(timeout=_FLUSH_TIMEOUT_S):
                player.recorder.wrong(
                    f"{self._topic}: {self._name} got no answer to a message in "
                    f"{_FLUSH_TIMEOUT_S:.0f} s with everything up"
                )
                return

    def _send(self, message: Message) -> None:
        self._producer.send_async(
            payload_of(message),
            partial(self._on_result, message),
            partition_key=key_of(message) if self._player.has_keys else None,
        )

    def _open(self) -> pulsar.Producer:
        is_batched = self._player.name.endswith("2")
        return self._player.retry(
            "producer",
            lambda: self._client.create_producer(
                self._topic,
                producer_name=self._name,
                send_timeout_millis=0,
                max_pending_messages=2 * IN_FLIGHT_MAX,
                batching_enabled=is_batched,
                batching_max_messages=20,
                batching_max_publish_delay_ms=30,
            ),
        )

    def _on_result(
        self, message: Message, result: pulsar.Result, message_id: pulsar.MessageId
    ) -> None:
        """On a thread of the client; an exception here would end the process."""
        if result == pulsar.Result.Ok:
            self._player.recorder.acknowledged(self._topic, message, position_of(message_id))
            self._room.release()
        else:
            self._on_failure(f"sent: {result}")

    def _on_failure(self, reason: str) -> None:
        self._room.release()
        self._player.recorder.tried_again(reason)
        self._is_closed.set()


if __name__ == "__main__":
    play(produce)
