"""The segments of one stream consumer, as the coordinator of its subscription assigns them.

The consumer registers by its name (SCALABLE_TOPIC_SUBSCRIBE) with the broker that the topic's
layout names. It gets its segments, and an update whenever they change. After a lost connection it
looks up the layout again, registers under the same name, and keeps its segments meanwhile. An
assignment with a lower epoch than the last one is stale, and dropped.
"""

import logging
from collections.abc import Callable, Mapping

from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import LayoutError, SdkError, service_error
from magnetar.sdk.scalable.layout import SEGMENTS_MAX
from magnetar.sdk.scalable.layout_session import look_up_layout
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.session import Session
from magnetar.sdk.settings import KeySharedPolicy
from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.pulsar_pb2 import (
    STREAM,
    BaseCommand,
    CommandScalableTopicSubscribe,
    CommandScalableTopicUnsubscribe,
    ScalableConsumerAssignment,
)
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger("magnetar.sdk")

Buckets = tuple[tuple[int, int], ...]
"""First and last hash of each entry bucket; empty if the segment is not shared."""


class AssignmentSession:
    """The registration of one consumer."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        subscription: str,
        consumer_name: str,
        *,
        may_create: bool,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when `assigned` has changed."""
        self._context, self._name = context, name
        self._subscription, self._consumer_name = subscription, consumer_name
        self._id = context.next_consumer_id()
        self._may_create = may_create
        self._on_change = on_change
        self._epoch = -1
        self._registered_at: Connection | None = None
        self._session = Session(
            f"registration of {consumer_name} on {subscription} of {name}",
            find=self._find,
            attach=self._attach,
            detach=self._detach,
            on_failed=self._on_failed,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
        )
        self.assigned: Mapping[TopicName, Buckets] = {}
        """The currently assigned segments. A segment that is shared with other consumers comes with
        its entry buckets, which the broker divides."""

    async def start(self) -> None:
        """Register for the first time, and wait for the first assignment.

        Raises:
            SdkError: the coordinator refused, or could not be found.
        """
        await self._session.start()

    async def close(self) -> None:
        """Unregister the consumer: its segments go to other consumers at once."""
        await self._session.close()

    async def _detach(self) -> None:
        connection, self._registered_at = self._registered_at, None
        if connection is None or connection.assignments.pop(self._id, None) is None:
            return
        request_id = connection.next_request_id()
        try:
            await connection.request(
                request_id,
                self._leave_command(request_id),
                timeout_ms=self._context.settings.close_timeout_ms,
            )
        except SdkError:
            pass  # If the name does not come back, the coordinator reassigns the segments.

    async def _find(self) -> Connection:
        """Return the connection to the coordinator."""
        lookup = self._context.lookup
        connection = await lookup.connection_for(str(self._name))
        layout = await look_up_layout(
            self._context,
            connection,
            self._name,
            may_create=self._may_create and self._epoch < 0,
        )
        return await lookup.connection_to(
            layout.controller_url, layout.controller_url_tls, otherwise=connection
        )

    async def _attach(self, connection: Connection) -> None:
        request_id = connection.next_request_id()
        connection.assignments[self._id] = self
        try:
            answer = await connection.request(
                request_id,
                BaseCommand(
                    type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE,
                    scalableTopicSubscribe=CommandScalableTopicSubscribe(
                        request_id=request_id,
                        topic=str(self._name),
                        subscription=self._subscription,
                        consumer_name=self._consumer_name,
                        consumer_id=self._id,
                        consumer_type=STREAM,
                    ),
                ),
            )
            response = answer.scalableTopicSubscribeResponse
            if response.HasField("error"):
                raise service_error(response.error, str(response.message))
            self._take(response.assignment)
        except BaseException:
            # The coordinator may have assigned segments nevertheless: give them up.
            connection.assignments.pop(self._id, None)
            connection.send(self._leave_command(connection.next_request_id()))
            raise
        self._registered_at = connection

    def _leave_command(self, request_id: int) -> BaseCommand:
        return BaseCommand(
            type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE,
            scalableTopicUnsubscribe=CommandScalableTopicUnsubscribe(
                request_id=request_id, consumer_id=self._id
            ),
        )

    def on_assignment(self, assignment: ScalableConsumerAssignment) -> None:
        """Handle an assignment from the connection."""
        try:
            self._take(assignment)
        except SdkError as error:
            _log.warning("assignment_refused topic=%s: %s", self._name, error)
            self._session.lose()

    def on_session_lost(self, connection: Connection) -> None:
        """Reconnect after the connection broke."""
        self._session.lose(connection)

    def _take(self, assignment: ScalableConsumerAssignment) -> None:
        if assignment.layout_epoch < self._epoch:
            return
        assigned = _segments_of(self._name, assignment)
        self._epoch = assignment.layout_epoch
        if assigned != self.assigned:
            self.assigned = assigned
            self._on_change()

    def _on_failed(self, error: SdkError) -> None:
        _log.info("registration_ended topic=%s: %s", self._name, error)


def _segments_of(
    name: LayoutName, assignment: ScalableConsumerAssignment
) -> Mapping[TopicName, Buckets]:
    """Check and return the assigned segments.

    Raises:
        LayoutError: the assignment cannot be used.
    """
    if len(assignment.segments) > SEGMENTS_MAX:
        raise LayoutError(
            f"{name}: {len(assignment.segments)} segments are assigned; the client accepts "
            f"{SEGMENTS_MAX}"
        )
    found: dict[TopicName, Buckets] = {}
    for each in assignment.segments:
        buckets = tuple((one.start, one.end) for one in each.bucket_ranges)
        try:
            KeySharedPolicy(hash_ranges=buckets)
            found[TopicName.parse(each.segment_topic)] = buckets
        except (TopicNameError, ValueError) as error:
            raise LayoutError(f"{name}: segment {each.segment_id}: {error}") from error
    return found
