"""kill -9 at random moments under load: what was acknowledged is there, once, in order.

One round: a producer publishes as fast as it can, a shared consumer acknowledges most of what it
gets, the server dies at a random moment and starts again on the same directory. Then a reader
compares what the round left in the log with what the producer was told, and the next round's
consumer with what was acknowledged; the last reader compares the whole log. The client of a round
ends with its server, so nothing is sent a second time by reconnecting.
"""

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
import pytest

from tests.integration.pulsar_client.support import connect, read_next, receive
from tests.standalone import Standalone

ROUNDS = 20
SEED = 20_260_521
"""Recorded so that a failure's moments can be tried again; change it to try others."""
KILL_AFTER_S_MAX = 4.0

ACK_PERSIST_INTERVAL_S = 0.2
"""`ack_persist_interval_ms` of the server: kill -9 may lose so much acknowledging."""
ACK_SLACK_S = 1.0
"""The client groups acknowledgements for 0.1 s; the rest is for a loaded machine."""

_TOPIC = "persistent://public/default/killed"
_SUBSCRIPTION = "worker"
_UNACKED_EVERY = 11
_IN_FLIGHT = 500

Payload = bytes
Position = tuple[int, int, int]


def _position(message_id: pulsar.MessageId) -> Position:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


@dataclass(slots=True)
class Round:
    """What one server life was told and answered."""

    number: int
    sent: int = 0
    confirmed: dict[Payload, Position] = field(default_factory=dict)
    answers_s: list[tuple[float, float]] = field(default_factory=list)
    """When each confirmed message was sent, and when it was confirmed."""
    received: list[Payload] = field(default_factory=list)
    acked_at_s: dict[Payload, float] = field(default_factory=dict)
    killed_at_s: float = 0.0


