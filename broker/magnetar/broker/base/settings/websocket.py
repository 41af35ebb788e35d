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
        description="Web pages that may connect, and change things over HTTP: their origins with "
        "commas between, as https://console.example. Empty: pages of the same host and port only. "
        "*: any. Without authentication a broker at loopback answers to these hosts, too.",
    )
    websocket_sessions_max: int = Field(
        default=20_000, ge=1, description="WebSocket sessions at once; more get 503."
    )
    websocket_frame_bytes_max: int = Field(
        default=_MIB,
        ge=1024,
        le=64 * _MIB,
        description="Largest message of a WebSocket client, as text; a larger one ends the session "
        "with 1009.",
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
        description="Time a WebSocket client has to answer a close before it is cut off.",
    )
    websocket_write_buffer_bytes: int = Field(
        default=256 * 1024,
        ge=1024,
        description="Unsent bytes of a session at which no more messages are taken for it, and it "
        "is not read either.",
    )
    websocket_receiver_queue_max: int = Field(
        default=1_000,
        ge=1,
        description="Largest receiverQueueSize of a WebSocket consumer; larger ones are cut.",
    )
    websocket_queue_bytes_max: int = Field(
        default=8 * _MIB,
        ge=1,
        description="Bytes of messages that brokers may send ahead for a session, by the size of "
        "those before them; receiverQueueSize is cut to what fits.",
    )
    websocket_unacknowledged_max: int = Field(
        default=50_000,
        ge=1,
        description="Messages that a session in pull mode waits for acknowledgements of, when it "
        "has an ack timeout; then permits do not help until some are acknowledged.",
    )
    websocket_pending_messages_max: int = Field(
        default=1_000,
        ge=1,
        description="Publishes of a session without receipt at which it is not read; "
        "maxPendingMessages may ask for fewer.",
    )
    websocket_pending_bytes_max: int = Field(
        default=8 * _MIB,
        ge=1,
        description="Bytes of publishes of a session without receipt at which it is not read.",
    )
    websocket_publish_bytes_max: int = Field(
        default=256 * _MIB,
        ge=1,
        description="Bytes of publishes of all sessions together without receipt at which those "
        "that publish are not read.",
    )
    websocket_topics_max: int = Field(
        default=1_000,
        ge=1,
        description="Topics, each partition counted, that one WebSocket consumer may be on.",
    )
    websocket_discovery_interval_s: float = Field(
        default=60.0,
        gt=0,
        description="Time between two looks of a session for new partitions, and new topics that "
        "its pattern matches.",
    )
    websocket_operation_timeout_ms: int = Field(
        default=30_000,
        ge=100,
        description="Time to create what a session needs, before the upgrade is refused with 504.",
    )
    websocket_links: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Connections to each broker that the sessions of all clients share.",
    )
