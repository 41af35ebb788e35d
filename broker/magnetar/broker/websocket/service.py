"""The WebSocket sessions of one broker, and the clients that they share.

Sessions reach topics as clients do, by lookup: it does not matter which broker owns a topic. A few
clients serve all sessions; a topic always uses the same one.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import structlog
from websockets.http11 import Request

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError, RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.transactions.owner_links import OwnAddressNetwork
from magnetar.broker.protocol.revoking import IsConcerned
from magnetar.broker.security.host_names import REFUSED_NAME, is_own_name, own_names
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.websocket.access import Expiry, Rights, is_allowed, rights_of
from magnetar.broker.websocket.connection import WebSocketConnection
from magnetar.broker.websocket.consuming import ConsumerSession, ReaderSession
from magnetar.broker.websocket.endpoint import (
    ConsumerParameters,
    Endpoint,
    Kind,
    ProducerParameters,
    ReaderParameters,
    parse_target,
)
from magnetar.broker.websocket.errors import (
    CLOSE_GOING_AWAY,
    CLOSE_NOT_ALLOWED,
    UpgradeRefusedError,
)
from magnetar.broker.websocket.producing import ProducerSession
from magnetar.broker.websocket.session import Session, SessionStats
from magnetar.ledger.ports import Clock, Network
from magnetar.sdk.client import Client
from magnetar.sdk.errors import SdkError
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.topic_name import TopicName

if TYPE_CHECKING:
    from magnetar.broker.topics.services import Services

_log = structlog.get_logger()

_LOOKS_PER_TIMEOUT = 4
_LOOK_S_MAX = 10.0
_STOP_S = 3.0
"""Seconds that sessions get to end when the broker stops."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """An open session: its target, its connection, its start, and the expiry of its credentials."""

    endpoint: Endpoint
    connection: WebSocketConnection
    since_s: float
    expiry: Expiry | None


class WebSocketService:
    """All sessions of a broker: `start`, then connections by `connection`; `stop` ends them all."""

    def __init__(
        self,
        services: "Services",
        network: Network,
        *,
        plain_network: Network,
        over_tls: bool,
        port: Callable[[], int],
        advertised: Callable[[], list[str]],
        client_token: Callable[[], bytes],
    ) -> None:
        """Create the service.

        Args:
            network: leads to other brokers; `over_tls` says whether to their TLS ports.
            plain_network: leads to this broker.
            port: returns the port of the binary protocol, once it listens.
            advertised: returns the broker's own URLs.
            client_token: returns the token by which the broker authenticates; empty if none is
                needed.
        """
        self.settings: BrokerSettings = services.settings
        self._own_names = own_names(services.settings)
        self._per_address_max = services.settings.connections_per_address_max
        self.clock: Clock = services.clock
        self._topics = services.topics
        self._authenticator = services.authenticator
        self._authorizer = services.authorizer
        self._client_token = client_token
        self._random: random.Random = services.random
        self._network = OwnAddressNetwork(
            network,
            plain_network,
            host=services.settings.plain_host or services.settings.host,
            port=port,
            advertised=advertised,
        )
        self._scheme = "pulsar+ssl" if over_tls else "pulsar"
        self.budget = PublishBudget(self.settings.websocket_publish_bytes_max)
        self._clients: list[Client] = []
        self._connections: dict[WebSocketConnection, str] = {}
        """Host of the peer, by connection."""
        self._per_address: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        self._sessions: dict[Session, _Listed] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._discovering: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    def stats(self) -> list[SessionStats]:
        """Return the statistics of all sessions."""
        now_s = self.clock.monotonic_s()
        return [_stats(session, listed, now_s) for session, listed in self._sessions.items()]

    def start(self, *, is_stopping: bool = False) -> None:
        """Start the periodic work; no client connects before the first session. With `is_stopping`,
        only refuse new sessions."""
        if is_stopping:
            self._is_stopping = True
            return
        self._look_later()
        self._discovering = asyncio.create_task(self._discover(), name="websocket-discovery")

    def connection(self, **parts: Any) -> WebSocketConnection:
        """Return a protocol that takes over a socket from the upgrade request on. Called by
        uvicorn."""
        connections: set[object] = parts["server_state"].connections
        return WebSocketConnection(self, connections)

    async def stop(self) -> None:
        """Close all sessions with a close frame, within `_STOP_S`, and then the clients."""
        self._is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        if self._discovering is not None:
            self._discovering.cancel()
            await asyncio.gather(self._discovering, return_exceptions=True)
        for connection in list(self._connections):
            connection.close(CLOSE_GOING_AWAY, "the broker is stopping")
        for session in list(self._sessions):
            self.end(session)
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=_STOP_S)
        results = await asyncio.gather(
            *(client.close(flush=False) for client in self._clients), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                _log.info("websocket_client_closed", error=str(result))

    # -- for connections

    def admit(self, connection: WebSocketConnection) -> None:
        if self._is_stopping:
            raise UpgradeRefusedError(503, "the broker is stopping")
        most = self.settings.websocket_sessions_max
        if len(self._connections) >= most:
            raise UpgradeRefusedError(503, f"there are {most} WebSocket sessions already")
        host, limit = connection.peer.rpartition(":")[0], self._per_address_max
        if 0 < limit <= self._per_address[host]:
            raise UpgradeRefusedError(429, f"there are {limit} WebSocket sessions from {host}")
        self._connections[connection] = host
        self._per_address[host] += 1

    async def session_for(self, connection: WebSocketConnection, request: Request) -> Session:
        headers = _joined(request)
        if not is_own_name(headers.get("host"), self._own_names):
            raise UpgradeRefusedError(403, REFUSED_NAME)
        if not is_allowed(
            headers.get("origin"), headers.get("host"), self.settings.websocket_origins
        ):
            raise UpgradeRefusedError(
                403, "pages of this origin may not connect; websocket_origins lists those that may"
            )
        endpoint = parse_target(request.path)
        rights = await rights_of(
            self._authenticator,
            self._authorizer,
            headers,
            address=connection.peer,
            certificate_role=connection.certificate_role,
            query_token=endpoint.query.get("token", ""),
        )
        session = self._make(endpoint, rights)
        try:
            async with asyncio.timeout(self.settings.websocket_operation_timeout_ms / 1000):
                await session.open()
                # A right may have been withdrawn meanwhile. From here on the session is listed.
                await session.check_rights()
        except TimeoutError:
            # In a task of its own: the client may leave meanwhile, which cancels only the wait.
            await asyncio.shield(self.end(session))
            raise UpgradeRefusedError(504, "not ready in time") from None
        except BaseException:
            self.end(session)
            raise
        expires_at_ms = rights.identity.expires_at_ms
        expiry = None
        if expires_at_ms is not None:
            end = partial(connection.close, CLOSE_NOT_ALLOWED, "the credentials have expired")
            expiry = Expiry(self.clock, expires_at_ms, end)
        self._sessions[session] = _Listed(endpoint, connection, self.clock.monotonic_s(), expiry)
        return session

    async def check_rights(self, is_concerned: IsConcerned) -> None:
        """Close the sessions whose clients lost a right that the session uses.

        Raises:
            BrokerMetadataError: the grants of a session cannot be read now; all others were
                checked.
        """
        unread: BrokerMetadataError | None = None
        for session, listed in list(self._sessions.items()):
            if not any(is_concerned(name) for name in _namespaces_of(session, listed)):
                continue
            try:
                await session.check_rights()
            except UpgradeRefusedError as error:
                listed.connection.close(CLOSE_NOT_ALLOWED, str(error))
            except BrokerMetadataError as error:
                unread = error
        if unread is not None:
            raise unread

    def end(self, session: Session) -> asyncio.Task[None]:
        listed = self._sessions.pop(session, None)
        if listed is not None and listed.expiry is not None:
            listed.expiry.cancel()
        task = asyncio.create_task(session.close(), name="websocket-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def on_lost(self, connection: WebSocketConnection, session: Session | None) -> None:
        host = self._connections.pop(connection, None)
        if host is not None:
            self._per_address[host] -= 1
            if not self._per_address[host]:
                del self._per_address[host]
        if session is not None:
            self.end(session)

    def _make(self, endpoint: Endpoint, rights: Rights) -> Session:
        settings, queue_max = self.settings, self.settings.websocket_receiver_queue_max
        match endpoint.kind:
            case Kind.PRODUCER:
                return ProducerSession(
                    endpoint.topic,
                    ProducerParameters.of(endpoint.query),
                    rights,
                    self,
                    settings,
                    clock=self.clock,
                    first_partition=self._random.getrandbits(16),
                )
            case Kind.READER:
                return ReaderSession(
                    endpoint.topic,
                    ReaderParameters.of(endpoint.query, queue_max=queue_max),
                    rights,
                    self,
                    settings,
                    clock=self.clock,
                )
            case Kind.CONSUMER:
                return ConsumerSession(
                    endpoint,
                    ConsumerParameters.of(endpoint.query, queue_max=queue_max),
                    rights,
                    self,
                    settings,
                    clock=self.clock,
                )

    # -- for sessions

    def client_for(self, topic: TopicName) -> Client:
        if not self._clients:
            token = self._client_token()
            settings = ClientSettings(
                # Shorter than the session's own timeout, because its error says more.
                operation_timeout_ms=self.settings.websocket_operation_timeout_ms * 9 // 10,
                auth_method_name="token" if token else "none",
                auth_data=token,
            )
            self._clients = [
                Client(
                    f"{self._scheme}://{self._network.local}",
                    settings,
                    network=self._network,
                    clock=self.clock,
                    random=self._random,
                )
                for _ in range(self.settings.websocket_links)
            ]
        return self._clients[crc32(str(topic.partitioned).encode()) % len(self._clients)]

    async def topics_of(self, topic: TopicName) -> list[TopicName]:
        if topic.partition_index >= 0:
            return [topic]
        count = await self.client_for(topic).partitions(str(topic))
        return [topic.partition(index) for index in range(count)] or [topic]

    async def names_of(self, namespace: str) -> list[str]:
        await self._topics.check_namespace(namespace)
        names = await self._topics.names(namespace)
        names += await self._topics.non_persistent_names(namespace)
        return [name for name in names if not naming.is_system_topic(name)]

    # -- periodic work

    def _look_later(self) -> None:
        settings = self.settings
        pause_s = min(_LOOK_S_MAX, settings.websocket_idle_timeout_ms / 1000 / _LOOKS_PER_TIMEOUT)
        if settings.websocket_ping_interval_s > 0:
            pause_s = min(pause_s, settings.websocket_ping_interval_s / 2)
        self._looking = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look(self) -> None:
        self._look_later()  # First: a defect below must not end all further looks.
        now_s = self.clock.monotonic_s()
        for connection in list(self._connections):
            connection.look(now_s)

    async def _discover(self) -> None:
        """Look for new partitions and new topics of patterns, one session after the other."""
        while True:
            await asyncio.sleep(self.settings.websocket_discovery_interval_s)
            for session in [each for each in self._sessions if each.discovers]:
                if session not in self._sessions:
                    continue
                try:
                    await session.discover()
                except (SdkError, RequestError, UpgradeRefusedError) as error:
                    _log.info("websocket_discovery_failed", error=str(error))
                except Exception:  # noqa: BLE001
                    # A defect must not end the discovery for all other sessions.
                    _log.exception("websocket_discovery_failed")


def _stats(session: Session, listed: _Listed, now_s: float) -> SessionStats:
    topics = dict.fromkeys(topic.partitioned for topic in session.topics)
    is_consumer = listed.endpoint.kind is Kind.CONSUMER
    default = "Exclusive"
    return SessionStats(
        topics=tuple(map(str, topics)),
        namespaces=tuple(dict.fromkeys(topic.namespace_name for topic in topics)),
        is_producer=listed.endpoint.kind is Kind.PRODUCER,
        subscription=listed.endpoint.subscription,
        subscription_type=(
            listed.endpoint.query.get("subscriptionType", default) if is_consumer else default
        ),
        remote=listed.connection.peer,
        age_s=now_s - listed.since_s,
        traffic=session.traffic,
    )


def _namespaces_of(session: Session, listed: _Listed) -> set[str]:
    found = {topic.namespace_name for topic in session.topics}
    if listed.endpoint.pattern is not None:
        found.add(listed.endpoint.pattern.namespace)
    return found


def _joined(request: Request) -> dict[str, str]:
    """Return the headers by names in lower case; values of a repeated one are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in request.headers.raw_items():
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers
