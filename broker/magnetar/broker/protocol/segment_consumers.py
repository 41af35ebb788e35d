"""SCALABLE_TOPIC_SUBSCRIBE of one connection: stream and checkpoint consumers of Pulsar 5.

Such a consumer registers with the coordinator of its subscription, which assigns segments to it. It
then subscribes to each of them like any other consumer. The rules of the assignment are in
`features/scalable/assignment.py`.

The first refusal of a consumer is final for it, so the broker waits for a coordinator that is about
to move here. A consumer whose connection is lost has time to reconnect; one that unregisters leaves
at once. Source: sheet of Pulsar 5, sections 1.7, 1.8 and 6.
"""

from collections.abc import Callable, Iterator
from functools import partial

from magnetar.broker.base import naming, replies
from magnetar.broker.base.errors import (
    AuthorizationError,
    NotAllowedError,
    RequestError,
    TopicNotFoundError,
)
from magnetar.broker.features.scalable import Assignment, GroupId
from magnetar.broker.protocol.layout_sessions import DISABLED, check_has_layout
from magnetar.broker.protocol.link import Link
from magnetar.broker.protocol.login import Login
from magnetar.broker.security import Action, Subscription
from magnetar.broker.topics.services import Services
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from magnetar.sdk.wire.pulsar_pb2 import ServerError

_CODES = (
    ServerError.AuthenticationError,
    ServerError.AuthorizationError,
    ServerError.ServiceNotReady,
    ServerError.TooManyRequests,
    ServerError.InvalidTopicName,
    ServerError.NotAllowedError,
)
"""Codes that the answer to a registration may have. All others are sent as UnknownError, after
which a client that was registered before tries again."""


class Registration:
    """A consumer, as its coordinator sees it."""

    def __init__(self, consumer_id: int, name: str, group: GroupId, link: Link) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.group = group
        self.assigned: Assignment | None = None
        """Last assignment; None if it is not registered yet."""
        self.is_revoked = False
        """Whether it lost the right to consume."""
        self._link: Link | None = link
        self._news: Assignment | None = None

    def tell(self, assignment: Assignment) -> None:
        """Send an assignment; while the client does not read, keep the newest one."""
        self.assigned = self._news = assignment
        self.wake()

    def wake(self) -> None:
        """Send the pending assignment: the connection can take more."""
        if self._news is not None and self._link is not None and self._link.is_writable:
            news, self._news = self._news, None
            self._link.write(replies.scalable_topic_assignment(self.consumer_id, _to_wire(news)))

    def disconnect(self) -> None:
        """Close the connection: the consumer then looks up where its coordinator is now."""
        if self._link is not None:
            self._link.close()

    def lost(self) -> None:
        """Forget the connection, which is lost.

        The coordinator keeps this consumer a while longer, and must not keep the connection in
        memory.
        """
        self._link = None


