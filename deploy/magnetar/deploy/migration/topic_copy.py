"""The copy of one topic or partition: entries from the source to the target, in order, each once.

The target itself shows what it has: each entry there states its place at the source. A session
begins with a producer at the target, so that no write of a former session is under way. It then
reads the entries at the target that the position map does not know yet. After that it reads the
source from there on. Any error ends the session, and the next one begins in the same way; so the
process may be killed anywhere.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar.broker.features.replication.source_marks import START, Source
from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import BrokerUnreachableError, MigrationDiffersError
from magnetar.deploy.migration.entries import Credit, copy_of, entry_to_send, producer_name
from magnetar.deploy.migration.positions import PositionMap
from magnetar.deploy.migration.raw_clients import (
    RawConsumer,
    RawEntry,
    RawProducer,
    Receipt,
)
from magnetar.deploy.migration.schema_copies import SchemaCopies
from magnetar.deploy.migration.sides import Side, is_refusal, subscription_path
from magnetar.deploy.migration.subscriptions import EARLIEST_BODY, HOLD
from magnetar.ledger.backoff import backoff
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.connection import Connection
from magnetar.sdk.errors import BrokerUnavailableError, SdkError
from magnetar.sdk.wire import TopicName, split_payload
from magnetar.sdk.wire.errors import AuthenticationError, AuthorizationError

RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 10.0
READER: Final = "magnetar.migrate.reader"
"""Name of the reader that reads the target."""


class TooLargeError(MigrationDiffersError):
    """The target does not accept an entry of that size."""


class _UnderWay(NamedTuple):
    source: Position
    messages: int


class TopicCopy:
    """The copy of one topic or partition; `run` until it is cancelled."""

    def __init__(
        self,
        topic: TopicName,
        source: Side,
        target: Side,
        name: Source,
        schemas: SchemaCopies,
        copied: PositionMap,
        *,
        bytes_max: int,
        attaching: asyncio.Semaphore,
    ) -> None:
        """Prepare the copy of one topic; connects to nothing.

        Args:
            name: name of the source at the target.
            copied: the position map from the state directory.
            bytes_max: about how many bytes may be in memory.
            attaching: bounds how many sessions begin at the same time.
        """
        self.topic = topic
        self.copied = copied
        self.problem = ""
        """Why nothing is copied at present; empty if there is no problem."""
        self.restarts = 0
        """Number of times the map was begun anew: what was saved of it before is void."""
        self._source = source
        self._target = target
        self._name = name
        self._schemas = schemas
        self._bytes_max = bytes_max
        self._attaching = attaching
        self._news = asyncio.Event()
        self._consumer: RawConsumer | None = None
        self._producer: RawProducer | None = None
        self._under_way: deque[_UnderWay] = deque()
        self._credit = Credit(bytes_max)
        self._done: Position | None = None
        """Position at the source up to which everything is at the target, or is not to be
        copied."""
        self._acked: Position | None = None
        self._sent: Position = START

    @property
    def is_idle(self) -> bool:
        """Whether all entries received from the source are stored, and acknowledged there."""
        consumer = self._consumer
        return (
            consumer is not None
            and not consumer.has_entries
            and not self._under_way
            and self._done == self._acked
        )

    async def run(self) -> None:
        """Copy until cancelled.

        Raises:
            DeployError: an operator must do something; a retry would not help.
        """
        failures = 0
        while True:
            before = self.copied.entries
            try:
                await self._session()
            except (AuthenticationError, AuthorizationError) as error:
                raise BrokerUnreachableError(
                    f"{self.topic}: {error}: the role needs to consume at the source, and to "
                    "administer the tenant at the target"
                ) from error
            except (SdkError, BrokerUnreachableError) as error:
                failures = 1 if self.copied.entries != before else failures + 1
                self.problem = " ".join(str(error).split())
            await asyncio.sleep(backoff(RETRY_S, failures, RETRY_S_MAX))

    async def _session(self) -> None:
        """Run one session, until it is lost.

        Raises:
            SdkError: the session is lost.
            DeployError: an operator must do something.
        """
        producer: RawProducer | None = None
        consumer: RawConsumer | None = None
        self._under_way.clear()
        self._credit = Credit(self._bytes_max)
        try:
            async with self._attaching:
                there = await self._target.connection_for(self.topic)
                producer = RawProducer(
                    there, self._target.next_id(), self._on_receipts, self._news.set
                )
                await producer.attach(self.topic, producer_name(self._name))
                self._producer = producer
                await self._recover(there)
                if self.copied.last is None:
                    await self._read_from_start()
                here = await self._source.connection_for(self.topic)
                consumer = RawConsumer(here, self._source.next_id(), self._news.set)
                await consumer.attach(self.topic, HOLD)
            self._consumer = consumer
            self.problem = ""
            await self._copy(producer, consumer)
        finally:
            self._consumer = None
            if producer is not None:
                producer.detach()
            if consumer is not None:
                await consumer.close()

    async def _read_from_start(self) -> None:
        """Make the source begin at the first message, whatever was acknowledged for an earlier
        target: this target has nothing."""
        path = subscription_path(self.topic, HOLD)
        try:
            await self._source.ask("POST", f"{path}/resetcursor", EARLIEST_BODY)
        except RequestRefusedError as error:
            if not is_refusal(error, 404):
                raise
            # Not by a consumer: the namespace may not allow consumers to create subscriptions.
            await self._source.create(path, EARLIEST_BODY)

    # Entries at the target

    async def _recover(self, there: Connection) -> None:
        """Add the entries at the target that the map lacks.

        Raises:
            SdkError: the target is lost.
            MigrationDiffersError: it has entries of another origin.
        """
        consumer = RawConsumer(there, self._target.next_id(), self._news.set)
        known = self.copied.last
        await consumer.attach(
            self.topic, READER, is_durable=False, start=None if known is None else known.target
        )
        try:
            last = await consumer.last_position()
            if known is not None and last < known.target:
                self._begin_anew()
                await consumer.close()
                await self._recover(there)
                return
            if last > (EARLIEST if known is None else known.target):
                is_known = await self._read_target(consumer, last)
                if not is_known:
                    self._begin_anew()
                    await consumer.close()
                    await self._recover(there)
        finally:
            await consumer.close()

    def _begin_anew(self) -> None:
        """Clear the map, which belongs to another topic: the target was emptied, or created
        anew."""
        self.copied.clear()
        self.restarts += 1

    async def _read_target(self, consumer: RawConsumer, last: Position) -> bool:
        """Read up to `last`; return whether the map agrees with the target."""
        credit = Credit(self._bytes_max)
        known = self.copied.last
        is_verified = known is None
        position = EARLIEST
        while position < last:
            entry = await self._next(consumer, credit)
            position = entry.position
            place = copy_of(entry.payload, self._name)
            if place is None:
                await self._leave_alone()
                raise MigrationDiffersError(
                    f"{self.topic} has messages at the target that do not come from this source, "
                    f"the first at {position}: move to a cluster where the topic is empty, delete "
                    "it there, or choose other --namespaces. After a cut-over there is nothing "
                    "left to move"
                )
            if not is_verified:
                if (place, position) != known:
                    return False
                is_verified = True
                continue
            self.copied.add(place, position, entry.messages)
        return True

    async def _leave_alone(self) -> None:
        """Delete the subscription that holds messages, if nothing was copied to the topic."""
        if self.copied.last is None:
            with contextlib.suppress(BrokerUnreachableError):
                path = subscription_path(self.topic, HOLD)
                await self._target.ask("DELETE", path, None, {"force": "true"})

    async def _next(self, consumer: RawConsumer, credit: Credit) -> RawEntry:
        while True:
            self._news.clear()
            consumer.check()
            asked = credit.ask()
            if asked:
                consumer.flow(asked)
            if consumer.has_entries:
                entry = consumer.take()
                credit.received(entry.messages, len(entry.payload))
                credit.done(entry.messages)
                return entry
            await self._news.wait()

    # Copying

    async def _copy(self, producer: RawProducer, consumer: RawConsumer) -> None:
        last = self.copied.last
        self._sent = START if last is None else last.source
        self._done = self._acked = None
        while True:
            self._news.clear()
            producer.check()
            consumer.check()
            while consumer.has_entries:
                entry = consumer.take()
                schema = bytes(entry.metadata.schema_version)
                if schema:
                    schema = self._schemas.known(
                        self.topic, schema
                    ) or await self._schemas.version_there(self.topic, schema)
                self._offer(producer, entry, schema)
            asked = self._credit.ask()
            if asked:
                consumer.flow(asked)
            await self._news.wait()

    def _offer(self, producer: RawProducer, entry: RawEntry, schema: bytes) -> None:
        """Send the next entry, unless the target has it.

        Args:
            schema: version of the message's schema at the target; empty if it has none.

        Raises:
            TooLargeError: the target does not accept it.
        """
        self._credit.received(entry.messages, len(entry.payload))
        if entry.position <= self._sent:
            self._credit.done(entry.messages)
            if not self._under_way:
                self._done = entry.position
            return
        metadata = entry.metadata
        copy = entry_to_send(
            entry.payload, metadata, self._name, entry.position, self._sent, schema=schema
        )
        if len(copy) > producer.bytes_max:
            self._check_size(producer, entry.position, copy)
        self._under_way.append(_UnderWay(entry.position, entry.messages))
        self._sent = entry.position
        producer.send(copy, metadata)

    def _check_size(self, producer: RawProducer, position: Position, copy: bytes) -> None:
        # The limit applies to the payload alone: a chunk may fill it exactly.
        _, body_at = split_payload(copy)
        size = len(copy) - body_at
        if size > producer.bytes_max:
            raise TooLargeError(
                f"{self.topic}: the entry at {position} has {size} bytes, and the target takes "
                f"{producer.bytes_max}: raise its message_bytes_max"
            )

    def _on_receipts(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            awaited = self._under_way.popleft() if self._under_way else None
            if awaited is None or receipt.source != awaited.source or receipt.target[0] < 0:
                assert self._producer is not None, "only it gets receipts"
                # The next session reads from the target what it has.
                self._producer.fail(
                    BrokerUnavailableError(
                        f"{self.topic}: the target receipted {receipt.source} at "
                        f"{receipt.target}, where {awaited and awaited.source} was expected"
                    )
                )
                return
            self.copied.add(awaited.source, receipt.target, awaited.messages)
            self._credit.done(awaited.messages)
            self._done = awaited.source
        self._news.set()

    def save(self, write: Callable[[str], None]) -> None:
        """Write the new part of the map, then acknowledge it at the source.

        Raises:
            Every error of `write`; the next call writes that part again.
        """
        lines = self.copied.unsaved_lines()
        if lines:
            write(lines)
            self.copied.all_is_saved()
        consumer, done = self._consumer, self._done
        if consumer is not None and done is not None and done != self._acked:
            consumer.acknowledge_through(done)
            self._acked = done
