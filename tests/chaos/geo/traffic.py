"""The official clients of the drill: they publish and consume at both clusters, and write down what
they send and are given.

Producers keep what was sent over reconnects until it is acknowledged; their clusters deduplicate.
One subscription of each cluster is its own. One more is replicated, and has a consumer that moves
between the clusters.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pulsar

from tests.chaos.geo.field import CLUSTERS, KEYED, PLAIN, Field
from tests.chaos.geo.verdict import Histories, Message
from tests.integration.pulsar_client.support import connect

T = TypeVar("T")

MOVES = "moves"
"""The subscription that is replicated."""
TOPICS = (PLAIN, KEYED)
_OWN = "own"
_KEYS = 20
_TURN_S = 0.02
_PER_TURN_MAX = 4
_IN_FLIGHT_MAX = 400
_ANSWER_S = 300.0
_RECEIVE_MS = 500
_MOVING_RECEIVE_MS = 50
"""The consumer that moves takes turns between its topics."""
_MOVES_AFTER_S = (1.0, 6.0)
_OPEN_S = 300.0
_RETRY_S = 0.2


class Traffic:
    """All clients. `start`, `finish_publishing`, `stop`."""

    def __init__(self, field: Field, directory: Path, seed: int) -> None:
        self.seen = Histories(delivered={name: [] for name in CLUSTERS})
        self.problems: list[str] = []
        self.copies = 0
        """Messages of the other cluster that own subscriptions were given, again or not."""
        self.moves = 0
        """How often the consumer that moves has changed the cluster."""
        self._field = field
        self._directory = directory
        self._lock = threading.Lock()
        self._published = threading.Event()
        """Nothing more is to be published."""
        self._over = threading.Event()
        self._stays = threading.Event()
        self._clients: list[pulsar.Client] = []
        self._publishers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []
        self._random = random.Random(seed)

    def start(self) -> None:
        """Begin; returns when all are connected."""
        for name in CLUSTERS:
            client = self.connect(name)
            for topic in TOPICS:
                consumer = self.retry(partial(_subscribe, client, topic, _OWN))
                self._consumers.append(self._thread(self._take, name, consumer))
        self._consumers.append(self._thread(self._move))
        for name in CLUSTERS:
            client = self.connect(name)
            for topic in TOPICS:
                publisher = _Publisher(self, client, name, topic, self._random.getrandbits(31))
                self._publishers.append(self._thread(publisher.run))
        for each in (*self._consumers, *self._publishers):
            each.start()

    def connect(self, cluster: str) -> pulsar.Client:
        """Return an official client of that cluster, which `stop` closes."""
        side = self._field.sides[cluster]
        client = connect(side.servers.url, log_path=self._directory / f"client-{cluster}.log")
        self._clients.append(client)
        return client

    def finish_publishing(self) -> bool:
        """Publish nothing more; return whether everything that was sent has an answer."""
        self._published.set()
        return not any(each.is_alive() for each in self._publishers)

    def stay(self) -> None:
        """Have the consumer that moves stay where it is from now on."""
        self._stays.set()

    def stop(self) -> None:
        """Have all consumers leave."""
        self._published.set()
        self._stays.set()
        self._over.set()
        for each in (*self._publishers, *self._consumers):
            if each.ident is not None:
                each.join()
        for client in self._clients:
            client.close()

    def received(self) -> int:
        """How many copies consumers were given so far."""
        with self._lock:
            return self.copies

    def is_consumed(self) -> bool:
        """Whether all consumers were given all that was acknowledged to producers."""
        with self._lock:
            seen = self.seen
            given = (*seen.delivered.values(), seen.moved)
            return all(seen.acknowledged <= set(each) for each in given)

    # What publishers tell

    def answered(self, message: Message, *, is_stored: bool) -> None:
        """A message was acknowledged, or was not."""
        with self._lock:
            (self.seen.acknowledged if is_stored else self.seen.unsure).add(message)

    def wrong(self, problem: str) -> None:
        """Something broke a promise at once."""
        with self._lock:
            self.problems.append(problem)

    @property
    def has_published(self) -> threading.Event:
        """Set when nothing more is to be published."""
        return self._published

    # Consuming

    def _take(self, cluster: str, consumer: pulsar.Consumer) -> None:
        """Take messages of a cluster's own subscription in their order."""
        delivered = self.seen.delivered[cluster]
        while not self._over.is_set():
            if (received := _receive(consumer)) is None:
                continue
            message, copy = received
            with self._lock:
                delivered.append(copy)
                self.copies += copy.source != cluster
            _acknowledge(consumer, message)

    def _move(self) -> None:
        """Take messages of the replicated subscription, at one cluster and then at the other."""
        rng = random.Random(self._random.getrandbits(31))
        clients = {name: self.connect(name) for name in CLUSTERS}
        at = 0
        while not self._over.is_set():
            until_s = time.monotonic() + rng.uniform(*_MOVES_AFTER_S)
            consumers = self._subscribe_both(clients[CLUSTERS[at % 2]])
            while not self._is_time_to_move(until_s):
                for consumer in consumers:
                    self._take_moving(consumer, until_s)
            for consumer in consumers:
                _quietly(consumer.close)
            at += 1
            self.moves += 1

    def _is_time_to_move(self, until_s: float) -> bool:
        is_late = time.monotonic() >= until_s and not self._stays.is_set()
        return is_late or self._over.is_set()

    def _take_moving(self, consumer: pulsar.Consumer, until_s: float) -> None:
        """Take what there is of one topic."""
        while not self._is_time_to_move(until_s):
            received = _receive(consumer, _MOVING_RECEIVE_MS)
            if received is None:
                return
            message, copy = received
            with self._lock:
                self.seen.moved.append(copy)
            _acknowledge(consumer, message)

    def _subscribe_both(self, client: pulsar.Client) -> list[pulsar.Consumer]:
        """Take up the replicated subscription of all topics."""
        return [self.retry(partial(subscribe_moving, client, topic)) for topic in TOPICS]

    def retry(self, attempt: Callable[[], T]) -> T:
        """Try until it succeeds: right after a fault a client may be refused."""
        until_s = time.monotonic() + _OPEN_S
        while True:
            try:
                return attempt()
            except pulsar.PulsarException:
                if time.monotonic() > until_s or self._over.is_set():
                    raise
                time.sleep(_RETRY_S)

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Make a thread whose failure is a problem."""

        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001  # the verdict names it
                self.wrong(f"{work.__qualname__} {arguments}: {type(error).__name__}: {error}")

        return threading.Thread(target=run, daemon=True)


class _Publisher:
    """One producer of one topic at one cluster."""

    def __init__(
        self, traffic: Traffic, client: pulsar.Client, cluster: str, topic: str, seed: int
    ) -> None:
        self._traffic, self._client = traffic, client
        self._cluster, self._topic = cluster, topic
        self._random = random.Random(seed)
        self._numbers: Counter[str] = Counter()
        self._room = threading.Semaphore(_IN_FLIGHT_MAX)

    def run(self) -> None:
        """Publish until it is over, and until everything was answered."""
        traffic = self._traffic
        producer = traffic.retry(self._open)
        while not traffic.has_published.wait(_TURN_S):
            for _ in range(self._random.randint(0, _PER_TURN_MAX)):
                if self._room.acquire(timeout=_TURN_S):
                    self._send(producer)
        for _ in range(_IN_FLIGHT_MAX):
            if not self._room.acquire(timeout=_ANSWER_S):
                traffic.wrong(
                    f"{self._topic} at {self._cluster}: a message has no answer after "
                    f"{_ANSWER_S:.0f} s, with everything up"
                )
                return

    def _open(self) -> pulsar.Producer:
        """Have a producer: of keyed messages in batches, of others in batches at one side."""
        return self._client.create_producer(
            self._topic,
            producer_name=f"{self._cluster}-{self._topic.rpartition('/')[2]}",
            send_timeout_millis=0,
            max_pending_messages=2 * _IN_FLIGHT_MAX,
            batching_enabled=self._topic == KEYED or self._cluster == CLUSTERS[0],
            batching_max_messages=20,
            batching_max_publish_delay_ms=30,
        )

    def _send(self, producer: pulsar.Producer) -> None:
        key = f"k{self._random.randrange(_KEYS)}" if self._topic == KEYED else "-"
        name = self._topic.rpartition("/")[2]
        message = Message(self._cluster, name, key, self._numbers[key])
        self._numbers[key] += 1
        producer.send_async(
            message.encode(),
            partial(self._on_result, message),
            partition_key=key if self._topic == KEYED else None,
            properties={"key": key},
        )

    def _on_result(self, message: Message, result: pulsar.Result, _id: pulsar.MessageId) -> None:
        """Note an answer; on a thread of the client, where an exception would end the process."""
        self._room.release()
        is_stored = result == pulsar.Result.Ok
        self._traffic.answered(message, is_stored=is_stored)
        if not is_stored:
            self._traffic.wrong(f"{message} was answered with {result}")


def subscribe_moving(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """Return a consumer of the subscription that is replicated."""
    return _subscribe(
        client,
        topic,
        MOVES,
        consumer_type=pulsar.ConsumerType.Shared,
        replicate_subscription_state_enabled=True,
    )


def _subscribe(
    client: pulsar.Client, topic: str, subscription: str, **how: object
) -> pulsar.Consumer:
    settings: dict[str, object] = {
        "consumer_type": pulsar.ConsumerType.Failover,
        "initial_position": pulsar.InitialPosition.Earliest,
        "receiver_queue_size": 200,
        **how,
    }
    return client.subscribe(topic, subscription, **settings)


def _receive(
    consumer: pulsar.Consumer, within_ms: int = _RECEIVE_MS
) -> tuple[pulsar.Message, Message] | None:
    """Return the next message, and what it says; None: none came for a moment."""
    try:
        message = consumer.receive(timeout_millis=within_ms)
    except pulsar.Timeout:
        return None
    found = Message.decode(message.data())
    told = message.properties().get("key"), message.partition_key() or "-"
    if told != (found.key, found.key):
        raise ValueError(f"{found} came with the keys {told}")
    return message, found


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    _quietly(partial(consumer.acknowledge, message))


def _quietly(work: Callable[[], object]) -> None:
    """Do something that fails right after a fault: then the message comes again."""
    try:
        work()
    except pulsar.PulsarException:
        pass


def read_all(client: pulsar.Client, topics: Sequence[str]) -> dict[str, list[Message]]:
    """Read topics from their beginnings; return what they hold, by the last parts of their names.

    Reading may begin anew after a fault: what comes again from an earlier place is left out.
    """
    found: dict[str, list[Message]] = {}
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        messages = found[topic.rpartition("/")[2]] = []
        last = (-1, -1, -1)
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=30_000)
            position = message.message_id()
            place = position.ledger_id(), position.entry_id(), position.batch_index()
            if place > last:
                last = place
                messages.append(Message.decode(message.data()))
        reader.close()
    return found