class SegmentConsumers:
    """Registrations of one connection."""

    def __init__(self, link: Link, services: Services, login: Login) -> None:
        self._link = link
        self._login = login
        self._services = services
        self._settings = services.settings
        self._coordinators = services.segment_coordinators
        self._registrations: dict[int, Registration] = {}

    def handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.SCALABLE_TOPIC_SUBSCRIBE: self._on_subscribe,
            BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE: self._on_unsubscribe,
        }

    def __len__(self) -> int:
        return len(self._registrations)

    def _on_subscribe(self, command: BaseCommand) -> None:
        request = command.scalableTopicSubscribe
        refuse = partial(_refuse, request.request_id)
        try:
            registration = self._registration(request)
        except RequestError as error:
            self._link.write(refuse(error))
            return
        self._replace(registration)
        if not self._link.start(self._subscribe(request, registration), refuse):
            del self._registrations[registration.consumer_id]

    def _replace(self, registration: Registration) -> None:
        """Add a registration in place of an existing one with its id.

        If both are of the same consumer, it keeps its segments.
        """
        former = self._registrations.pop(registration.consumer_id, None)
        self._registrations[registration.consumer_id] = registration
        if former is None:
            return
        if (former.group, former.name) == (registration.group, registration.name):
            self._coordinators.detach(former.group, former)
        else:
            self._leave(former)

    def _registration(self, request: pb.CommandScalableTopicSubscribe) -> Registration:
        """Return a checked registration for a request.

        Raises:
            NotAllowedError: too many registrations, a name that is too long, or the feature is off.
            InvalidTopicNameError, TopicNotFoundError
        """
        settings = self._settings
        if not settings.scalable_topics:
            raise NotAllowedError(DISABLED)
        limit = settings.scalable_sessions_per_connection_max
        if len(self._registrations) >= limit and request.consumer_id not in self._registrations:
            raise NotAllowedError(
                f"this connection has registered {len(self._registrations)} consumers, and the "
                f"limit is {limit} (scalable_sessions_per_connection_max of the broker)"
            )
        naming.check_client_metadata(
            request.subscription,
            request.consumer_name,
            properties=(),
            bytes_max=settings.client_metadata_bytes_max,
        )
        topic = naming.whole_topic_of(request.topic)
        check_has_layout(topic)
        naming.check_subscription(request.subscription)
        group = GroupId(topic, request.subscription, request.consumer_type)
        return Registration(request.consumer_id, request.consumer_name, group, self._link)

    async def _subscribe(
        self, request: pb.CommandScalableTopicSubscribe, registration: Registration
    ) -> None:
        try:
            assignment = await self._register(request, registration)
        except BaseException:
            if self._is_current(registration):
                del self._registrations[registration.consumer_id]
            raise
        registration.assigned = assignment
        answer = replies.scalable_topic_subscribed(request.request_id, _to_wire(assignment))
        self._link.write(answer)

    async def _register(
        self, request: pb.CommandScalableTopicSubscribe, registration: Registration
    ) -> Assignment:
        """Register a consumer with its coordinator.

        Raises:
            RequestError: the coordinator refuses, or the consumer has left meanwhile.
        """
        group, topics = registration.group, self._services.topics
        await self._login.check(Action.CONSUME, Subscription(group.topic, group.subscription))
        await topics.check_namespace(group.topic.namespace_name)
        if naming.is_scalable(request.topic) and not await topics.creation.is_scalable(group.topic):
            raise TopicNotFoundError(f"Scalable topic not found: {request.topic}")
        assignment = await self._coordinators.register(
            group,
            registration,
            is_wanted=lambda: not self._link.is_closed and self._is_current(registration),
        )
        if registration.is_revoked:
            raise AuthorizationError(
                f"the right to consume subscription {group.subscription} of {group.topic} is gone"
            )
        if assignment is None:
            raise NotAllowedError(f"consumer {registration.consumer_id} has left meanwhile")
        return assignment

    def _is_current(self, registration: Registration) -> bool:
        return self._registrations.get(registration.consumer_id) is registration

    def _on_unsubscribe(self, command: BaseCommand) -> None:
        request = command.scalableTopicUnsubscribe
        if not self._settings.scalable_topics:
            error = NotAllowedError(DISABLED)
            self._link.write(replies.error(request.request_id, error.code, str(error)))
            return
        registration = self._registrations.pop(request.consumer_id, None)
        if registration is not None:
            self._leave(registration)
        # An unknown consumer has left already: that is what the client wants.
        self._link.write(replies.success(request.request_id))

    def _leave(self, registration: Registration) -> None:
        self._coordinators.unregister(registration.group, registration)

    def registrations(self) -> Iterator[Registration]:
        """Yield the consumers that are registered or about to be."""
        yield from list(self._registrations.values())

    def revoke(self, registration: Registration) -> None:
        """Unregister a consumer that may no longer consume, and withdraw its segments.

        A registration under way is refused instead.
        """
        registration.is_revoked = True
        if self._is_current(registration):
            del self._registrations[registration.consumer_id]
        self._leave(registration)
        if registration.assigned is not None:
            registration.tell(Assignment(registration.assigned.epoch, ()))

    def wake(self) -> None:
        """Send pending assignments: the connection can take more."""
        for each in self._registrations.values():
            each.wake()

    def lost(self) -> None:
        """Handle the loss of the connection: its consumers may reconnect on another one."""
        for registration in self._registrations.values():
            registration.lost()
            self._coordinators.detach(registration.group, registration)
        self._registrations.clear()


def _to_wire(assignment: Assignment) -> pb.ScalableConsumerAssignment:
    """Return an assignment as sent on the wire.

    A shared segment names all of its entry buckets: the broker that serves it divides them among
    the consumers that name them.
    """
    return pb.ScalableConsumerAssignment(
        layout_epoch=assignment.epoch,
        segments=[
            pb.ScalableAssignedSegment(
                segment_id=each.id,
                hash_start=each.hash_start,
                hash_end=each.hash_end,
                segment_topic=each.topic,
                bucket_ranges=[
                    pb.IntRange(start=start, end=end)
                    for start, end in (each.bucket_ranges if assignment.is_shared else ())
                ],
            )
            for each in assignment.segments
        ],
    )


def _refuse(request_id: int, error: RequestError) -> bytes:
    code = error.code if error.code in _CODES else ServerError.UnknownError
    return replies.scalable_topic_subscribe_failed(request_id, code, str(error))
