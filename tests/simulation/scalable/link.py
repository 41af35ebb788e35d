"""The commands of Pulsar 5 that the SDK does not have: layout sessions and registrations.

Each has a connection of its own, as the network lets it, and begins again when that is lost. What a
client does first, and in which order, is as the Java client does it (sheet of Pulsar 5, section 1).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.errors import FrameError
from magnetar.sdk.wire.frames import FrameDecoder, encode_command
from magnetar.sdk.wire.hot_commands import PING_FRAME, PONG_FRAME
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand
from tests.simulation.cluster.broker import PORT
from tests.simulation.cluster.clients import SimUser
from tests.simulation.history import Said
from tests.simulation.network import SimNetwork
from tests.simulation.scalable.events import Assigned, LayoutTold
from tests.simulation.scalable.plan import SCALABLE

_CONNECT_S = 0.5
_ANSWER_S = 10.0
_BEAT_S = 1.0
_RETRY_S = 0.1
_SESSION_ID, _CONSUMER_ID = 1, 1


class LinkError(Exception):
    """The connection is lost, or the broker has refused: begin again."""


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """A segment, as a client knows it."""

    id: int
    start: int
    end: int
    """Inclusive."""
    is_sealed: bool
    name: str


@dataclass(frozen=True, slots=True)
class KnownLayout:
    """A layout, as a client knows it."""

    epoch: int
    segments: tuple[KnownSegment, ...]

    @classmethod
    def of(cls, dag: pb.ScalableTopicDAG) -> Self:
        found = (
            KnownSegment(
                each.segment_id,
                each.hash_start,
                each.hash_end,
                each.state == pb.SEALED,
                _name_of(each),
            )
            for each in dag.segments
        )
        return cls(dag.epoch, tuple(sorted(found, key=lambda each: each.id)))

    @property
    def active(self) -> tuple[KnownSegment, ...]:
        return tuple(each for each in self.segments if not each.is_sealed)

    def segment_of(self, hashed: int) -> KnownSegment | None:
        """The segment that takes messages of a hash; None: none does."""
        return next((each for each in self.active if each.start <= hashed <= each.end), None)


def _name_of(segment: pb.SegmentInfoProto) -> str:
    """Clients make the names of segments themselves."""
    whole = SCALABLE.replace("topic://", "segment://")
    return f"{whole}/{segment.hash_start:04x}-{segment.hash_end:04x}-{segment.segment_id}"


class V5Link(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._commands: asyncio.Queue[BaseCommand | None] = asyncio.Queue()
        self._transport: asyncio.BaseTransport | None = None
        self._has_heard = True
        self._beat: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, user: SimUser, host: str) -> Self:
        """
        Raises:
            LinkError: the broker cannot be reached, or serves no clients of Pulsar 5.
        """
        link = cls()
        try:
            network = SimNetwork(user.front, user.process)
            await network.connect(host, PORT, lambda: link, timeout_s=_CONNECT_S)
            flags = pb.FeatureFlags(supports_auth_refresh=True)
            connect = pb.CommandConnect(
                client_version="Pulsar-v5", protocol_version=21, feature_flags=flags
            )
            link.send(BaseCommand(type=BaseCommand.CONNECT, connect=connect))
            answer = await link.next(timeout_s=_CONNECT_S)
        except (OSError, TimeoutError) as error:
            link.close()
            raise LinkError(f"cannot connect to {host}: {error!r}") from error
        except BaseException:
            link.close()
            raise
        if not answer.connected.feature_flags.supports_scalable_topics:
            link.close()
            raise LinkError(f"{host} does not announce scalable topics")
        link._keep_alive()
        return link

    def send(self, command: BaseCommand) -> None:
        if isinstance(self._transport, asyncio.Transport):
            self._transport.write(encode_command(command))

    async def next(self, *, timeout_s: float | None = None) -> BaseCommand:
        """The next command of the broker.

        Raises:
            LinkError: the connection is lost, or nothing came in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                command = await self._commands.get()
        except TimeoutError as error:
            raise LinkError("no answer in time") from error
        if command is None:
            raise LinkError("the connection is lost")
        return command

    def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if isinstance(self._transport, asyncio.Transport):
            self._transport.close()

    def _keep_alive(self) -> None:
        if not self._has_heard:
            self._commands.put_nowait(None)
            if isinstance(self._transport, asyncio.Transport):
                self._transport.abort()
            return
        self._has_heard = False
        if isinstance(self._transport, asyncio.Transport):
            self._transport.write(PING_FRAME)
        self._beat = asyncio.get_running_loop().call_later(_BEAT_S, self._keep_alive)

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._commands.put_nowait(None)

    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        try:
            commands = self._decoder.feed(data)
        except FrameError:
            self._commands.put_nowait(None)
            return
        for command, _ in commands:
            if command.type == BaseCommand.PING:
                if isinstance(self._transport, asyncio.Transport):
                    self._transport.write(PONG_FRAME)
            elif command.type != BaseCommand.PONG:
                self._commands.put_nowait(command)


