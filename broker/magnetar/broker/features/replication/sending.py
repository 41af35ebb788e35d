"""Copies of one topic to one other cluster.

Entries are sent as they are stored, in their order, beginning after the mark of a durable cursor; a
batch stays a batch. The mark moves over entries that the other cluster has receipted, or that are
not copied there. Any error ends the connection's producer, and the next one begins after the mark
again. The other cluster recognizes entries that are sent twice by their places (`receiving.py`), so
their outcome need not be known. A refusal also ends the producer: no later entry overtakes the
refused one.

While nobody publishes, nothing runs: new entries, receipts and lost connections wake the one task.
Messages published while copies keep up come from the topic's tail, as for consumers. Only older
ones are read.

Source: geo-replication sheet, sections 4, 6, 17 and 18.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from magnetar.broker.base.entry import ACKS_MARKER
from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.broker.base.replies import TAKES_ACKS
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.log_snapshots import ReplayedLog, SnapshotCursor
from magnetar.broker.features.replication.copies import MARKER_RECEIPT, as_copy, goes_to
from magnetar.broker.features.replication.dropped import (
    Dropped,
    dropped_in,
    dropped_properties,
    with_dropped,
)
from magnetar.broker.features.replication.figures import CopyFigures
from magnetar.broker.features.replication.names import replicator_name
from magnetar.broker.features.replication.partitions import have_partitions
from magnetar.broker.features.replication.remotes import RemoteCluster
from magnetar.broker.features.replication.source_marks import NO_INCARNATION, CopyPlace, Source
from magnetar.broker.features.replication.window import SendWindow, sent_in, sent_properties
from magnetar.broker.topic import TopicPort
from magnetar.broker.topic.dispatch.throttle import Published, RateLimiter
from magnetar.broker.topic.feature import DurableBacklogCursor
from magnetar.broker.topic.tail import Tail
from magnetar.cursors import CursorError
from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.errors import BrokerUnavailableError, SdkError, ServiceError, service_error
from magnetar.sdk.wire import (
    BaseCommand,
    MalformedPayloadError,
    MessageMetadata,
    TopicName,
    split_payload,
)
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.frames import encode_payload_command

if TYPE_CHECKING:
    from magnetar.sdk.connection import Connection
    from magnetar.sdk.wire.pulsar_pb2 import CommandSendError, CommandSendReceipt

_log = structlog.get_logger()

MAGNETAR_VERSION = "Magnetar"
"""Prefix of the version of our servers: they detect gaps, so many entries may be pending."""


class ReplicationCursor(SnapshotCursor, DurableBacklogCursor, Protocol):
    """A cursor as a sender needs it; `Cursor` is one."""

    @property
    def name(self) -> str: ...


class TailedTopic(TopicPort, Protocol):
    """A topic as a sender needs it."""

    @property
    def tail(self) -> Tail: ...


SchemaOf = Callable[[TopicName, bytes], Awaitable[pb.Schema]]
"""Function that finds the schema of a version that messages of a topic name."""


@dataclass(frozen=True, slots=True)
class SendingSurroundings:
    """Objects of the broker that a sender needs."""

    cluster: str
    """Name of this cluster."""
    clock: Clock
    schema_of: SchemaOf
    partitions_of: Callable[[TopicName], Awaitable[int]]
    """Returns the number of partitions in this cluster of a partitioned topic."""
    settings: BrokerSettings


class Sending:
    """Copies of one topic to one cluster. Call `start`, then `close` and `stopped`."""

    def __init__(
        self,
        topic: TailedTopic,
        log: ReplayedLog,
        cursor: ReplicationCursor,
        remote: RemoteCluster,
        around: SendingSurroundings,
        *,
        incarnation: int,
        published: Published = lambda: (0, 0),
    ) -> None:
        """Create a sender that is not started.

        Args:
            incarnation: the log's life; see `source_marks.py`.
            published: returns the messages and bytes published to the topic so far.
        """
        self._topic = topic
        self._log = log
        self.cursor = cursor
        self._remote = remote
        self._around = around
        self._source = Source(around.cluster, incarnation)
        self._label = f"{topic.name} to {remote.name}"
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._limiter = RateLimiter(asyncio.get_running_loop().time, published)
        self._limiter.set_rate(topic.policies.replicator_dispatch_rate)
        self._released = asyncio.Event()
        """Set when waiting for the rate or a retry no longer makes sense."""
        self._session: _Session | None = None
        self._taken: Position | None = None
        """Last entry taken for the session; None without a session."""
        self._awaited: Position | None = None
        """Copy whose receipt was awaited at the last look; `_awaited_since_s` is when that
        began."""
        self._awaited_since_s = 0.0
        self._is_closed = False
        self._is_settled = asyncio.Event()
        """Set when the other cluster has everything, or copying is stuck."""
        self.problem = ""
        """Why nothing is copied at present; empty if no problem is known."""
        self.since_ms = 0
        """When the sender connected, ms since 1970; 0 if it is not connected."""
        self.figures = CopyFigures(around.clock.wall_ms())
        if cursor.backlog_entries:
            first = log.next_position(cursor.mark_delete)
            self.figures.fell_behind(topic.log.stored_since_ms(first) or around.clock.wall_ms())

    def start(self) -> None:
        """Start the task that copies."""
        self._topic.tail.readers.append(self)
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"replication-{self._label}"
        )

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True
        self._is_settled.set()
        if self._task is not None:
            self._task.cancel()
        if self in self._topic.tail.readers:
            self._topic.tail.readers.remove(self)
            self._topic.tail.trim_soon()

    async def stopped(self) -> None:
        """Return when the task has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def topic(self) -> TopicName:
        """The topic that is copied."""
        return self._topic.name

    @property
    def remote(self) -> str:
        """Name of the cluster that the topic is copied to."""
        return self._remote.name

    @property
    def is_connected(self) -> bool:
        """Whether the sender has a producer there."""
        return self._session is not None

    @property
    def takes_acks(self) -> bool:
        """Whether the sender is connected to a broker that takes single acknowledgements."""
        return self._session is not None and self._session.takes_acks

    async def settle(self) -> None:
        """Return when the other cluster has everything, or copying is stuck."""
        await self._is_settled.wait()

    def on_stored(self) -> None:
        """Wake the task: the log has new entries."""
        self._is_settled.clear()
        if not self.figures.is_behind:
            self.figures.fell_behind(self._around.clock.wall_ms())
        self._news.set()

    def look(self) -> None:
        """Sample the counters, and reconnect if receipts are overdue.

        A broker there that hangs would otherwise stop the copies for ever, without a report (rule
        17.8).
        """
        around, session = self._around, self._session
        self.figures.sample(around.clock.wall_ms(), around.settings.stats_rate_interval_s)
        awaited = session.window.awaited if session is not None else None
        now_s = around.clock.monotonic_s()
        if awaited is None or awaited != self._awaited:
            self._awaited, self._awaited_since_s = awaited, now_s
        elif session is not None and not session.is_failed:
            waited_s = now_s - self._awaited_since_s
            if waited_s >= around.settings.replication_receipt_timeout_s:
                session.give_up(f"has not receipted the message at {awaited} for {waited_s:.0f} s")

    def policies_changed(self) -> None:
        """Apply changed policies, such as another dispatch rate."""
        self._limiter.set_rate(self._topic.policies.replicator_dispatch_rate)
        self._released.set()

    # Running

    async def _run(self) -> None:
        failures = 0
        while not self._is_closed:
            moved = self.cursor.mark_delete
            try:
                await self._copy()
            except (SdkError, RequestError, LedgerError, CursorError) as error:
                failures = 1 if self.cursor.mark_delete != moved else failures + 1
                self._note_problem(str(error))
            except MalformedPayloadError as error:
                failures += 1
                self._note_problem(f"an entry cannot be read: {error}")
            except Exception:  # noqa: BLE001 - another connection may do better
                failures += 1
                _log.exception("replication_broke", copies=self._label)
            settings = self._around.settings
            await self._pause(
                backoff(settings.replication_retry_s, failures, settings.replication_retry_s_max)
            )

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless an event makes waiting useless."""
        self._released.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._released.wait()
        except TimeoutError:
            pass

    def _note_problem(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("replication_stands_still", copies=self._label, reason=problem)
        self.problem = problem
        self._is_settled.set()

    async def _copy(self) -> None:
        """Copy until something fails.

        Raises:
            SdkError, RequestError, LedgerError, CursorError: copying failed; reconnect and continue
                after the mark.
        """
        remote, topic = self._remote, self._topic
        await self._have_partitions()
        connection = await remote.find(str(topic.name))
        session = _Session(self, connection, remote.next_producer_id(), self._window(connection))
        await session.attach(
            str(topic.name),
            replicator_name(self._around.cluster, remote.name),
            timeout_ms=self._around.settings.replication_timeout_ms,
        )
        try:
            self._session, self.since_ms = session, self._around.clock.wall_ms()
            if self.problem:
                _log.info("replication_goes_on", copies=self._label)
            self.problem = ""
            await self._send_all(session)
        finally:
            self._session, self.since_ms, self._taken = None, 0, None
            self._topic.tail.trim_soon()
            self.figures.came_on(session.window.oldest_published_ms)
            session.detach()

    def _window(self, connection: "Connection") -> SendWindow:
        settings = self._around.settings
        is_ours = connection.server_version.startswith(MAGNETAR_VERSION)
        return SendWindow(
            mark=self.cursor.mark_delete,
            sent=sent_in(self.cursor.position_properties),
            entries_max=settings.replication_entries_max
            if is_ours
            else settings.replication_pulsar_entries_max,
            bytes_max=settings.replication_bytes_max,
        )

    async def _have_partitions(self) -> None:
        """Give the topic, if it is a partition, as many partitions there as here (rule 8.1).

        Raises:
            SdkError, RequestError: the numbers of partitions differ, or cannot be read or changed
                now.
        """
        name, around = self._topic.name, self._around
        if name.partition_index >= 0:
            base = name.partitioned
            await have_partitions(
                base,
                await around.partitions_of(base),
                self._remote,
                may_create=around.settings.replication_creates_partitions,
            )

    async def _send_all(self, session: "_Session") -> None:
        log, window = self._log, session.window
        position = log.next_position(window.mark)
        self._taken = window.mark
        while True:
            self._news.clear()
            session.check()
            if position <= self.cursor.mark_delete:
                window.skip(self.cursor.mark_delete)  # everything up to there was dropped
                position = log.next_position(self.cursor.mark_delete)
            is_at_end = position > self._topic.visibility.last
            if is_at_end and window.is_empty:
                self.figures.caught_up()
                self._is_settled.set()
            if is_at_end or not window.has_room:
                await self._news.wait()
                continue
            first, entries = await self._entries_from(position)
            if not entries:
                await self._news.wait()
                continue
            last = await self._send_each(session, first, entries)
            if last is not None:
                position = log.next_position(last)
                self._taken = last
                self._topic.tail.trim_soon()
                self._save(window)

    async def _entries_from(self, position: Position) -> tuple[Position, Sequence[bytes]]:
        """Return entries from a position on, and the first one's position: from the tail, or read.

        Raises:
            LedgerError: they cannot be read now.
        """
        run = self._topic.tail.cache.find(position)
        if run is None:
            settings = self._around.settings
            return await self._log.read_range(
                position,
                entries_max=settings.read_ahead_entries,
                bytes_max=settings.read_ahead_bytes,
            )
        await asyncio.sleep(0)  # let other tasks run, however much the tail holds
        at = position.entry_id - run.first_entry_id
        return position, run.entries[at:] if at else run.entries

    @property
    def read_after(self) -> Position | None:
        """Last entry taken; None if the tail need not keep entries for this sender."""
        taken, log = self._taken, self._topic.log
        if taken is None:
            return None
        behind = log.entries_between(taken, log.last_confirmed)
        return taken if behind <= self._around.settings.replication_entries_max else None

    async def _send_each(
        self, session: "_Session", first: Position, entries: Sequence[bytes]
    ) -> Position | None:
        """Send or skip the visible ones among consecutive entries, each when there is room.

        Return the last of them; None if none is visible.

        Raises:
            SdkError, RequestError: an entry cannot be sent, or its schema is refused.
        """
        window, last = session.window, None
        ledger_id, first_id = first
        for entry_id, entry in enumerate(entries, start=first_id):
            position = Position(ledger_id, entry_id)
            if position > self._topic.visibility.last:
                break
            while not window.has_room:
                self._news.clear()
                session.check()
                if not window.has_room:
                    await self._news.wait()
            last = position
            metadata = self._to_be_sent(session, position, entry)
            if metadata is None:
                window.skip(position)
                continue
            schema = b""
            if metadata.schema_version:
                schema = await self._schema_there(session, metadata.schema_version)
            if self._limiter.is_active:
                await self._wait_for_rate(session)
            session.send(self._source, position, entry, metadata, schema)
            messages = max(1, metadata.num_messages_in_batch)
            self._limiter.spend(messages, len(entry))
            self.figures.messages_out += messages
            self.figures.bytes_out += len(entry)
        return last

    def _to_be_sent(
        self, session: "_Session", position: Position, entry: bytes
    ) -> MessageMetadata | None:
        """Return the metadata of the next entry; None if it is not copied there.

        Raises:
            MalformedPayloadError: the entry cannot be read.
        """
        if position <= self.cursor.mark_delete:
            return None  # it was dropped
        metadata, _ = split_payload(entry)
        is_hidden = self._topic.visibility.is_aborted(position) or (
            metadata.marker_type == ACKS_MARKER and not session.takes_acks
        )
        if is_hidden or not goes_to(self._remote.name, metadata):
            self.figures.skipped += 1
            return None
        return metadata

    async def _wait_for_rate(self, session: "_Session") -> None:
        """Return when one more entry may be sent. A timer ends each wait (rule 17.8).

        Raises:
            SdkError: the session is lost.
        """
        limiter = self._limiter
        while not all(limiter.room()):
            session.check()
            await self._pause(limiter.wait_s())
        session.check()

    async def _schema_there(self, session: "_Session", version: bytes) -> bytes:
        """Return the version of a schema there; register the schema if necessary (rule 9.1).

        Raises:
            SdkError: the other cluster refuses the schema.
        """
        found = session.schemas.get(version)
        if found is None:
            schema = await self._around.schema_of(self._topic.name, version)
            timeout_ms = self._around.settings.replication_timeout_ms
            try:
                found = await session.register(str(self._topic.name), schema, timeout_ms=timeout_ms)
            except ServiceError as error:
                number = int.from_bytes(version, "big")
                told = f"{session.peer} refuses version {number} of the schema {schema.name}"
                raise service_error(error.server_code, f"{told}: {error}") from error
            session.schemas[version] = found
        return found

    def progressed(self, window: SendWindow) -> None:
        """Save the mark after receipts, and wake the task."""
        if self._is_closed:
            return  # another owner may have the cursor by now
        self._save(window)
        self._news.set()

    def _save(self, window: SendWindow) -> None:
        if window.mark > self.cursor.mark_delete:
            # Both at once: a save must take the state of one moment.
            self._set_properties(sent_properties(window.receipted), self.dropped)
            self.cursor.ack_cumulative(window.mark)

    def _set_properties(self, sent: Mapping[str, int], dropped: Dropped | None) -> None:
        self.cursor.set_position_properties({**sent, **dropped_properties(dropped)})

    @property
    def dropped(self) -> Dropped | None:
        """Entries that were dropped before the other cluster had them; None if there are none."""
        return dropped_in(self.cursor.position_properties)

    def lost(self) -> None:
        """Wake the task: the connection, or the producer there, is gone."""
        self._news.set()
        self._released.set()

    # The sender as a `FeatureBacklog`

    @property
    def name(self) -> str:
        """Name of the cursor."""
        return self.cursor.name

    @property
    def what(self) -> str:
        """The pending work in words."""
        return f"copies to cluster {self._remote.name}"

    @property
    def is_open(self) -> bool:
        """Whether the backlog can be read and dropped."""
        return not self._is_closed

    @property
    def expires(self) -> bool:
        """Whether messages are dropped when their time to live is over, copied or not."""
        return self._around.settings.replication_ttl_enabled

    def drop_through(self, through: Position) -> int:
        """Drop the entries through a position before they are copied; return their number.

        Copies that are already sent may still arrive.
        """
        cursor, before = self.cursor, self.cursor.backlog_entries
        through = min(through, self._topic.visibility.last)
        if self._is_closed or through <= cursor.mark_delete:
            return 0
        properties = cursor.position_properties
        # Both at once, as in `_save`.
        self._set_properties(
            sent_properties(sent_in(properties)),
            with_dropped(self.dropped, cursor.mark_delete, through),
        )
        if not cursor.ack_cumulative(through):
            cursor.set_position_properties(properties)
            return 0
        dropped = max(0, before - cursor.backlog_entries)
        self.figures.expired_entries += dropped
        if not cursor.backlog_entries:
            self.figures.caught_up()
        _log.warning(
            "copies_dropped", copies=self._label, entries=dropped, through=str(cursor.mark_delete)
        )
        self._news.set()
        self._released.set()
        return dropped

    # Shown

    def delay_s(self, now_ms: int) -> int:
        """Return the age of the oldest message that is missing there, in seconds; 0 if none is."""
        session = self._session
        oldest_ms = session.window.oldest_published_ms if session is not None else 0
        return self.figures.delay_s(now_ms, oldest_ms)

    def shown(self) -> dict[str, Any]:
        """Return statistics under Pulsar's names, without the copies from that cluster."""
        figures, now_ms = self.figures, self._around.clock.wall_ms()
        rate, bytes_rate, expiry_rate = figures.rates(now_ms)
        return {
            "msgRateIn": 0.0,
            "msgThroughputIn": 0.0,
            "msgInCount": 0,
            "bytesInCount": 0,
            "msgRateOut": rate,
            "msgThroughputOut": bytes_rate,
            "msgOutCount": figures.messages_out,
            "bytesOutCount": figures.bytes_out,
            "msgRateExpired": expiry_rate,
            "msgExpiredCount": figures.expired_entries,
            "replicationBacklog": self.cursor.backlog_entries,
            "connected": self.is_connected,
            "replicationDelayInSeconds": self.delay_s(now_ms),
            "inboundConnection": None,
            "inboundConnectedSince": None,
            "outboundConnection": self._session.peer if self._session is not None else None,
            "outboundConnectedSince": self.since_ms or None,
            "problem": self.problem,
        }


