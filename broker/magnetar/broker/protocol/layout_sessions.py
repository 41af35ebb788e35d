"""SCALABLE_TOPIC_LOOKUP of one connection: the layout of a topic, and each newer one.

A client of Pulsar 5 first opens a session for each producer and consumer. Plain and partitioned
topics have synthetic layouts (`features/scalable`). A `topic://` name requests a scalable topic,
which the request may create.

A session is sent whole layouts, each with a higher epoch than the previous one. An error ends the
session, on the client's side, too, for as long as the connection lasts. So errors after the first
layout are only for permanent conditions: the topic was deleted, or the right to look it up was
revoked. If the client must begin again, the connection is closed.

A client that does not read is sent the newest layout when it reads again. A lookup with the id of
an existing session replaces that session. Source: sheet of Pulsar 5, sections 1.3 to 1.11.
"""

from collections.abc import Callable, Iterator
from functools import partial

import structlog

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import (
    AuthorizationError,
    InvalidTopicNameError,
    NotAllowedError,
    ProtocolViolationError,
    RequestError,
    TopicNotFoundError,
)
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.broker.features.scalable import Change, FollowedLayout, Layout, change
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action, Topic
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire import BaseCommand, TopicName
from magnetar.sdk.wire import pulsar_pb2 as pb

_log = structlog.get_logger()

DISABLED = "Scalable topics are disabled on this broker (setting scalable_topics)"
"""Answer to every command of Pulsar 5 while scalable topics are disabled."""


_SEGMENT_BYTES = 128
"""About as many bytes has a segment in a frame."""


class _Session:
    """One session; `told` is set once it was answered."""

    def __init__(
        self, session_id: int, topic: TopicName, on_change: Callable[["_Session"], None]
    ) -> None:
        self.session_id = session_id
        self.topic = topic
        self.told: Layout | None = None
        self.followed: FollowedLayout
        self.owner: Owner
        """Broker that coordinated stream consumers of the topic when the session began."""
        self._on_change = on_change

    def on_change(self) -> None:
        """React to a possible change of the layout."""
        self._on_change(self)


class LayoutSessions:
    """Layout sessions of one connection."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._login = login
        self._services = services
        self._settings = services.settings
        self._sessions: dict[int, _Session] = {}

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.SCALABLE_TOPIC_LOOKUP: self._on_lookup,
            BaseCommand.SCALABLE_TOPIC_CLOSE: self._on_close,
        }

    def __len__(self) -> int:
        return len(self._sessions)

    def _on_lookup(self, command: BaseCommand) -> None:
        request = command.scalableTopicLookup
        session_id = request.session_id
        refuse = partial(_refuse, session_id)
        self._forget(session_id)
        if not self._settings.scalable_topics:
            self._link.write(refuse(NotAllowedError(DISABLED)))
            return
        try:
            topic = naming.whole_topic_of(request.topic)
        except InvalidTopicNameError as error:
            # No answer has a code for it; Apache's broker closes the connection, too.
            raise ProtocolViolationError(f"lookup of a layout: {error}") from error
        limit = self._settings.scalable_sessions_per_connection_max
        if len(self._sessions) >= limit:
            full = NotAllowedError(
                f"this connection has {len(self._sessions)} layout sessions, and the limit is "
                f"{limit} (scalable_sessions_per_connection_max of the broker)"
            )
            self._link.write(refuse(full))
            return
        session = _Session(session_id, topic, self._look)
        self._sessions[session_id] = session
        if not self._link.start(self._open(request, session), refuse):
            del self._sessions[session_id]

    async def _open(self, request: pb.CommandScalableTopicLookup, session: _Session) -> None:
        try:
            await self._begin(request, session)
        except RequestError:
            if self._is_current(session):
                raise
            # It was closed, revoked, or replaced by another session, which the error would end.
        finally:
            if session.told is None and self._is_current(session):
                del self._sessions[session.session_id]

    async def _begin(self, request: pb.CommandScalableTopicLookup, session: _Session) -> None:
        services, topic = self._services, session.topic
        await self._login.check(Action.LOOKUP, Topic(topic))
        await services.topics.check_namespace(topic.namespace_name)
        check_has_layout(topic)
        if naming.is_scalable(request.topic):
            await services.topics.creation.have_scalable(
                topic, may_create=request.create_if_missing
            )
        elif request.create_if_missing:
            await self._create_partitions(topic)
        session.owner = await services.ownership.owner_of(topic, listener=self._link.listener or "")
        session.followed = services.layouts.join(topic, session.on_change)
        try:
            layout = await session.followed.get()
            size_bytes = len(layout.segments) * _SEGMENT_BYTES if layout is not None else 0
            async with self._link.room(size_bytes):
                layout = session.followed.known  # perhaps newer, after a long wait
                if layout is None or layout.is_ending:
                    raise TopicNotFoundError(f"{topic} is being deleted")
                check_is_scalable(request.topic, layout)
                if self._link.is_closed or not self._is_current(session):
                    services.layouts.leave(topic, session.on_change)
                    return
                frame = self._frame(session, layout)
                session.told = layout
                self._link.write(frame)
        except BaseException:
            services.layouts.leave(topic, session.on_change)
            raise

    async def _create_partitions(self, topic: TopicName) -> None:
        """Create the partitions that new topics of the namespace get automatically.

        Whether a topic without partitions may be created is decided when its producer or consumer
        connects.
        """
        services, creation = self._services, self._services.topics.creation
        wanted = (await services.policies.of(topic)).auto_topic_creation
        if wanted.allowed and wanted.is_partitioned and not await creation.is_scalable(topic):
            await creation.partitions_of(topic, may_create=True)

    def _frame(self, session: _Session, layout: Layout) -> bytes:
        """Return the frame with a layout.

        Raises:
            NotAllowedError: it is too large.
        """
        created_ms = self._services.clock.wall_ms()
        frame = replies.scalable_topic_update(
            session.session_id,
            _dag(layout, session.owner, created_ms=created_ms),
            naming.resolved_name(session.topic),
        )
        limit = self._settings.message_bytes_max
        if len(frame) > limit:
            raise NotAllowedError(
                f"the layout of {session.topic} has {len(layout.segments)} segments and "
                f"{len(frame)} bytes, and a frame has room for {limit}"
            )
        return frame

    def _is_current(self, session: _Session) -> bool:
        return self._sessions.get(session.session_id) is session

    def _look(self, session: _Session) -> None:
        """Send a session a newer layout, or end it if there will be none."""
        told = session.told
        if told is None or not self._link.is_writable or not self._is_current(session):
            return
        now = session.followed.known
        what = change(told, now)
        if what is Change.GONE:
            error = TopicNotFoundError(f"{session.topic} was deleted")
            self._end(session, error)
        elif what is Change.REPLACED:
            _log.info(
                "connection_closed_for_layout", address=self._link.address, topic=str(session.topic)
            )
            self._link.close()
        elif what is Change.GROWN and now is not None:
            try:
                frame = self._frame(session, now)
            except NotAllowedError as error:
                self._end(session, error)
                return
            session.told = now
            self._link.write(frame)

    def _end(self, session: _Session, error: RequestError) -> None:
        self._forget(session.session_id)
        self._link.write(_refuse(session.session_id, error))

    def topics(self) -> Iterator[tuple[int, TopicName]]:
        """Yield the ids and topics of all sessions, including those that were not answered yet."""
        for session in list(self._sessions.values()):
            yield session.session_id, session.topic

    def revoke(self, session_id: int) -> None:
        """End a session: the client may no longer look the topic up."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._end(session, AuthorizationError(f"the right to look up {session.topic} is gone"))

    def wake(self) -> None:
        """Send what is new: the connection can take more."""
        for session in list(self._sessions.values()):
            self._look(session)

    def _on_close(self, command: BaseCommand) -> None:
        self._forget(command.scalableTopicClose.session_id)

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.told is not None:
            self._services.layouts.leave(session.topic, session.on_change)

    def lost(self) -> None:
        """Handle the loss of the connection: its sessions end."""
        for session_id in list(self._sessions):
            self._forget(session_id)


