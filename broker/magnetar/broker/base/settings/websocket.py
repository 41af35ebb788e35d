"""Bounds of WebSocket sessions."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section

_MIB = 1 << 20


class WebSocketSettings(Section):
    """A part of `BrokerSettings`."""

    websocket: bool = Field(
        default=True, description="Whether the HTTP port takes WebSocket clients."
    )
    websocket_origins: str = Field(
        default="",
        description="Origins of web pages that may connect and send changes over HTTP, separated "
        "by commas, as https://console.example. Empty: same host and port only. *: any. Without "
        "authentication, a broker on loopback also accepts these host names.",
    )
    websocket_sessions_max: int = Field(
        default=20_000, ge=1, description="WebSocket sessions at once; more get 503."
    )
    websocket_frame_bytes_max: int = Field(
        default=_MIB,
        ge=1024,
        le=64 * _MIB,
        description="Bytes of the largest message of a WebSocket client, as text; a larger one "
        "closes the session with 1009.",
    )
    websocket_idle_timeout_ms: int = Field(
        default=300_000,
        ge=100,
        description="A session without traffic, pings included, is closed after this time.",
    )
    websocket_ping_interval_s: int = Field(
        default=-1, description="Time between pings to WebSocket clients; 0 or less = none."
    )
    websocket_close_timeout_ms: int = Field(
        default=5_000,
        ge=1,
        description="Time for a WebSocket client to answer a close before it is disconnected.",
    )
    websocket_write_buffer_bytes: int = Field(
        default=256 * 1024,
        ge=1024,
        description="Unsent bytes of a session at which dispatch to it pauses and the broker stops "
        "reading from it.",
    )
    websocket_receiver_queue_max: int = Field(
        default=1_000,
        ge=1,
        description="Largest receiverQueueSize of a WebSocket consumer; larger values are reduced "
        "to it.",
    )
    websocket_queue_bytes_max: int = Field(
        default=8 * _MIB,
        ge=1,
        description="Bytes of messages that brokers may send ahead for a session, estimated from "
        "earlier messages; receiverQueueSize is reduced to what fits.",
    )
    websocket_unacknowledged_max: int = Field(
        default=50_000,
        ge=1,
        description="Unacknowledged messages of a pull-mode session with an ack timeout; above it "
        "permits have no effect until some are acknowledged.",
    )
    websocket_pending_messages_max: int = Field(
        default=1_000,
        ge=1,
        description="Unconfirmed publishes of a session at which the broker stops reading from it; "
        "maxPendingMessages may ask for fewer.",
    )
    websocket_pending_bytes_max: int = Field(
        default=8 * _MIB,
        ge=1,
        description="Unconfirmed publish bytes of a session at which the broker stops reading from "
        "it.",
    )
    websocket_publish_bytes_max: int = Field(
        default=256 * _MIB,
        ge=1,
        description="Unconfirmed publish bytes of all sessions at which the broker stops reading "
        "from those that publish.",
    )
    websocket_topics_max: int = Field(
        default=1_000,
        ge=1,
        description="Topics of one WebSocket consumer, each partition counted.",
    )
    websocket_discovery_interval_s: float = Field(
        default=60.0,
        gt=0,
        description="Time between two searches of a session for new partitions, and for new topics "
        "that match its pattern.",
    )
    websocket_operation_timeout_ms: int = Field(
        default=30_000,
        ge=100,
        description="Time to create a session's producers or consumers before the upgrade is "
        "refused with 504.",
    )
    websocket_links: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Connections to each broker that the sessions of all clients share.",
    )
