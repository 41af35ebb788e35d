"""The layout of a topic, as brokers push it: SCALABLE_TOPIC_LOOKUP, UPDATE and CLOSE.

A `LayoutWatch` is one session on one connection. `LayoutSession` keeps one over reconnects, takes
newer layouts, and drops older ones. If a broker cannot give the layout any more, or gives an
unusable one, the session retries with backoff and keeps the last layout until then.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from magnetar.sdk.connection import Connection
from magnetar.sdk.context import ClientContext
from magnetar.sdk.errors import (
    BrokerUnavailableError,
    LayoutError,
    NotSupportedError,
    OperationTimeoutError,
    SdkError,
    service_error,
)
from magnetar.sdk.scalable.layout import Layout
from magnetar.sdk.scalable.names import LayoutName
from magnetar.sdk.session import Session
from magnetar.sdk.wire.pulsar_pb2 import (
    BaseCommand,
    CommandScalableTopicClose,
    CommandScalableTopicLookup,
    CommandScalableTopicUpdate,
)

_log = logging.getLogger("magnetar.sdk")


class LayoutWatch:
    """One layout session on one connection."""

    def __init__(
        self,
        connection: Connection,
        name: LayoutName,
        session_id: int,
        *,
        may_create: bool,
        on_layout: Callable[[Layout], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        """`may_create`: whether the broker may create a scalable topic that does not exist.

        `on_layout` is called with each layout, `on_lost` when no more will come.
        """
        self._connection = connection
        self._name, self._id = name, session_id
        self._may_create = may_create
        self._on_layout, self._on_lost = on_layout, on_lost
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def begin(self, timeout_ms: int) -> None:
        """Request the layout, and wait for the first one.

        Raises:
            NotSupportedError: the broker has no layouts.
            TopicNotFoundError: the topic does not exist, and must not be created.
            ServiceError: the broker refused.
            LayoutError: the layout cannot be used.
            BrokerUnavailableError, OperationTimeoutError
        """
        connection = self._connection
        if not connection.supports_scalable_topics:
            raise NotSupportedError(
                f"{self._name}: {connection.name} does not support scalable topics: it is of a "
                "version before 5, or they are switched off there"
            )
        if connection.failure is not None:
            raise connection.failure
        connection.layout_sessions[self._id] = self
        connection.send(
            BaseCommand(
                type=BaseCommand.SCALABLE_TOPIC_LOOKUP,
                scalableTopicLookup=CommandScalableTopicLookup(
                    session_id=self._id, topic=str(self._name), create_if_missing=self._may_create
                ),
            )
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._first
        except TimeoutError:
            self.end()
            raise OperationTimeoutError(
                f"{connection.name} did not send the layout of {self._name} within {timeout_ms} ms"
            ) from None
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the session at the broker. A second call does nothing."""
        connection = self._connection
        if connection.layout_sessions.pop(self._id, None) is self and connection.is_open:
            connection.send(
                BaseCommand(
                    type=BaseCommand.SCALABLE_TOPIC_CLOSE,
                    scalableTopicClose=CommandScalableTopicClose(session_id=self._id),
                )
            )

    def on_layout_update(self, update: CommandScalableTopicUpdate) -> None:
        """Handle an update from the connection."""
        try:
            if update.HasField("error"):
                raise service_error(update.error, str(update.message))
            layout = Layout.from_dag(self._name, update.dag)
        except SdkError as error:
            if not self._first.done():
                self._first.set_exception(error)
                return
            _log.warning("layout_refused topic=%s: %s", self._name, error)
            self.end()
            self._on_lost(self._connection)
            return
        self._on_layout(layout)
        if not self._first.done():
            self._first.set_result(None)

    def on_session_lost(self, connection: Connection) -> None:
        """Handle the loss of the connection."""
        if not self._first.done():
            self._first.set_exception(
                connection.failure
                or BrokerUnavailableError(f"the connection to {connection.name} broke")
            )
            self._first.exception()  # No task may be waiting any more.
        self._on_lost(connection)


class LayoutSession:
    """The layout of one topic, kept up to date."""

    def __init__(
        self,
        context: ClientContext,
        name: LayoutName,
        *,
        may_create: bool,
        on_change: Callable[[Layout], None],
    ) -> None:
        """`on_change` is called with each layout but the first, which `start` waits for."""
        self._context, self._name = context, name
        self._may_create = may_create
        self._on_change = on_change
        self._layout: Layout | None = None
        self._watch: LayoutWatch | None = None
        self._session = Session(
            f"layout of {name}",
            find=partial(context.lookup.connection_for, str(name)),
            attach=self._attach,
            detach=self._detach,
            on_failed=self._on_failed,
            settings=context.settings,
            clock=context.clock,
            random=context.random,
        )

    @property
    def layout(self) -> Layout:
        """The newest layout; available after `start`."""
        assert self._layout is not None, "start() comes first"
        return self._layout

    @property
    def is_attached(self) -> bool:
        """Whether a broker reports changes now."""
        return self._session.connection is not None

    async def start(self) -> None:
        """Get the layout for the first time.

        Raises:
            SdkError: see `LayoutWatch.begin`.
        """
        await self._session.start()

    async def close(self) -> None:
        """End the session. A second call does nothing."""
        await self._session.close()

    async def _detach(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    async def _attach(self, connection: Connection) -> None:
        # A topic that the broker has created once must not be created again after a deletion.
        self._watch = watch = LayoutWatch(
            connection,
            self._name,
            self._context.next_consumer_id(),
            may_create=self._may_create and self._layout is None,
            on_layout=self._take,
            on_lost=self._session.lose,
        )
        await watch.begin(self._context.settings.operation_timeout_ms)

    def _take(self, layout: Layout) -> None:
        known = self._layout
        if known is not None and not layout.replaces(known):
            return
        self._layout = layout
        if known is not None:
            _log.info("layout_changed topic=%s epoch=%s", self._name, layout.epoch)
            self._on_change(layout)

    def _on_failed(self, error: SdkError) -> None:
        _log.info("layout_session_ended topic=%s: %s", self._name, error)


async def look_up_layout(
    context: ClientContext, connection: Connection, name: LayoutName, *, may_create: bool
) -> Layout:
    """Get the layout once, without waiting for changes.

    Raises:
        SdkError: see `LayoutWatch.begin`.
    """
    found: list[Layout] = []
    watch = LayoutWatch(
        connection,
        name,
        context.next_consumer_id(),
        may_create=may_create,
        on_layout=found.append,
        on_lost=lambda _: None,
    )
    await watch.begin(context.settings.operation_timeout_ms)
    watch.end()
    if not found:
        raise LayoutError(f"{connection.name} sent no layout of {name}")
    return found[-1]