class _Load:
    """A producer and a consumer, each on a thread, until the connection is gone."""

    def __init__(self, url: str, record: Round, *, batched: bool) -> None:
        self._record = record
        self._client = connect(url)
        self._stop = threading.Event()
        # The client's own blocking on a full queue does not end when the client is shut down.
        self._window = threading.Semaphore(_IN_FLIGHT)
        self.errors: list[BaseException] = []
        self._consumer = self._client.subscribe(
            _TOPIC,
            _SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            # Without it, one message that is not acknowledged brings its whole batch back.
            batch_index_ack_enabled=True,
        )
        self._producer = self._client.create_producer(
            _TOPIC,
            batching_enabled=batched,
            batching_max_messages=100,
            batching_max_publish_delay_ms=2,
            max_pending_messages=2 * _IN_FLIGHT,
            send_timeout_millis=10_000,
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._publish, self._consume)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads; the server is dead by now, so nothing can be flushed or closed."""
        self._stop.set()
        self._client.shutdown()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _guarded(self, work: "object") -> None:
        assert callable(work)
        try:
            work()
        except pulsar.PulsarException as error:
            # Once the server is killed every call may fail; before, none should.
            if not self._stop.is_set() and not self._record.killed_at_s:
                self.errors.append(error)
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            self.errors.append(error)

    def _publish(self) -> None:
        record = self._record
        confirmed = record.confirmed
        for number in itertools.count():
            while not self._window.acquire(timeout=0.1):
                if self._stop.is_set():
                    return
            if self._stop.is_set():
                return
            payload = b"%d:%d" % (record.number, number)
            sent_at_s = time.monotonic()

            def on_result(
                result: pulsar.Result,
                message_id: pulsar.MessageId,
                payload: bytes = payload,
                sent_at_s: float = sent_at_s,
            ) -> None:
                if result == pulsar.Result.Ok:
                    confirmed[payload] = _position(message_id)
                    record.answers_s.append((sent_at_s, time.monotonic()))
                self._window.release()

            record.sent = number + 1
            self._producer.send_async(payload, on_result)

    def _consume(self) -> None:
        record = self._record
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            payload = message.data()
            record.received.append(payload)
            if len(record.received) % _UNACKED_EVERY:
                self._consumer.acknowledge(message)
                record.acked_at_s[payload] = time.monotonic()


def _run_round(standalone: Standalone, number: int, chance: random.Random) -> Round:
    record = Round(number)
    load = _Load(standalone.url, record, batched=chance.random() < 0.5)
    load.start()
    # Not a wait for something: this is the random moment.
    threading.Event().wait(chance.uniform(0.05, KILL_AFTER_S_MAX))
    record.killed_at_s = time.monotonic()
    standalone.kill()
    load.stop()
    assert not load.errors, load.errors
    return record


def _read_log(
    client: pulsar.Client, *, after: pulsar.MessageId = pulsar.MessageId.earliest
) -> tuple[list[tuple[Payload, Position]], pulsar.MessageId]:
    """What is behind `after`, and the id of the last of it."""
    reader = client.create_reader(_TOPIC, after)
    log = []
    while reader.has_message_available():
        message = read_next(reader)
        after = message.message_id()
        log.append((message.data(), _position(after)))
    reader.close()
    return log, after


def _check_log(log: list[tuple[Payload, Position]], rounds: list[Round]) -> None:
    payloads = [payload for payload, _ in log]
    order = [tuple(map(int, payload.split(b":"))) for payload in payloads]
    assert order == sorted(set(order)), "out of order, or there twice"
    positions = dict(log)
    for record in rounds:
        missing = [each for each in record.confirmed if each not in positions]
        assert not missing, f"round {record.number}: {len(missing)} lost, first {missing[0]!r}"
        moved = [each for each, at in record.confirmed.items() if positions[each] != at]
        assert not moved, f"round {record.number}: {moved[0]!r} is not where it was confirmed"
    sent = {record.number: record.sent for record in rounds}
    assert all(number < sent[life] for life, number in order), "a message nobody sent"


def _saved_until_s(record: Round) -> float:
    """What was acknowledged before this was saved when the server died, however slow its disk.

    The cursor is saved to the journal that messages go to: once a message is confirmed, so is a
    save that began before it was sent. That one may have held back the next save, with what was
    acknowledged meanwhile: hence twice.
    """
    until_s = record.killed_at_s
    for _ in range(2):
        sent = (sent_s for sent_s, confirmed_s in record.answers_s if confirmed_s <= until_s)
        until_s = max(sent, default=0.0) - ACK_PERSIST_INTERVAL_S - ACK_SLACK_S
    return until_s


def _durably_acknowledged(rounds: list[Round]) -> set[Payload]:
    """What was acknowledged longer before a kill than kill -9 may make forgotten."""
    durable: set[Payload] = set()
    for record in rounds:
        saved_until_s = _saved_until_s(record)
        durable |= {each for each, at_s in record.acked_at_s.items() if at_s < saved_until_s}
    return durable


def _check_acknowledged(rounds: list[Round], again: list[Payload]) -> None:
    durable = _durably_acknowledged(rounds)
    back = [payload for payload in again if payload in durable]
    assert not back, f"{len(back)} acknowledged messages came again, first {back[0]!r}"


@pytest.mark.disk
@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_kill_9_at_random_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    persist_ms = str(int(ACK_PERSIST_INTERVAL_S * 1000))
    monkeypatch.setenv("MAGNETAR_BROKER_ACK_PERSIST_INTERVAL_MS", persist_ms)
    chance = random.Random(SEED)
    read = pulsar.MessageId.earliest
    standalone = Standalone(tmp_path / "data")
    rounds: list[Round] = []
    with standalone:
        for number in range(ROUNDS):
            record = _run_round(standalone, number, chance)
            _check_acknowledged(rounds, record.received)
            rounds.append(record)
            standalone.start()
            client = connect(standalone.url)
            left, read = _read_log(client, after=read)
            _check_log(left, [record])
            client.close()

        client = connect(standalone.url)
        log, _ = _read_log(client)
        _check_log(log, rounds)
        # Or else the test has shown nothing. A slow machine has little time for the second.
        assert sum(len(record.confirmed) for record in rounds) > 1000 * ROUNDS
        assert len(_durably_acknowledged(rounds)) > 100

        consumer = client.subscribe(_TOPIC, _SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
        marker = b"%d:0" % ROUNDS
        client.create_producer(_TOPIC).send(marker)
        rest = []
        while (message := receive(consumer)).data() != marker:
            consumer.acknowledge(message)
            rest.append(message.data())
        _check_acknowledged(rounds, rest)
        delivered = {payload for record in rounds for payload in record.received} | set(rest)
        skipped = [payload for payload, _ in log if payload not in delivered]
        assert not skipped, f"{len(skipped)} messages never delivered, first {skipped[0]!r}"
        client.close()
    standalone.assert_log_clean()


@pytest.mark.timeout(300)
def test_restart_with_much_data_is_quick_and_loses_nothing(tmp_path: Path) -> None:
    """`python -m tests.bench` measures it with a gigabyte."""
    message_bytes, count = 1 << 17, 2048
    payload = random.Random(SEED).randbytes(message_bytes - 8)
    with Standalone(tmp_path / "data") as standalone:
        client = connect(standalone.url)
        producer = client.create_producer(
            _TOPIC, block_if_queue_full=True, max_pending_messages=200
        )
        confirmed: list[int] = []
        for number in range(count):
            producer.send_async(
                number.to_bytes(8, "big") + payload,
                lambda result, _id: confirmed.append(result == pulsar.Result.Ok),
            )
        producer.flush()
        standalone.kill()
        client.shutdown()
        assert confirmed.count(True) == count

        standalone.start()
        client = connect(standalone.url)
        reader = client.create_reader(_TOPIC, pulsar.MessageId.earliest, receiver_queue_size=50)
        for number in range(count):
            data = reader.read_next(timeout_millis=30_000).data()
            assert int.from_bytes(data[:8], "big") == number
            assert data[8:] == payload
        assert not reader.has_message_available()
        client.close()
