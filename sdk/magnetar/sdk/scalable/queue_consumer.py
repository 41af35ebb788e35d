"""The queue consumer: all segments of a topic, shared with the other consumers of the subscription.

Messages come in no particular order. Sealed segments are consumed until they leave the layout.
Children of a split have the subscription from their beginning, so nothing is missed.
"""

from dataclasses import replace

from magnetar.sdk.context import ClientContext
from magnetar.sdk.scalable.layout import Layout
from magnetar.sdk.scalable.layout_session import LayoutSession
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.scalable.segments_consumer import (
    SegmentsConsumer,
    SegmentSource,
    check_durable,
)
from magnetar.sdk.schema import Schema
from magnetar.sdk.settings import ConsumerSettings, SubscriptionType


class QueueConsumer(SegmentsConsumer):
    """A consumer of all segments, without order. Made by `Client.queue_consumer`."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        subscription: str,
        settings: ConsumerSettings,
        *,
        schema: Schema[object] | None = None,
    ) -> None:
        """Keep a subscription type that shares; replace any other by Shared.

        Raises:
            NotSupportedError: settings that queue consumers do not have.
        """
        check_durable("queue consumer", settings)
        if settings.subscription_type.keeps_order:
            settings = replace(settings, subscription_type=SubscriptionType.SHARED)
        session = LayoutSession(
            context, name, may_create=settings.create_topic, on_change=self._on_layout
        )
        super().__init__(
            context,
            name,
            subscription,
            settings,
            SegmentSource(session.start, lambda: [each.topic for each in session.layout.segments]),
            close_session=session.close,
            schema=schema,
        )

    def _on_layout(self, _layout: Layout) -> None:
        self.look_soon()