class LayoutSession:
    """Follows the layout of the topic, as long as its task runs."""

    def __init__(
        self, user: SimUser, hosts: list[str], on_layout: Callable[[KnownLayout], None]
    ) -> None:
        self._user = user
        self._hosts = hosts
        self._on_layout = on_layout
        self._links = 0
        self.known: KnownLayout | None = None
        """The newest that it was told."""

    async def follow(self) -> None:
        """For ever."""
        while True:
            try:
                link = await V5Link.open(self._user, self._hosts[self._links % len(self._hosts)])
                try:
                    await self._follow(link)
                finally:
                    link.close()
            except LinkError as error:
                self._user.record(Said(f"layout: {error}"))
            self._links += 1
            await asyncio.sleep(_RETRY_S)

    async def _follow(self, link: V5Link) -> None:
        session = f"{self._user.name}/{self._links}"
        ask_for_layout(link)
        timeout_s: float | None = _ANSWER_S
        while True:
            layout = await next_layout(link, timeout_s=timeout_s)
            timeout_s = None
            self._user.record(told(session, layout))
            if self.known is None or layout.epoch > self.known.epoch:
                self.known = layout
                self._on_layout(layout)


def told(session: str, layout: KnownLayout) -> LayoutTold:
    """The event of a layout that was told."""
    segments = tuple((each.id, each.start, each.end, each.is_sealed) for each in layout.segments)
    return LayoutTold(session, layout.epoch, segments)


def ask_for_layout(link: V5Link) -> None:
    lookup = pb.CommandScalableTopicLookup(
        session_id=_SESSION_ID, topic=SCALABLE, create_if_missing=False
    )
    link.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP, scalableTopicLookup=lookup))


async def next_layout(link: V5Link, *, timeout_s: float | None) -> KnownLayout:
    """
    Raises:
        LinkError
    """
    return KnownLayout.of((await _next_update(link, timeout_s=timeout_s)).dag)


async def _next_update(link: V5Link, *, timeout_s: float | None) -> pb.CommandScalableTopicUpdate:
    command = await link.next(timeout_s=timeout_s)
    if command.type != BaseCommand.SCALABLE_TOPIC_UPDATE:
        raise LinkError(f"unexpected: {BaseCommand.Type.Name(command.type)}")
    update = command.scalableTopicUpdate
    if update.HasField("error"):
        raise LinkError(f"no layout: {update.message}")
    return update


Buckets = tuple[tuple[int, int], ...]
"""First and last hash of each entry bucket; none: the segment is not shared."""


class Registration:
    """A stream consumer at its coordinator, as long as its task runs."""

    def __init__(
        self,
        user: SimUser,
        hosts: list[str],
        *,
        subscription: str,
        name: str,
        on_segments: Callable[[Mapping[str, Buckets]], None],
    ) -> None:
        """`on_segments` is told the names of its segments, with the entry buckets of one that other
        consumers have, too."""
        self._user = user
        self._hosts = hosts
        self._subscription = subscription
        self._name = name
        self._on_segments = on_segments
        self._epoch = -1
        self._links = 0
        self._link: V5Link | None = None

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                host = await self._coordinator(self._hosts[self._links % len(self._hosts)])
                link = self._link = await V5Link.open(self._user, host)
                try:
                    await self._register(link)
                finally:
                    link.close()
                    self._link = None
            except LinkError as error:
                self._user.record(Said(f"registration: {error}"))
            self._links += 1
            await asyncio.sleep(_RETRY_S)

    async def _coordinator(self, host: str) -> str:
        """The broker to register with: the layout is asked for that alone."""
        link = await V5Link.open(self._user, host)
        try:
            ask_for_layout(link)
            update = await _next_update(link, timeout_s=_ANSWER_S)
            close = pb.CommandScalableTopicClose(session_id=_SESSION_ID)
            link.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE, scalableTopicClose=close))
        finally:
            link.close()
        return urlsplit(update.dag.controller_broker_url).hostname or host

    async def _register(self, link: V5Link) -> None:
        subscribe = pb.CommandScalableTopicSubscribe(
            request_id=1,
            topic=SCALABLE,
            subscription=self._subscription,
            consumer_name=self._name,
            consumer_id=_CONSUMER_ID,
            consumer_type=pb.STREAM,
        )
        kind = BaseCommand.SCALABLE_TOPIC_SUBSCRIBE
        link.send(BaseCommand(type=kind, scalableTopicSubscribe=subscribe))
        timeout_s: float | None = _ANSWER_S
        while True:
            command = await link.next(timeout_s=timeout_s)
            timeout_s = None
            match command.type:
                case BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
                    answer = command.scalableTopicSubscribeResponse
                    if answer.HasField("error"):
                        raise LinkError(f"refused: {answer.message}")
                    self._take(answer.assignment)
                case BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
                    self._take(command.scalableTopicAssignmentUpdate.assignment)
                case kind:
                    raise LinkError(f"unexpected: {BaseCommand.Type.Name(kind)}")

    def _take(self, assignment: pb.ScalableConsumerAssignment) -> None:
        found = {
            each.segment_topic: tuple((one.start, one.end) for one in each.bucket_ranges)
            for each in assignment.segments
        }
        epoch = assignment.layout_epoch
        event = Assigned(self._subscription, self._links, epoch, tuple(sorted(found)))
        self._user.record(event)
        if epoch < self._epoch:
            return  # As the Java client: without a word.
        self._epoch = epoch
        self._on_segments(found)

    def leave(self) -> None:
        """Leave the group."""
        if self._link is not None:
            gone = pb.CommandScalableTopicUnsubscribe(request_id=2, consumer_id=_CONSUMER_ID)
            kind = BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE
            self._link.send(BaseCommand(type=kind, scalableTopicUnsubscribe=gone))
