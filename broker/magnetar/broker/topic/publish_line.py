"""The publish line: what happens to messages between a producer and the log, and back.

It has three rows, made of what the topic's policies and its features say, in this order:

- *checks* look at each message: encryption, size, then those of features. One that refuses a
  message answers it by SEND_ERROR in its place; one that notes something comes behind those.
- *gates* decide about each batch: draining first, then those of features. What has passed them is
  counted by whoever counts what is handed over, may get a prefix to each entry, and is appended to
  the log.
- *listeners* hear of each outcome: those of features, then the tail cache. Receipts are written
  behind all of them (`topic/producer.py`), and dispatchers run in a later turn of the loop.

A row is a tuple of what is there: empty ones cost nothing. Rows change when policies do, or when a
feature says so (`update`); a batch under way keeps the checks that it began with.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicTerminatedError,
)
from magnetar.broker.base.meter import Meter
from magnetar.broker.cluster.ownership.protocol import Tenure
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic.feature import Feature, Gate, Listener, Stamp
from magnetar.broker.topic.publish_batch import MessageCheck, PublishBatch
from magnetar.broker.topic.publish_limits import PublishRate
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscriptions import TopicSubscriptions
from magnetar.broker.topic.surroundings import InternalAppend, TopicLog
from magnetar.broker.topic.tail import Tail
from magnetar.ledger.errors import LedgerError, LogClosedError
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import MessageMetadata, Send, TopicName, split_payload

if TYPE_CHECKING:
    from magnetar.broker.topic.publish_batch import PublishBatch

_END_S_MAX = 2.0
"""For the end of a topic to be decided, while a producer waits for its answer."""


class PublishedTopic(Protocol):
    """What a publish line needs of its topic."""

    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> TopicLog: ...

    @property
    def tenure(self) -> Tenure: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def policies(self) -> Policies: ...

    @property
    def tail(self) -> Tail: ...

    @property
    def subscriptions(self) -> TopicSubscriptions: ...


class PublishLine:
    """The publish line of one topic, and its counters."""

    def __init__(self, topic: PublishedTopic, now_s: Callable[[], float]) -> None:
        """`now_s`: monotonic seconds, by which rates are measured."""
        self.name = topic.name
        self.log = topic.log
        self.tenure = topic.tenure
        self.clock = topic.clock
        self._topic = topic
        self._tail = topic.tail
        self._subscriptions = topic.subscriptions.by_name
        self._features: tuple[Feature, ...] = ()
        self.checks: tuple[MessageCheck, ...] = ()
        self.gates: tuple[Gate, ...] = ()
        self._on_handed: tuple[Callable[[PublishBatch], None], ...] = ()
        self._stamp: Stamp | None = None
        self._listeners: tuple[Listener, ...] = ()
        self.takes_transactions: Callable[[], bool] = self._takes_none
        """Whether messages of transactions may come now; see `PublishRows`."""
        self.closes_after_refusal = False
        """Whether a producer is closed after one of its messages was refused."""
        self.rate = PublishRate(topic.policies.publish_rate, now_s)
        self.is_closed = False
        self.is_draining = False
        """The topic moves: no more publishes are taken, and those under way are being answered."""
        self.is_terminating = False
        """The topic is about to take no more messages, for good; its log takes none by now."""
        self._deciding = 0
        """Calls of `terminate` that are under way."""
        self._decided: asyncio.Event | None = None
        """Set when the end of the topic is decided; None: nobody ends it."""
        self._in_flight = 0
        """Batches that the log has not answered."""
        self._drained: asyncio.Future[None] | None = None
        # Statistics; the metrics collector reads them.
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.messages_dropped = 0
        """Messages that a topic without a store took no notice of: too many at once."""
        self.entries_in = 0
        self.messages_failed = 0
        self.meter = Meter(0, 0, 0, since_ms=topic.clock.wall_ms())
        """Of messages, bytes and what was dropped."""
        self.last_publish_s = 0.0
        """When the newest message arrived, monotonic; 0: none since the topic was loaded."""
        self.update()

    # The rows

    def host(self, features: tuple[Feature, ...]) -> None:
        """Take up what these features have to say about publishes."""
        self._features = features
        self.update()

    def update(self) -> None:
        """Make the rows anew: policies are other ones, or a feature says something else."""
        rows = [each.rows() for each in self._features]
        checks = [check for row in rows for check in row.checks]
        self.checks = (*self._policy_checks(), *checks)
        self.gates = tuple(gate for row in rows for gate in row.gates)
        self._on_handed = tuple(count for row in rows for count in row.on_handed)
        self._stamp = next((row.stamp for row in rows if row.stamp is not None), None)
        self._listeners = tuple(listener for row in rows for listener in row.listeners)
        self.closes_after_refusal = any(row.closes_after_refusal for row in rows)
        takes = [row.takes_transactions for row in rows if row.takes_transactions is not None]
        self.takes_transactions = takes[0] if takes else self._takes_none

    def _policy_checks(self) -> Iterator[MessageCheck]:
        name, policies = str(self.name), self._topic.policies
        if policies.encryption_required:
            yield EncryptionCheck(name)
        if policies.max_message_bytes > 0:
            yield SizeCheck(name, policies.max_message_bytes)

    def _takes_none(self) -> bool:
        raise NotAllowedError(f"{self.name} does not support transactions")

    follows: Final = frozenset({"encryption_required", "max_message_bytes", "publish_rate"})
    """Policies that the rows are made of, beside those that features follow."""

    def policies_changed(self) -> None:
        """One of the policies that count for the rows is another one now."""
        self.update()
        self.rate.set(self._topic.policies.publish_rate)

    # What producers ask

    def checks_of(self, *, is_encrypted: bool) -> tuple[MessageCheck, ...]:
        """What looks at each message of a producer. `is_encrypted`: it says that it encrypts."""
        if is_encrypted and not self._topic.policies.encryption_required:
            return (EncryptionCheck(str(self.name)), *self.checks)
        return self.checks

    @contextmanager
    def deciding_end(self) -> Iterator[None]:
        """While the topic is being ended: producers that come wait for the outcome."""
        decided = self._decided = self._decided or asyncio.Event()
        self._deciding += 1
        try:
            yield
        finally:
            self._deciding -= 1
            if not self._deciding:
                self._decided = None
                decided.set()

    async def end_decided(self) -> None:
        """Return when nobody is ending the topic, or after a while. A client that was told to come
        again would do so after a pause, in which it publishes nothing."""
        if self._decided is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S_MAX):
                    await self._decided.wait()

    def check_not_terminated(self) -> None:
        """Refuse a producer if the topic takes no more messages.

        Raises:
            TopicTerminatedError
            ServiceNotReadyError: that is not certain yet; clients ask again.
        """
        if self.log.terminated is not None:
            raise TopicTerminatedError(f"{self.name} is terminated: it takes no more messages")
        if self.is_terminating:
            raise ServiceNotReadyError(f"{self.name} is being terminated; connect again")

    def check_encryption(self, *, is_encrypted: bool) -> None:
        """Refuse a producer that does not encrypt, if the topic requires that.

        Raises:
            BrokerMetadataError
        """
        if self._topic.policies.encryption_required and not is_encrypted:
            raise BrokerMetadataError(
                f"{self.name} requires encryption, and the producer does not encrypt"
            )

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        """Return when no feature is against a producer of that name that comes.

        Raises:
            RequestError, LedgerError: one is.
        """
        for feature in self._features:
            await feature.admit_producer(producer_name, is_transactional=is_transactional)

    async def settled(self, producer_name: str) -> None:
        """Return when no message that was published under that name is undecided."""
        for feature in self._features:
            await feature.settled(producer_name)

    def last_sequence_id(self, producer_name: str) -> int:
        """From which a new producer of that name goes on: what it sends again below that is not
        stored. -1: from the beginning."""
        known = (each.last_sequence_id(producer_name) for each in self._features)
        return max(known, default=-1)

    # Publishing

    def append(self, batch: PublishBatch) -> None:
        """Append a batch that has passed the gates; its sink hears of the outcome."""
        self._in_flight += 1
        if self.is_closed:
            batch.on_failed(LogClosedError(f"{self.name} is closed"))
            return
        for count in self._on_handed:
            count(batch)
        stamp = self._stamp
        self.log.append(batch if stamp is None else stamp.published(batch))

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Entries are durable: the listeners hear of it, and then those who tail."""
        self._in_flight -= 1
        if self._drained is not None:
            self._look_drained()
        self.entries_in += len(batch.payloads)
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.last_publish_s = batch.arrived_s
        for listener in self._listeners:
            listener.stored(batch, ledger_id, first_entry_id)
        if not (self._subscriptions or self._tail.readers):
            return
        run = Run(
            ledger_id,
            first_entry_id,
            batch.payloads,
            messages=batch.counts,
            is_plain=batch.is_plain,
            chunk_indexes=batch.chunks,
            prefixes=batch.prefixes,
        )
        self._tail.add(run)

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """A batch is not stored, or nobody can tell."""
        self._answered()
        self.messages_failed += batch.messages
        for listener in self._listeners:
            listener.failed(batch, error)

    def append_internal(self, record: InternalAppend) -> None:
        """Append entries of the broker's own."""
        self._in_flight += 1
        record.done.add_done_callback(lambda _: self._answered())
        if self.is_closed:
            record.on_failed(LogClosedError(f"{self.name} is closed"))
        else:
            stamp = self._stamp
            self.log.append(record if stamp is None else stamp.internal(record))

    def _answered(self) -> None:
        self._in_flight -= 1
        if self._drained is not None:
            self._look_drained()

    def _look_drained(self) -> None:
        assert self._drained is not None
        if not self._in_flight and not self._drained.done():
            self._drained.set_result(None)

    # The end

    async def drain(self, timeout_s: float) -> None:
        """Take no more publishes, and wait until those under way are answered.

        What clients send from now on gets no receipt: they send it again to the next owner. If the
        time is over, publishes under way may be stored and are sent again nevertheless.
        """
        self.is_draining = True
        if self._in_flight:
            self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=timeout_s)

    def close(self) -> None:
        """The topic is closed: nobody waits for its rate, and nothing more is appended."""
        self.is_closed = True
        self.rate.close()

    # Statistics

    def sample(self, now_ms: int) -> None:
        """Note the counters for the rates, once per interval."""
        self.meter.sample(now_ms, self.messages_in, self.bytes_in, self.messages_dropped)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Messages and bytes published, and messages dropped, per second of the last minute."""
        return self.meter.per_s(now_ms, self.messages_in, self.bytes_in, self.messages_dropped)

    @property
    def last_publish_ms(self) -> int:
        """When the newest message arrived, ms since the epoch; 0: none since it was loaded."""
        if not self.last_publish_s:
            return 0
        ago_s = max(0.0, self.clock.monotonic_s() - self.last_publish_s)
        return self.clock.wall_ms() - int(ago_s * 1000)


class EncryptionCheck:
    """Messages must be encrypted: of a topic that requires it, or of a producer that encrypts."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __call__(
        self,
        batch: "PublishBatch",
        send: Send,
        metadata: MessageMetadata,
        payload: bytes,
    ) -> None:
        if not metadata.encryption_keys:
            raise BrokerMetadataError(
                f"{self._topic} requires encryption: the message of producer "
                f"{batch.producer_name} with sequence id {send.sequence_id} has no encryption keys"
            )


class SizeCheck:
    """Messages of a topic may not be larger than its policy says. Chunks are taken as they are."""

    def __init__(self, topic: str, bytes_max: int) -> None:
        self._topic = topic
        self._bytes_max = bytes_max

    def __call__(
        self,
        batch: "PublishBatch",
        send: Send,
        metadata: MessageMetadata,
        payload: bytes,
    ) -> None:
        if len(payload) <= self._bytes_max or metadata.num_chunks_from_msg > 1:
            return
        _, body_at = split_payload(payload)
        size = len(payload) - body_at
        if size > self._bytes_max:
            raise NotAllowedError(
                f"{self._topic}: the message has {size} bytes; the topic's limit is "
                f"{self._bytes_max}"
            )
