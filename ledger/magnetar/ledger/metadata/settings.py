"""Settings of the metadata stores."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class MetadataSettings(BaseModel):
    """Settings of a process's access to its metadata store. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_timeout_ms: int = Field(
        default=10_000,
        ge=300,
        # A ZooKeeper server with the default tick shortens a longer timeout.
        le=40_000,
        description="If the metadata store has not heard from a process for this long, the "
        "session of the process expires and its ephemeral nodes are deleted. A ZooKeeper server "
        "adjusts the value to its own bounds; the adjusted value applies.",
    )
    operation_timeout_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="An operation that the store does not answer within this time fails: as "
        "unavailable if it certainly changed nothing, otherwise with an unknown outcome. Without "
        "a connection to ZooKeeper, a write first waits equally long for the connection.",
    )
    connect_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="Time to reach the store when it is opened."
    )
    embedded_poll_interval_ms: int = Field(
        default=100,
        ge=5,
        le=60_000,
        description="Embedded store: time between two checks for changes by other processes. The "
        "store checks only while there are watches.",
    )
    reconnect_delay_ms: int = Field(
        default=50,
        ge=1,
        le=10_000,
        description="ZooKeeper: first wait between attempts to reconnect; each further wait is "
        "1.5 times as long.",
    )
    reconnect_delay_ms_max: int = Field(
        default=500,
        ge=1,
        le=60_000,
        description="ZooKeeper: longest wait between attempts to reconnect.",
    )

    zookeeper_user: SecretStr = Field(
        default=SecretStr(""),
        description="ZooKeeper: user:password for digest authentication; only that user may access "
        "nodes that this process creates. Empty = everybody may.",
    )
    zookeeper_tls_ca_file: str = Field(
        default="",
        description="ZooKeeper: CA certificates of its servers, PEM; no others are trusted. Set it "
        "to use TLS.",
    )
    zookeeper_tls_certificate_file: str = Field(
        default="", description="ZooKeeper: client certificate, PEM, if its servers require one."
    )
    zookeeper_tls_key_file: str = Field(
        default="",
        description="ZooKeeper: private key of the client certificate, PEM. Empty = the "
        "certificate file also holds the key.",
    )

    @model_validator(mode="after")
    def _check_relations(self) -> "MetadataSettings":
        if self.reconnect_delay_ms > self.reconnect_delay_ms_max:
            raise ValueError("reconnect_delay_ms is above reconnect_delay_ms_max")
        user = self.zookeeper_user.get_secret_value()
        if user and ":" not in user:
            raise ValueError("zookeeper_user is not of the form user:password")
        if self.zookeeper_tls_certificate_file and not self.zookeeper_tls_ca_file:
            raise ValueError("zookeeper_tls_certificate_file needs zookeeper_tls_ca_file")
        if self.zookeeper_tls_key_file and not self.zookeeper_tls_certificate_file:
            raise ValueError("zookeeper_tls_key_file needs zookeeper_tls_certificate_file")
        return self