class _Session:
    """One producer at the other cluster, until it is lost."""

    def __init__(
        self, sending: Sending, connection: "Connection", producer_id: int, window: SendWindow
    ) -> None:
        self._sending = sending
        self._connection = connection
        self._id = producer_id
        self.window = window
        self.schemas: dict[bytes, bytes] = {}
        """Versions of schemas: here to there."""
        self._failure: SdkError | None = None
        self._markers: set[Position] = set()
        """Pending markers: Apache Pulsar does not receipt them by their places."""
        self._is_pulsar = not connection.server_version.startswith(MAGNETAR_VERSION)
        self._names_places = connection.deduplicates_copies
        self.takes_acks = TAKES_ACKS in connection.server_version
        """Whether the broker there takes single acknowledgements."""

    @property
    def peer(self) -> str:
        """Address of the broker there."""
        return self._connection.name

    async def attach(self, topic: str, name: str, *, timeout_ms: int) -> None:
        """Create the producer there.

        Raises:
            SdkError: the broker there refuses it, or does not answer.
        """
        connection = self._connection
        request_id = connection.next_request_id()
        connection.producers[self._id] = self
        command = pb.CommandProducer(
            topic=topic,
            producer_id=self._id,
            request_id=request_id,
            producer_name=name,
            user_provided_producer_name=True,
            schema=None,
        )
        try:
            await connection.request(
                request_id,
                BaseCommand(type=BaseCommand.PRODUCER, producer=command),
                timeout_ms=timeout_ms,
            )
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Close the producer there, if the connection still has it."""
        connection = self._connection
        is_attached = connection.producers.pop(self._id, None) is not None
        if is_attached and connection.is_open:
            command = pb.CommandCloseProducer(
                producer_id=self._id, request_id=connection.next_request_id()
            )
            connection.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=command))

    def check(self) -> None:
        """Check that the producer there is alive.

        Raises:
            SdkError: it is gone.
        """
        if self._failure is not None:
            raise self._failure

    async def register(self, topic: str, schema: pb.Schema, *, timeout_ms: int) -> bytes:
        """Register a schema there; return its version.

        Raises:
            SdkError: the broker there refuses it, or does not answer.
        """
        request_id = self._connection.next_request_id()
        command = pb.CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema)
        answer = await self._connection.request(
            request_id,
            BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=command),
            timeout_ms=timeout_ms,
        )
        response = answer.getOrCreateSchemaResponse
        if response.HasField("error_code"):
            raise service_error(response.error_code, str(response.error_message))
        version: bytes = response.schema_version
        return version

    def send(
        self,
        source: Source,
        position: Position,
        entry: bytes,
        metadata: MessageMetadata,
        schema: bytes,
    ) -> None:
        """Send an entry.

        Raises:
            NotAllowedError: the entry is larger than the other cluster accepts.
        """
        if self._is_pulsar:
            source = Source(source.cluster, NO_INCARNATION)
        place = CopyPlace(position, self.window.previous)
        copy = as_copy(entry, metadata, source, place, schema=schema)
        limit = self._connection.message_bytes_max
        if len(copy) > limit:
            # The limit is for the payload alone: a chunk fills it wholly.
            _, body_at = split_payload(copy)
            if len(copy) - body_at > limit:
                raise NotAllowedError(
                    f"the message at {position} has {len(copy) - body_at} bytes, and {self.peer} "
                    f"takes {limit}: raise its maxMessageSize"
                )
        command = pb.CommandSend(
            producer_id=self._id,
            sequence_id=metadata.sequence_id,
            num_messages=max(1, metadata.num_messages_in_batch),
        )
        if metadata.HasField("highest_sequence_id"):
            command.highest_sequence_id = metadata.highest_sequence_id
        if metadata.num_chunks_from_msg > 1:
            command.is_chunk = True
        if metadata.HasField("marker_type"):
            command.marker = True
            self._markers.add(position)
        self.window.send(position, len(copy), metadata.publish_time)
        self._connection.write(
            [encode_payload_command(BaseCommand(type=BaseCommand.SEND, send=command), copy)]
        )

    # Called by the connection

    def on_receipts(self, receipts: "Sequence[CommandSendReceipt]") -> None:
        for receipt in receipts:
            awaited = self.window.awaited
            place = receipt.sequence_id, receipt.highest_sequence_id
            is_right = awaited is not None and self._is_receipt_of(awaited, place)
            if not is_right:
                self._fail(
                    BrokerUnavailableError(
                        f"{self.peer} receipted {place[0]}:{place[1]} where {awaited} was expected"
                    )
                )
                return
            self.window.receipt()
        self._sending.progressed(self.window)

    def _is_receipt_of(self, awaited: Position, place: tuple[int, int]) -> bool:
        is_marker = awaited in self._markers
        self._markers.discard(awaited)
        if not self._names_places or place == tuple(awaited):
            return True
        return is_marker and place[1] == MARKER_RECEIPT

    def on_send_error(self, error: "CommandSendError") -> None:
        self._fail(
            service_error(
                error.error,
                f"{self.peer} refused the message at {self.window.awaited}: {error.message}",
            )
        )

    def on_session_lost(self, connection: "Connection") -> None:
        self._fail(BrokerUnavailableError(f"{self.peer} has closed the producer, or is lost"))

    @property
    def is_failed(self) -> bool:
        """Whether the session has failed; `check` raises the reason."""
        return self._failure is not None

    def give_up(self, why: str) -> None:
        """End the session. `why` says what the broker there fails to do."""
        self._fail(BrokerUnavailableError(f"{self.peer} {why}"))

    def _fail(self, error: SdkError) -> None:
        if self._failure is None:
            self._failure = error
            self._sending.lost()
