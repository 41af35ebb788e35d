"""The publish line: the path of messages from a producer to the log, and of outcomes back.

It has three rows, which come from the topic's policies and its features, in this order:

- *checks* look at each message: encryption, size, then those of features. A check that refuses a
  message answers it with SEND_ERROR, in its place. Checks that note something come after those.
- *gates* decide about each batch: draining first, then those of features. A batch that has passed
  them goes to the `on_handed` callbacks, may get a prefix on each entry, and is appended to the
  log.
- *listeners* receive each outcome: those of features, then the tail cache. Receipts are written
  after all of them (`topic/producer.py`). Dispatchers run in a later turn of the loop.

A row is a tuple; empty rows cost nothing. Rows are rebuilt when policies change, or when a feature
requests it (`update`). A pending batch keeps the checks with which it began.

The line can be held: whatever is appended then waits, in order, as if the log were slow.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

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
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import MessageMetadata, Send, TopicName, split_payload

_END_S_MAX = 2.0
"""Longest time, in seconds, that a producer waits for a termination to be decided."""


class PublishedTopic(Protocol):
    """Interface of a topic for its publish line."""

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
        """`now_s`: monotonic seconds, for rates."""
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
        self._closes_after_refusal: tuple[Callable[[Send], bool], ...] = ()
        self.rate = PublishRate(topic.policies.publish_rate, now_s)
        self.is_closed = False
        self.is_draining = False
        """Whether the topic moves: publishes are no longer taken, and the pending ones are being
        answered."""
        self.is_terminating = False
        """Whether the topic is being terminated; the log already refuses messages."""
        self._deciding = 0
        """Calls of `terminate` that are running."""
        self._decided: asyncio.Event | None = None
        """Set when the outcome of a termination is known; None if no call of `terminate` runs."""
        self._in_flight = 0
        """Batches that the log has not answered."""
        self._held: deque[AppendBatch] | None = None
        """Appends that wait for `release`; None while the line is not held. Producers bound them,
        as they do for a log that is slow."""
        self._drained: asyncio.Future[None] | None = None
        # Statistics; the metrics collector reads them.
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.messages_dropped = 0
        """Messages that a non-persistent topic dropped: too many were pending."""
        self.entries_in = 0
        self.messages_failed = 0
        self.meter = Meter(0, 0, 0, since_ms=topic.clock.wall_ms())
        """Rates of messages, bytes and dropped messages."""
        self.last_publish_s = 0.0
        """When the newest message arrived, monotonic seconds; 0: none since the loading."""
        self.update()

    # The rows

    def host(self, features: tuple[Feature, ...]) -> None:
        """Take over the rows of these features."""
        self._features = features
        self.update()

    def update(self) -> None:
        """Rebuild the rows after a change of policies or features."""
        rows = [each.rows() for each in self._features]
        checks = [check for row in rows for check in row.checks]
        self.checks = (*self._policy_checks(), *checks)
        self.gates = tuple(gate for row in rows for gate in row.gates)
        self._on_handed = tuple(count for row in rows for count in row.on_handed)
        self._stamp = next((row.stamp for row in rows if row.stamp is not None), None)
        self._listeners = tuple(listener for row in rows for listener in row.listeners)
        closes = [row.closes_after_refusal for row in rows]
        self._closes_after_refusal = tuple(each for each in closes if each is not None)
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
    """Policies that the rows depend on, beside those that features follow."""

    def policies_changed(self) -> None:
        """Rebuild the rows and set the publish rate after a change of policies."""
        self.update()
        self.rate.set(self._topic.policies.publish_rate)

    # Requests of producers

    def checks_of(self, *, is_encrypted: bool) -> tuple[MessageCheck, ...]:
        """Return the checks for a producer. `is_encrypted`: it declares that it encrypts."""
        if is_encrypted and not self._topic.policies.encryption_required:
            return (EncryptionCheck(str(self.name)), *self.checks)
        return self.checks

    def closes_after_refusal(self, send: Send) -> bool:
        """Whether a producer is closed after this message of it was refused."""
        return any(closes(send) for closes in self._closes_after_refusal)

    @contextmanager
    def deciding_end(self) -> Iterator[None]:
        """Mark a termination as undecided meanwhile; new producers wait for the outcome."""
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
        """Return when no termination is undecided, or after a time limit.

        A client that is told to connect again pauses first, and publishes nothing during that
        pause.
        """
        if self._decided is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S_MAX):
                    await self._decided.wait()

    def check_not_terminated(self) -> None:
        """Refuse a producer if the topic takes no more messages.

        Raises:
            TopicTerminatedError
            ServiceNotReadyError: the outcome is not certain yet; clients retry.
        """
        if self.log.terminated is not None:
            raise TopicTerminatedError(f"{self.name} is terminated: it takes no more messages")
        if self.is_terminating:
            raise ServiceNotReadyError(f"{self.name} is being terminated; connect again")

    def check_encryption(self, *, is_encrypted: bool) -> None:
        """Refuse a producer that does not encrypt, if the topic requires encryption.

        Raises:
            BrokerMetadataError
        """
        if self._topic.policies.encryption_required and not is_encrypted:
            raise BrokerMetadataError(
                f"{self.name} requires encryption, and the producer does not encrypt"
            )

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        """Return when every feature admits a producer of that name.

        Raises:
            RequestError, LedgerError: a feature refuses it.
        """
        for feature in self._features:
            await feature.admit_producer(producer_name, is_transactional=is_transactional)

    async def settled(self, producer_name: str) -> None:
        """Return when every message published under that name has a known outcome."""
        for feature in self._features:
            await feature.settled(producer_name)

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the last sequence id of a producer name, after which a new producer continues.

        Messages up to it that the producer sends again are not stored. -1: it starts from the
        beginning.
        """
        known = (each.last_sequence_id(producer_name) for each in self._features)
        return max(known, default=-1)

    # Publishing

    def append(self, batch: PublishBatch) -> None:
        """Append a batch that has passed the gates; its sink receives the outcome."""
        self._in_flight += 1
        if self.is_closed:
            batch.on_failed(LogClosedError(f"{self.name} is closed"))
            return
        for count in self._on_handed:
            count(batch)
        stamp = self._stamp
        self._to_log(batch if stamp is None else stamp.published(batch))

    def _to_log(self, batch: AppendBatch) -> None:
        if self._held is None:
            self.log.append(batch)
        else:
            self._held.append(batch)

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Pass durable entries to the listeners, then to the tail cache."""
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
        """Handle a batch that is not stored, or whose outcome is unknown."""
        self._answered()
        self.messages_failed += batch.messages
        for listener in self._listeners:
            listener.failed(batch, error)

    def append_internal(self, record: InternalAppend) -> None:
        """Append entries that the broker itself writes."""
        self._in_flight += 1
        record.done.add_done_callback(lambda _: self._answered())
        if self.is_closed:
            record.on_failed(LogClosedError(f"{self.name} is closed"))
        else:
            stamp = self._stamp
            self._to_log(record if stamp is None else stamp.internal(record))

    def _answered(self) -> None:
        self._in_flight -= 1
        if self._drained is not None:
            self._look_drained()

    def _look_drained(self) -> None:
        assert self._drained is not None
        if not self._in_flight and not self._drained.done():
            self._drained.set_result(None)

    # Holding

    def hold(self) -> None:
        """Keep everything that is appended from the log, until `release`."""
        if self._held is None and not self.is_closed:
            self._held = deque()

    def release(self) -> None:
        """Append what was kept, in order, and keep nothing more. Does nothing once the line is
        closed."""
        while self._held and not self.is_closed:
            self.log.append(self._held.popleft())
        if not self.is_closed:
            self._held = None

    def _fail_held(self) -> None:
        held, self._held = self._held, None
        for each in held or ():
            each.on_failed(LogClosedError(f"{self.name} is closed"))

    # The end

    async def drain(self, timeout_s: float) -> None:
        """Take no more publishes, and wait until the pending ones are answered.

        Later SENDs get no receipt: clients send them again to the next owner. After the timeout,
        pending publishes may still be stored, and clients send them again nevertheless.
        """
        self.is_draining = True
        if self._in_flight:
            self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=timeout_s)

    def close(self) -> None:
        """Close the line: append nothing more, and resume connections that wait for the rate."""
        self.is_closed = True
        self.rate.close()
        if self._held is not None:
            # Later: first the producers are closed, and told where to go.
            asyncio.get_running_loop().call_soon(self._fail_held)

    # Statistics

    def sample(self, now_ms: int) -> None:
        """Sample the counters for the rates; called once per interval."""
        self.meter.sample(now_ms, self.messages_in, self.bytes_in, self.messages_dropped)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Return messages and bytes published, and messages dropped, per second, of the last
        minute.
        """
        return self.meter.per_s(now_ms, self.messages_in, self.bytes_in, self.messages_dropped)

    @property
    def last_publish_ms(self) -> int:
        """When the newest message arrived, ms since the epoch; 0: none since the loading."""
        if not self.last_publish_s:
            return 0
        ago_s = max(0.0, self.clock.monotonic_s() - self.last_publish_s)
        return self.clock.wall_ms() - int(ago_s * 1000)


class EncryptionCheck:
    """Refuses messages without encryption keys, for a topic or a producer that encrypts."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __call__(
        self,
        batch: PublishBatch,
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
    """Refuses messages above the topic's size limit. Chunks are exempt."""

    def __init__(self, topic: str, bytes_max: int) -> None:
        self._topic = topic
        self._bytes_max = bytes_max

    def __call__(
        self,
        batch: PublishBatch,
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