def check_has_layout(topic: TopicName) -> None:
    """Refuse a topic that has no layout.

    Raises:
        NotAllowedError: it is not persistent.
        TopicNotFoundError: it is a partition.
    """
    if not topic.is_persistent:
        raise NotAllowedError(f"{topic} is not persistent: it has no layout")
    if topic.partition_index >= 0:
        raise TopicNotFoundError(
            f"{topic} is a partition, and only whole topics have layouts: use {topic.partitioned}"
        )


def check_is_scalable(name: str, layout: Layout) -> None:
    """Refuse the layout of a plain or partitioned topic to a client that requests a scalable one.

    `name`: as the client gave it.

    Raises:
        TopicNotFoundError
    """
    if naming.is_scalable(name) and layout.is_synthetic:
        raise TopicNotFoundError(f"{name} not found: there is no scalable topic of that name")


def _dag(layout: Layout, owner: Owner, *, created_ms: int) -> pb.ScalableTopicDAG:
    """Return the layout as sent on the wire.

    Addresses of segments are left out: clients look each one up. `created_ms`: creation time for
    segments whose own is unknown.
    """
    return pb.ScalableTopicDAG(
        epoch=layout.epoch,
        segments=[
            pb.SegmentInfoProto(
                segment_id=each.id,
                hash_start=each.hash_start,
                hash_end=each.hash_end,
                state=pb.SEALED if each.is_sealed else pb.ACTIVE,
                parent_ids=each.parents,
                child_ids=each.children,
                created_at_epoch=each.created_epoch,
                sealed_at_epoch=each.sealed_epoch,
                created_at_ms=each.created_ms if each.created_ms is not None else created_ms,
                sealed_at_ms=each.sealed_ms,
                legacy_topic_name=each.topic if each.is_legacy else None,
                entry_bucket_splits=each.bucket_splits,
            )
            for each in layout.segments
        ],
        controller_broker_url=owner.service_url or None,
        controller_broker_url_tls=owner.service_url_tls or None,
    )


def _refuse(session_id: int, error: RequestError) -> bytes:
    return replies.scalable_topic_failed(session_id, error.code, str(error))
