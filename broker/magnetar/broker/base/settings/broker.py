"""Settings of the broker. Every buffer, queue and wait of the broker has its bound here."""

from pydantic import Field, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from magnetar.broker.base.listeners import parse_listeners
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.base.settings.observing import ObservingSettings
from magnetar.broker.base.settings.policies import PolicySettings
from magnetar.broker.base.settings.security import SecuritySettings
from magnetar.broker.base.settings.topics import TopicSettings
from magnetar.broker.base.settings.websocket import WebSocketSettings

_MIB = 1 << 20


class BrokerSettings(
    ObjectSettings,
    ObservingSettings,
    PolicySettings,
    SecuritySettings,
    TopicSettings,
    WebSocketSettings,
    BaseSettings,
):
    """Settings of one broker; also read from `MAGNETAR_BROKER_…` environment variables.

    What topics and namespaces can have of their own is in `base/settings/policies.py`.
    """

    model_config = SettingsConfigDict(env_prefix="MAGNETAR_BROKER_", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment. Each source looks at each field, which takes 4 ms with
        these many; so the environment is only asked if it has anything."""
        prefix = str(cls.model_config["env_prefix"]).lower()
        assert isinstance(env_settings, EnvSettingsSource)
        is_set = any(name.lower().startswith(prefix) for name in env_settings.env_vars)
        return (init_settings, env_settings) if is_set else (init_settings,)

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. A non-loopback address needs authentication, or "
        "insecure.",
    )
    port: int = Field(
        default=6650, ge=0, le=65_535, description="Port of the binary protocol; 0 = any free one."
    )
    http_port: int = Field(
        default=8080, ge=0, le=65_535, description="Port of the HTTP service; 0 = any free one."
    )
    advertised_host: str = Field(
        default="", description="Host that lookups return; empty = the listening address."
    )
    advertised_listeners: str = Field(
        default="",
        description="Advertised listeners, as name:pulsar://host:port, separated by commas: "
        "addresses of this broker in several networks, which clients choose by name. Empty: "
        "advertised_host.",
    )
    default_listener: str = Field(
        default="",
        description="Advertised listener for clients that name none; empty = the first.",
    )
    name: str = Field(
        default="",
        pattern=r"^[-=:.\w]*$",
        description="Broker name, unique in the cluster, and prefix of generated producer names; "
        "empty = the advertised host:port.",
    )
    namespaces: tuple[str, ...] = Field(
        default=("public/default",),
        description="Namespaces that are created at the start, as tenant/namespace.",
    )

    # --- ledgers of topics
    ledger_entries_max: int = Field(
        default=50_000, ge=1, description="A topic's ledger is full at this many entries."
    )
    ledger_bytes_max: int = Field(
        default=2048 * _MIB, ge=1, description="A topic's ledger is full at this many bytes."
    )
    ledger_age_min_s: float = Field(
        default=600.0,
        ge=0,
        description="A ledger younger than this is not rolled over, even if it is full.",
    )
    ledger_age_max_s: float = Field(
        default=14_400.0,
        gt=0,
        description="A ledger older than this is rolled over at the next append.",
    )

    # --- connections
    message_bytes_max: int = Field(
        default=5 * _MIB,
        ge=1024,
        le=7 * _MIB,
        description="Largest message, announced to clients. 5 MiB is what clients assume.",
    )
    connections_max: int = Field(
        default=10_000, ge=1, description="Connections at once; more are closed on arrival."
    )
    keep_alive_interval_ms: int = Field(
        default=30_000,
        ge=10,
        description="Time between PINGs, and time to answer one; also the handshake timeout.",
    )
    liveness_probe_timeout_ms: int = Field(
        default=5_000,
        ge=10,
        description="Time for a silent connection to answer a PING when another client claims its "
        "producer name or its exclusive place.",
    )
    write_buffer_bytes_high: int = Field(
        default=_MIB,
        ge=4096,
        description="Unsent bytes of a connection at which dispatch to it pauses.",
    )
    write_buffer_bytes_max: int = Field(
        default=16 * _MIB,
        ge=4096,
        description="Unsent bytes of a connection at which the broker also stops reading from it: "
        "its client sends requests and reads no answers.",
    )
    requests_per_connection_max: int = Field(
        default=10_000,
        ge=1,
        description="Unanswered requests of one connection; more get TooManyRequests.",
    )
    stats_rate_interval_s: float = Field(
        default=30.0,
        ge=0,
        description="Time between two samples of a topic's counters: rates in statistics are "
        "averages over one to two such intervals.",
    )
    topic_watchers_per_connection_max: int = Field(
        default=100,
        ge=0,
        description="Topic patterns that one connection may watch; more get NotAllowed.",
    )
    topics_pattern_length_max: int = Field(
        default=50,
        ge=1,
        description="Characters of a watched topic pattern; longer ones get NotAllowed.",
    )
    topic_list_pause_ms: int = Field(
        default=100,
        ge=0,
        le=60_000,
        description="Time between two reads of a watched topic list.",
    )
    producers_per_connection_max: int = Field(
        default=10_000, ge=1, description="Producers of one connection."
    )
    consumers_per_connection_max: int = Field(
        default=10_000, ge=1, description="Consumers of one connection."
    )
    client_metadata_bytes_max: int = Field(
        default=16 << 10,
        ge=1024,
        description="Bytes of names, properties and hash ranges of one producer or consumer, plus "
        "64 per property; more get NotAllowed. Pulsar allows a consumer 1024 characters, and a "
        "producer any number.",
    )

    turn_bytes_max: int = Field(
        default=_MIB,
        ge=16 << 10,
        le=1 << 30,
        description="Bytes read from all connections per turn of the event loop, plus 2 KiB per "
        "command; the rest waits for later turns, in order of arrival. An overloaded broker thus "
        "slows its clients down, and answers everything else.",
    )

    # --- publishing
    publishes_per_connection_max: int = Field(
        default=4_000,
        ge=1,
        description="Unpersisted publishes of a connection at which the broker stops reading from "
        "it; it resumes at half. Enough for four producers with the usual 1000 messages in flight.",
    )
    publish_bytes_per_connection_max: int = Field(
        default=32 * _MIB,
        ge=1,
        description="Unpersisted publish bytes of a connection at which the broker stops reading "
        "from it; it resumes at half. By default half of publish_bytes_max, so that one publisher "
        "cannot stop the others.",
    )
    publish_bytes_max: int = Field(
        default=64 * _MIB,
        ge=1,
        description="Unpersisted publish bytes of the whole broker at which it reads from no "
        "publisher. Well below channel_bytes_max of the ledger client: a bookie that stalls for a "
        "moment must slow publishers down, not fail their ledgers.",
    )

    # --- dispatch
    tail_cache_bytes_max: int = Field(
        default=64 * _MIB,
        ge=0,
        description="Bytes of the newest entries of all topics that stay in memory.",
    )

    # --- topics
    topics_max: int = Field(default=100_000, ge=1, description="Topics loaded at once.")
    topic_load_timeout_ms: int = Field(
        default=25_000,
        ge=1,
        description="Requests wait this long for a topic to load. Below the clients' usual 30 s.",
    )
    topic_close_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="Time to close a topic; after it, the next owner recovers the topic. A stuck "
        "close must not keep a topic from its next owner.",
    )
    publish_drain_timeout_ms: int = Field(
        default=1_000,
        ge=0,
        description="Time for pending publishes to finish before a topic moves; later ones may be "
        "stored and also sent again.",
    )
    topic_loads_at_once: int = Field(
        default=256,
        ge=1,
        description="Topics loaded in parallel; others wait, for instance when thousands move to "
        "this broker.",
    )
    topic_load_retry_ms: int = Field(
        default=200, ge=1, description="Delay before a failed load is retried."
    )
    ack_persist_interval_ms: int = Field(
        default=1_000,
        ge=0,
        description="Acknowledgements younger than this may be lost in a crash: their messages are "
        "delivered again.",
    )
    ack_persist_interval_ms_max: int = Field(
        default=10_000,
        ge=0,
        description="The longest interval between two saves of a subscription's acknowledgements, "
        "while more subscriptions are busy than cursor_saves_per_s_max allows for.",
    )
    cursor_saves_per_s_max: int = Field(
        default=200,
        ge=1,
        description="Saves of acknowledgements per second, of all subscriptions of the broker; "
        "more only where ack_persist_interval_ms_max would be exceeded.",
    )
    shutdown_timeout_ms: int = Field(
        default=30_000,
        ge=1,
        description="At shutdown, time to hand topics over and to close the rest.",
    )

    # --- ownership among several brokers
    lease_share: float = Field(
        default=2 / 3,
        gt=0,
        lt=1,
        description="Share of the session timeout after which a broker that has not reached the "
        "metadata store stops serving. The rest is a safety margin: ZooKeeper servers hear of a "
        "session up to half a tick late, and the shortest session has two ticks.",
    )
    lease_proof_share: float = Field(
        default=1 / 8,
        gt=0,
        lt=1,
        description="Share of the session timeout between two round trips to the metadata store.",
    )
    register_timeout_ms: int = Field(
        default=60_000,
        ge=1,
        description="Time to register at startup: the broker waits until the session of an earlier "
        "process of its name has expired.",
    )
    lookup_wait_ms: int = Field(
        default=20_000,
        ge=0,
        description="A lookup that cannot be answered now waits this long, for example until the "
        "lease of a dead broker expires. Below the clients' usual 30 s.",
    )
    lookup_retry_ms: int = Field(
        default=100, ge=1, description="Time between two attempts of a waiting lookup."
    )
    leases_remembered_max: int = Field(
        default=10_000, ge=1, description="Leases of other brokers that are cached."
    )
    unload_timeout_ms: int = Field(
        default=20_000,
        ge=1,
        description="Time to close the topics of a bundle that moves; the next owner recovers the "
        "rest.",
    )
    unloads_at_once: int = Field(
        default=4, ge=1, description="Bundles handed over in parallel at shutdown."
    )

    # --- bundles and balance
    cluster_name: str = Field(
        default="standalone",
        pattern=r"^[-=:.\w]+$",
        description="Name of the cluster in the HTTP interface; the same on all brokers.",
    )
    bundles_per_namespace: int = Field(
        default=4,
        ge=1,
        le=4096,
        description="Bundles that a namespace gets at its first use; the same number on all "
        "brokers.",
    )
    bundles_per_namespace_max: int = Field(
        default=128,
        ge=1,
        le=65_536,
        description="A namespace with this many bundles is not split any further.",
    )
    bundle_auto_split: bool = Field(
        default=True, description="Whether the owner splits a bundle that is over its limits."
    )
    bundle_topics_max: int = Field(
        default=1_000, ge=1, description="A bundle with more topics is split."
    )
    bundle_sessions_max: int = Field(
        default=1_000,
        ge=1,
        description="A bundle with more connected producers and consumers is split.",
    )
    bundle_msg_rate_max: float = Field(
        default=30_000.0,
        gt=0,
        description="A bundle with more messages per second, in and out, is split.",
    )
    bundle_bytes_rate_max: float = Field(
        default=100.0 * _MIB,
        gt=0,
        description="A bundle with more bytes per second, in and out, is split.",
    )
    placing_remembered_ms: int = Field(
        default=15_000,
        ge=1,
        description="A newly assigned bundle counts as load of its new owner for this long, or "
        "until the owner reports it: longer than two samples.",
    )
    load_sample_interval_ms: int = Field(
        default=5_000, ge=10, description="Time between two samples of the broker's own load."
    )
    load_report_interval_max_ms: int = Field(
        default=900_000,
        ge=10,
        description="A load report is sent at least this often; a change of 10% is sent with the "
        "next sample.",
    )
    load_cpu_cores: float = Field(
        default=1.0,
        gt=0,
        description="CPU cores that this broker can use: its event loop is one thread.",
    )
    load_bandwidth_bytes_per_s: float = Field(
        default=1.25e9,
        gt=0,
        description="Network bandwidth in each direction; the default is 10 Gbit/s.",
    )
    shedding: bool = Field(
        default=True, description="Whether this broker, when it leads, moves bundles for balance."
    )
    shedding_interval_ms: int = Field(
        default=60_000,
        ge=10,
        description="Time between two load checks of all brokers by the leader.",
    )
    shedding_follow_up_ms: int = Field(
        default=15_000,
        ge=10,
        description="Time until the next load check if the last one moved bundles, or if a broker "
        "joined or left. Longer than two samples: by then the load reports show the effect.",
    )
    shedding_spread_percent: float = Field(
        default=10.0,
        gt=0,
        description="Bundles move when a broker's load is this far above or below the average.",
    )
    shedding_usage_percent_max: float = Field(
        default=85.0,
        gt=0,
        le=100,
        description="A broker above this usage sheds bundles and gets no new ones.",
    )
    shedding_usage_over_average_percent: float = Field(
        default=10.0,
        gt=0,
        le=100,
        description="A broker also sheds when its usage is this many points above the average.",
    )
    shedding_usage_percent_min: float = Field(
        default=25.0,
        ge=0,
        le=100,
        description="A broker below this usage does not shed for being above the average.",
    )
    shedding_topics_min: int = Field(
        default=50,
        ge=0,
        description="A load difference between brokers worth fewer topics than this is ignored.",
    )
    shedding_moves_max: int = Field(
        default=4, ge=1, description="Bundles moved per load check; then the brokers report again."
    )
    shedding_grace_ms: int = Field(
        default=1_800_000,
        ge=0,
        description="A bundle that was moved is not moved again for this long.",
    )
    console_forward_timeout_ms: int = Field(
        default=15_000,
        ge=1,
        description="Timeout of a console request that is forwarded to the owner of a topic. As "
        "long as the page waits.",
    )
    unload_order_timeout_ms: int = Field(
        default=30_000,
        ge=1,
        description="Time the leader gives another broker to hand over or split a bundle.",
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        """All that it listens on."""
        plain = self.plain_host or self.host
        has_tls_ports = self.tls_port is not None or self.https_port is not None
        return (plain, self.host) if has_tls_ports else (plain,)

    @model_validator(mode="after")
    def _quorums_fit(self) -> "BrokerSettings":
        if not self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError(
                "ack_quorum <= write_quorum <= ensemble_size must hold, "
                f"got {self.ack_quorum}, {self.write_quorum}, {self.ensemble_size}"
            )
        if self.bundles_per_namespace_max < self.bundles_per_namespace:
            raise ValueError("bundles_per_namespace_max must not be below bundles_per_namespace")
        if self.lease_proof_share * 2 > self.lease_share:
            raise ValueError("lease_share must be at least twice lease_proof_share")
        listeners = parse_listeners(self.advertised_listeners)
        if self.default_listener and self.default_listener not in listeners:
            raise ValueError(
                f"default_listener {self.default_listener!r} is not among the advertised_listeners"
            )
        if self.write_buffer_bytes_max < self.write_buffer_bytes_high:
            raise ValueError("write_buffer_bytes_max must not be below write_buffer_bytes_high")
        if self.publish_bytes_max < self.publish_bytes_per_connection_max:
            raise ValueError("publish_bytes_max must not be below publish_bytes_per_connection_max")
        return self
