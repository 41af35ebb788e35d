"""Settings of the broker: the bound of every buffer, queue and wait.

Parts of the broker get the settings as a whole. Two sections are classes of their own, because they
are also used alone. `PolicySettings` names what may change while brokers run. `ObjectSettings`
shares its bounds of reads with readers outside of a broker.
"""

from typing import Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from magnetar.broker.base.listeners import parse_listeners
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.base.settings.policies import PolicySettings
from magnetar.broker.base.settings.scaling import ScalingSettings

_MIB = 1 << 20


class BrokerSettings(
    ObjectSettings,
    PolicySettings,
    ScalingSettings,
    BaseSettings,
):
    """Settings of one broker; also read from `MAGNETAR_BROKER_…` environment variables.

    Defaults of policies, which topics and namespaces may override, are in
    `base/settings/policies.py`. Splits and merges by load are in `base/settings/scaling.py`.
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
        """Return the sources: arguments, then the environment if it has any setting.

        Each source looks up every field, which takes 4 ms with this many fields.
        """
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
        description="Namespaces that are created at startup, as tenant/namespace.",
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
    entry_metadata_to_clients: bool = Field(
        default=True,
        description="Whether the broker sends what `entry_metadata` has stored to clients that "
        "request it. Other clients get the messages without it.",
    )
    connections_max: int = Field(
        default=10_000, ge=1, description="Open connections; further ones are closed immediately."
    )
    keep_alive_interval_ms: int = Field(
        default=30_000,
        ge=10,
        description="Time between PINGs, and time to answer one; also the handshake timeout.",
    )
    liveness_probe_timeout_ms: int = Field(
        default=5_000,
        ge=10,
        description="How long a silent connection may take to answer a PING when another client "
        "claims its place, such as its producer name or its exclusive access.",
    )
    write_buffer_bytes_high: int = Field(
        default=_MIB,
        ge=4096,
        description="Unsent bytes of a connection at which dispatch to it pauses.",
    )
    write_buffer_bytes_max: int = Field(
        default=16 * _MIB,
        ge=4096,
        description="Unsent bytes of a connection at which the broker also stops reading from it, "
        "because its client sends requests without reading the answers; if the client then reads "
        "nothing for three keep-alive intervals, it is disconnected. Large answers that are being "
        "built have that many bytes at most.",
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
        description="Shortest time between two reads of a watched topic list.",
    )
    producers_per_connection_max: int = Field(
        default=10_000, ge=1, description="Producers of one connection; more get NotAllowed."
    )
    consumers_per_connection_max: int = Field(
        default=10_000, ge=1, description="Consumers of one connection; more get NotAllowed."
    )
    scalable_topics: bool = Field(
        default=True,
        description="Whether the broker serves clients of Pulsar 5: they refuse to use a broker "
        "without the commands for topic layouts. Set the same value on all brokers of a cluster.",
    )
    scalable_sessions_per_connection_max: int = Field(
        default=10_000,
        ge=1,
        description="Topic layouts that one connection may follow, one for each producer and "
        "consumer of a Pulsar 5 client. Also the number of stream and checkpoint consumers that "
        "it may register. More get NotAllowed.",
    )
    scalable_consumers_per_subscription_max: int = Field(
        default=1_000,
        ge=1,
        description="Registered stream consumers of one subscription, or checkpoint consumers of "
        "one group; more get NotAllowed. Disconnected consumers count for "
        "scalable_consumer_grace_ms.",
    )
    scalable_consumer_grace_ms: int = Field(
        default=60_000,
        ge=0,
        le=3_600_000,
        description="A stream or checkpoint consumer that loses its connection keeps its segments "
        "for this long. Pulsar's default.",
    )
    scalable_segments_max: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="Active segments of one scalable topic. Splits beyond it, and the creation of "
        "topics with more, get NotAllowed. Pulsar's default.",
    )
    scalable_entry_buckets: int = Field(
        default=4,
        ge=1,
        le=1_024,
        description="Entry buckets of a new scalable topic, divided among its segments. A merged "
        "segment gets those of both parents, but no more than this unless a parent has more. That "
        "many stream consumers can share the topic without a change of its segments. Pulsar's "
        "default.",
    )
    scalable_change_patience_ms: int = Field(
        default=1_000,
        ge=10,
        le=60_000,
        description="If a split or merge of a scalable topic takes longer than this, every broker "
        "whose clients have the topic open continues it: the broker that began it may be gone. "
        "Producers of Pulsar 5 give up after about 4,000 ms.",
    )
    coordinator_watch_interval_ms: int = Field(
        default=1_000,
        ge=10,
        le=60_000,
        description="Time between two checks of which brokers own the transaction coordinators. "
        "The broker checks only while clients of Pulsar 5 watch the coordinators.",
    )
    client_metadata_bytes_max: int = Field(
        default=16 << 10,
        ge=1024,
        description="Bytes of names, properties and hash ranges of one producer or consumer, plus "
        "64 per property; more get NotAllowed. Pulsar limits a consumer to 1024 characters, and "
        "does not limit a producer.",
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
        description="Bytes of the newest entries of all topics that the broker keeps in memory.",
    )

    # --- topics
    topics_max: int = Field(
        default=100_000,
        ge=1,
        description="Topics that the broker has loaded; it refuses to load more.",
    )
    topic_load_timeout_ms: int = Field(
        default=25_000,
        ge=1,
        description="How long requests wait for a topic to load. Below the clients' usual 30 s.",
    )
    topic_close_timeout_ms: int = Field(
        default=10_000,
        ge=1,
        description="Time to close a topic; after it, the next owner recovers the topic. A stuck "
        "close must not keep the topic from its next owner.",
    )
    publish_drain_timeout_ms: int = Field(
        default=1_000,
        ge=0,
        description="Time for pending publishes to finish before a topic moves. Publishes that "
        "take longer may be stored and also sent again.",
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
        description="Longest time between two saves of a subscription's acknowledgements while "
        "more subscriptions are busy than cursor_saves_per_s_max allows for.",
    )
    cursor_saves_per_s_max: int = Field(
        default=200,
        ge=1,
        description="Saves of acknowledgements per second, of all subscriptions of the broker. "
        "The broker exceeds it only to keep to ack_persist_interval_ms_max.",
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
        description="How long a lookup waits that cannot be answered yet, for example until the "
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
        description="Timeout of a console request that is forwarded to the owner of a topic. The "
        "page waits equally long.",
    )
    unload_order_timeout_ms: int = Field(
        default=30_000,
        ge=1,
        description="Time the leader gives another broker to hand over or split a bundle.",
    )

    # ---- security. Files are read at the start, and again when they change. A key is given as
    # file:///path, as a path, or as data:;base64,….

    plain_host: str = Field(
        default="",
        description="Address for the ports without TLS, such as 127.0.0.1; empty = the same as "
        "host.",
    )
    insecure: bool = Field(
        default=False,
        description="Allow a non-loopback address without authentication: anybody who reaches the "
        "broker may then do everything.",
    )

    # --- TLS
    tls_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the binary protocol over TLS, such as 6651; 0 = any free one; unset "
        "= no TLS port.",
    )
    https_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the HTTP service over TLS, such as 8443; 0 = any free one; unset = "
        "no TLS port.",
    )
    tls_certificate_file: str = Field(
        default="", description="The broker's certificate and its intermediate certificates, PEM."
    )
    tls_key_file: str = Field(default="", description="Private key of tls_certificate_file, PEM.")
    tls_ca_file: str = Field(
        default="",
        description="CA certificates that client certificates must be signed by, PEM; empty = "
        "client certificates are not requested.",
    )
    tls_require_client_certificate: bool = Field(
        default=False, description="Whether clients must present a certificate (mutual TLS)."
    )
    security_reload_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks for changed certificates, keys and passwords; "
        "0 = read only at startup.",
    )
    tls_handshake_timeout_ms: int = Field(
        default=10_000, ge=1, description="Timeout of a TLS handshake."
    )

    # --- authentication
    token_secret_key: SecretStr = Field(
        default=SecretStr(""),
        description="Secret key that validates tokens signed with HS256, HS384 or HS512.",
    )
    token_public_key: str = Field(
        default="",
        description="Public key that validates tokens signed with RS256 to RS512 or ES256 to "
        "ES512, PEM or DER.",
    )
    token_role_claim: str = Field(default="sub", description="Claim that holds the role.")
    token_audience_claim: str = Field(default="aud", description="Claim that holds the audience.")
    token_audience: str = Field(
        default="", description="Audience that tokens must have; empty = any or none."
    )
    basic_auth_file: str = Field(
        default="", description="htpasswd file of users and passwords, hashed with bcrypt or apr1."
    )
    tls_auth: bool = Field(
        default=False, description="Whether the common name of a client certificate is a role."
    )
    oauth_issuers: tuple[str, ...] = Field(
        default=(), description="OpenID Connect issuers (https://…) whose tokens are accepted."
    )
    oauth_audience: str = Field(
        default="", description="Audience that tokens of oauth_issuers must have."
    )
    oauth_role_claim: str = Field(
        default="sub", description="Claim that holds the role in tokens of oauth_issuers."
    )
    oauth_jwks_url: str = Field(
        default="",
        description="URL of the issuers' keys (JWKS); empty = from each issuer's discovery "
        "document.",
    )
    oauth_ca_file: str = Field(
        default="",
        description="CA certificates for the issuers' servers, PEM; empty = the system's.",
    )
    oauth_keys_fresh_s: float = Field(
        default=300.0, gt=0, description="Keys of an issuer are fetched again after this time."
    )
    oauth_keys_kept_s: float = Field(
        default=86_400.0,
        gt=0,
        description="While an issuer does not answer, the broker uses its last keys for this long.",
    )
    oauth_keys_refresh_min_s: float = Field(
        default=10.0,
        ge=0,
        description="Shortest time between two requests to an issuer, also for unknown keys.",
    )
    oauth_timeout_ms: int = Field(
        default=5_000, ge=1, description="Timeout of a request to an issuer."
    )
    anonymous_role: str = Field(
        default="",
        description="Role of clients without credentials; empty = such clients are refused.",
    )
    credentials_refresh_ms: int = Field(
        default=30_000,
        ge=10,
        description="How long a client may take to send new credentials after its credentials "
        "have expired.",
    )
    password_checks_at_once: int = Field(
        default=2, ge=1, description="Passwords checked in parallel, on threads."
    )
    password_checks_waiting_max: int = Field(
        default=256, ge=0, description="Clients that wait for a password check; more are refused."
    )
    passwords_remembered_max: int = Field(
        default=1_000,
        ge=0,
        description="Verified passwords that are cached, as salted digests.",
    )

    # --- authorization
    authorization: bool = Field(
        default=False, description="Whether roles need permissions; requires authentication."
    )
    super_users: tuple[str, ...] = Field(default=(), description="Roles that may do everything.")
    proxy_roles: tuple[str, ...] = Field(
        default=(), description="Roles that may act for other roles, never for themselves."
    )
    rights_recheck_interval_s: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="Time between two checks of the permissions of connected clients; 0 = only "
        "when a broker hears that permissions changed.",
    )
    metrics_open: bool = Field(
        default=False,
        description="Whether /metrics, which shows topic names, needs no credentials; if not, it "
        "needs a super user.",
    )
    broker_client_token: SecretStr = Field(
        default=SecretStr(""),
        description="Token of a super user, which brokers send to each other: file:///path or "
        "data:;base64,….",
    )
    broker_client_tls: bool = Field(
        default=False,
        description="Whether brokers connect to each other only over TLS, at tls_port and "
        "https_port.",
    )
    broker_client_tls_ca_file: str = Field(
        default="",
        description="CA certificates that other brokers' certificates must be signed by, PEM; "
        "empty = the system's.",
    )
    broker_client_tls_certificate_file: str = Field(
        default="",
        description="Certificate that this broker presents to other brokers, PEM; empty = none.",
    )
    broker_client_tls_key_file: str = Field(
        default="", description="Private key of broker_client_tls_certificate_file, PEM."
    )

    # --- audit and limits
    audit_events_per_s: int = Field(
        default=100,
        ge=0,
        description="Audit log events per second; further ones are dropped; 0 = no audit log.",
    )
    connections_per_address_max: int = Field(
        default=5_000,
        ge=0,
        description="Open connections from one address, for each of the binary protocol, HTTP and "
        "WebSocket; 0 = no limit, for instance behind a proxy that hides addresses.",
    )
    connections_kept_for_loopback: int = Field(
        default=32,
        ge=0,
        description="Connections that the host itself may open beyond all limits, for each of the "
        "binary protocol and HTTP: for health checks and operators.",
    )
    http_names: str = Field(
        default="",
        description="Host names that the HTTP service accepts, separated by commas, in addition to "
        "localhost, IP addresses, the advertised hosts and the hosts in websocket_origins; others "
        "get 403. Ignored where credentials are required. Empty: any name, or on loopback only "
        "these.",
    )
    http_connections_max: int = Field(
        default=10_000,
        ge=1,
        description="Open HTTP connections of a port, WebSockets not counted; more are closed.",
    )
    http_request_timeout_ms: int = Field(
        default=60_000,
        ge=100,
        description="Time for an HTTP client to send a request, head and body, and longest time it "
        "may stall while it reads the answer; then the connection is closed.",
    )
    http_body_bytes_max: int = Field(
        default=4 << 20,
        ge=1024,
        le=64 << 20,
        description="Largest body of an HTTP request; larger ones get 413.",
    )
    commands_per_s_max: int = Field(
        default=0,
        ge=0,
        description="Commands per second of one connection, messages not counted; further ones "
        "wait; 0 = no limit.",
    )

    # ---- topics, and what they host

    # Reads of entries that are not in the tail cache.

    read_ahead_bytes: int = Field(
        default=_MIB,
        ge=1,
        description="Bytes of one read of entries that are not in the tail cache; two such reads "
        "are held at most.",
    )
    read_ahead_entries: int = Field(
        default=5_000,
        ge=1,
        description="Entries of one read of entries that are not in the tail cache.",
    )
    read_retry_ms: int = Field(
        default=100,
        ge=1,
        description="Delay before a failed read is retried; it doubles up to read_retry_ms_max.",
    )
    read_retry_ms_max: int = Field(
        default=5_000, ge=1, description="Longest delay before a failed read is retried."
    )

    # Dispatch: batch sizes, look-ahead and delays.

    dispatch_bytes_max: int = Field(
        default=512 * 1024,
        ge=1,
        description="Bytes that one dispatcher writes before others get their turn.",
    )
    round_robin_messages_max: int = Field(
        default=20,
        ge=1,
        description="Messages that a Shared consumer gets before the next consumer's turn.",
    )
    chunked_messages_max: int = Field(
        default=1_000,
        ge=1,
        description="Unfinished chunked messages of one Shared subscription whose consumer is "
        "remembered; above it the broker forgets the oldest.",
    )
    key_shared_consistent_hashing: bool = Field(
        default=True,
        description="Whether Key_Shared consumers share hashes by consistent hashing. If false, "
        "each new consumer gets half of the widest range "
        "(subscriptionKeySharedUseConsistentHashing of Pulsar).",
    )
    look_ahead_per_consumer_max: int = Field(
        default=2_000,
        ge=1,
        description="Key_Shared: entries per consumer that may wait for slow consumers while later "
        "entries are dispatched.",
    )
    look_ahead_per_subscription_max: int = Field(
        default=20_000,
        ge=1,
        description="Key_Shared: entries per subscription that may wait for slow consumers while "
        "later entries are dispatched.",
    )
    look_ahead_bytes_max: int = Field(
        default=4 * _MIB,
        ge=0,
        description="Key_Shared: bytes of waiting entries that a subscription keeps in memory; it "
        "reads others again.",
    )
    look_ahead_patience_ms: int = Field(
        default=100,
        ge=0,
        description="Key_Shared: if look_ahead_bytes_max is reached, how long slow consumers may "
        "take to accept waiting entries before further entries wait without being kept in memory.",
    )
    failover_delay_ms: int = Field(
        default=1_000,
        ge=0,
        description="Delay before messages go to a new active Failover consumer, the first one "
        "included: acknowledgements of the previous consumer, or other consumers, may still "
        "arrive.",
    )

    # Producers and subscriptions.

    producers_waiting_per_topic_max: int = Field(
        default=1_000,
        ge=0,
        description="Producers that wait for exclusive access to a topic; more are refused.",
    )
    seek_return_timeout_ms: int = Field(
        default=60_000,
        ge=1,
        description="A reader's position is kept this long after a seek disconnects its consumer.",
    )

    # Deduplication: producer names, and snapshots of their sequence ids.

    dedup_snapshot_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two checks whether a topic's snapshot is due; 0: never.",
    )
    dedup_names_max: int = Field(
        default=10_000,
        ge=1,
        description="Producer names of a topic whose sequence ids are remembered, the most "
        "recently used.",
    )
    dedup_snapshot_bytes_max: int = Field(
        default=448 << 10,
        ge=1_024,
        le=512 << 10,
        description="Bytes of a snapshot of producer names with their sequence ids. A metadata "
        "node must be able to hold it.",
    )
    dedup_names_unused_s: float = Field(
        default=21_600.0,
        gt=0,
        description="The broker forgets a producer name that is not connected and was not used "
        "for this long. Messages that the producer then sends again are stored again.",
    )

    # Delayed messages: their indexes.

    delayed_bucket_records: int = Field(
        default=16_384,
        ge=1,
        le=1 << 20,
        description="Delayed messages at which a topic's index of them is moved to a ledger.",
    )
    delayed_segment_records: int = Field(
        default=2048,
        ge=1,
        le=1 << 15,
        description="Delayed messages per entry of an index ledger, 24 bytes each; an entry is "
        "read as a whole.",
    )
    delayed_segments_loaded_max: int = Field(
        default=256,
        ge=1,
        description="Entries of index ledgers that a topic keeps in memory, those due first.",
    )
    delayed_due_entries_max: int = Field(
        default=1000,
        ge=2,
        description="Due messages in the queue of a subscription; further ones are kept as one bit "
        "each.",
    )
    delayed_retry_ms: int = Field(
        default=5000,
        ge=10,
        description="Delay before storing or reading the index of delayed messages is retried.",
    )

    # Retention and expiry: each topic is checked once per interval.

    retention_check_interval_s: float = Field(
        default=120.0, ge=0, description="Time between two trimmings of a topic; 0 = never."
    )
    message_expiry_check_interval_s: float = Field(
        default=300.0, ge=0, description="Time between two searches for messages above their TTL."
    )
    backlog_quota_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks of backlog quotas for connected producers.",
    )
    subscription_expiry_check_interval_s: float = Field(
        default=300.0, ge=0, description="Time between two checks for unused subscriptions."
    )
    inactive_topic_check_interval_s: float = Field(
        default=60.0, ge=0, description="Time between two checks for unused topics; 0 = never."
    )
    backlog_analysis_entries_max: int = Field(
        default=10_000, ge=1, description="Entries read by one analysis of a backlog."
    )

    # Topics that are not in use: how often they are checked, and the cost of the checks.

    topics_at_rest_interval_s: float = Field(
        default=600.0,
        ge=0,
        description="Time between two scans of the stored topics that are not in use; 0 = never. A "
        "scan trims, expires and deletes them by the same policies as topics in use.",
    )
    topics_at_rest_reads_per_s: float = Field(
        default=100.0,
        gt=0,
        description="Metadata store reads per second of such a scan. A topic takes two, plus one "
        "per subscription: 100,000 topics with one subscription each take 50 minutes.",
    )
    topics_at_rest_loaded_max: int = Field(
        default=4,
        ge=1,
        description="Unused topics loaded in parallel because trimming, expiry or deletion is due "
        "in them.",
    )
    topics_at_rest_remembered_max: int = Field(
        default=10_000,
        ge=1,
        description="Unused topics whose last use is remembered. Further topics count as unused "
        "since the latest use that was forgotten.",
    )
    topics_at_rest_records_max: int = Field(
        default=200_000,
        ge=1,
        description="Unused topics and subscriptions of which the broker remembers since when it "
        "knows them, about 150 bytes each. Further ones are not deleted as unused.",
    )

    # Compaction.

    compaction_check_interval_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two checks of a topic's compaction threshold; 0 = never.",
    )
    compactions_at_once: int = Field(
        default=1, ge=1, description="Topics that a broker compacts in parallel."
    )
    compaction_keys_bytes_max: int = Field(
        default=256 * _MIB,
        ge=1,
        description="Bytes of memory for the keys of one compaction; a topic with more keys is not "
        "compacted, and its status says so.",
    )
    compaction_batch_bytes_max: int = Field(
        default=64 * _MIB,
        ge=1,
        description="Batches with more uncompressed bytes are kept whole. So are batches of more "
        "than 65,536 messages, unless this bound has 1 KiB for each message.",
    )
    compaction_bytes_per_s: int = Field(
        default=32 * _MIB,
        ge=0,
        description="Uncompressed bytes per second that a pass of a compaction reads; 0 = no "
        "limit.",
    )
    compaction_retains_keyless: bool = Field(
        default=False, description="Whether messages without a key survive a compaction."
    )

    # Schemas.

    schema_bytes_max: int = Field(
        default=_MIB,
        ge=1,
        le=4 * _MIB,
        description="Bytes of the largest schema, its properties included; it is one entry of a "
        "ledger.",
    )
    schema_versions_max: int = Field(
        default=1_000,
        ge=1,
        le=4_000,
        description="Versions of one topic's schema, deletions included; its metadata node lists "
        "each.",
    )
    schema_cache_bytes_max: int = Field(
        default=64 * _MIB,
        ge=0,
        description="Memory of cached schemas, about ten times their size as clients wrote them; "
        "0 = no cache.",
    )

    # Replication between clusters.

    replication_start_at: Literal["latest", "earliest"] = Field(
        default="latest",
        description="Where replication begins to a cluster that is new among a topic's policies. "
        "latest: with messages published from then on; earliest: with all messages of the topic.",
    )
    replication_entries_max: int = Field(
        default=1_000,
        ge=1,
        description="Entries of one topic that are sent to another cluster and not confirmed yet.",
    )
    replication_bytes_max: int = Field(
        default=8 * _MIB,
        ge=1,
        description="Bytes of one topic that are sent to another cluster and not confirmed yet. A "
        "single entry may be larger.",
    )
    replication_pulsar_entries_max: int = Field(
        default=1,
        ge=1,
        description="Entries of one topic that are sent to a cluster of Apache Pulsar and not "
        "confirmed yet. Pulsar cannot see that an earlier message is missing: with more than 1, a "
        "message that it refused may be lost.",
    )
    replication_creates_partitions: bool = Field(
        default=True,
        description="Whether the broker creates partitioned topics at the other cluster, and adds "
        "partitions there, before it copies them. If false, an operator does it there.",
    )
    replication_ttl_enabled: bool = Field(
        default=False,
        description="Whether messages above their TTL expire although another cluster does not "
        "have them yet. If true, they are lost there, as in Pulsar.",
    )
    replication_retry_s: float = Field(
        default=0.1,
        gt=0,
        description="Delay before failed replication is retried; it doubles up to "
        "replication_retry_s_max.",
    )
    replication_retry_s_max: float = Field(
        default=60.0, gt=0, description="Longest delay before failed replication is retried."
    )
    replication_timeout_ms: int = Field(
        default=30_000, ge=1, description="Timeout of one request to another cluster."
    )
    replication_receipt_timeout_s: float = Field(
        default=120.0,
        gt=0,
        description="How long another cluster may take to confirm the oldest unconfirmed message "
        "before the broker closes the connection. It must suffice to send the largest message "
        "over a slow link.",
    )
    replication_check_interval_s: float = Field(
        default=10.0,
        gt=0,
        description="Time between two checks for unfinished work of a topic's replication, such "
        "as a cursor that could not be created.",
    )
    replicated_subscriptions_enabled: bool = Field(
        default=True,
        description="Whether subscriptions that request it are synchronized with the "
        "subscriptions of the same name in other clusters. Pulsar's name: "
        "enableReplicatedSubscriptions.",
    )
    replicated_subscriptions_snapshot_interval_ms: int = Field(
        default=1_000,
        ge=10,
        description="Time between two snapshots of a topic that has a replicated subscription and "
        "new messages. After a failover, consumers receive about the messages of this time again. "
        "Pulsar's name: replicatedSubscriptionsSnapshotFrequencyMillis.",
    )
    replicated_subscriptions_snapshot_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="The broker abandons a snapshot if another cluster does not answer within "
        "this time. Pulsar's name: replicatedSubscriptionsSnapshotTimeoutSeconds.",
    )
    replicated_subscriptions_snapshots_max: int = Field(
        default=30,
        ge=2,
        description="Snapshots that are kept for a replicated subscription until it has "
        "acknowledged all messages before them. Above it, the broker drops snapshots in between. "
        "Pulsar's name: replicatedSubscriptionsSnapshotMaxCachedPerSubscription.",
    )
    replicated_subscriptions_acks_enabled: bool = Field(
        default=True,
        description="Whether acknowledgements beyond an unacknowledged message, and of parts of "
        "batches, are replicated to and from other Magnetar clusters. If false, these messages "
        "are delivered again after a failover.",
    )
    replicated_subscriptions_acks_window_entries: int = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Entries stored before a topic was loaded that the broker reads once to find "
        "out where they were published. It reads them if a replicated subscription has "
        "acknowledged messages there beyond an unacknowledged one. Such acknowledgements of older "
        "entries are not replicated.",
    )
    replicated_subscriptions_origins_max: int = Field(
        default=10_000,
        ge=2,
        le=1_000_000,
        description="Runs of replicated messages whose positions in their source cluster a topic "
        "keeps in memory, about 150 bytes each, while it has a replicated subscription. "
        "Consecutive replicated messages are one run. Above it, only the newest half of this "
        "number is kept: single acknowledgements of older messages are not replicated.",
    )
    replicated_subscriptions_acks_waiting_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Ranges of single acknowledgements from other clusters that wait at a topic "
        "until their messages are replicated to it. More are dropped: their messages are "
        "delivered again.",
    )

    # Transactions.

    transaction_coordinator_enabled: bool = Field(
        default=True,
        description="Whether clients can use transactions. Costs nothing before the first use: "
        "coordinators, and the state that topics keep for them, are created then.",
    )
    transaction_coordinators: int = Field(
        default=4,
        ge=1,
        le=256,
        description="Coordinators of the cluster, created at the first use. The owner of its "
        "partition serves each of them. Its log takes thousands of transactions per second.",
    )
    transaction_open_max: int = Field(
        default=10_000,
        ge=1,
        description="Open transactions of one coordinator; more get NotAllowed.",
    )
    transaction_timeout_max_ms: int = Field(
        default=24 * 3600 * 1000,
        ge=1,
        description="Longest timeout that a transaction can have; a longer one is refused.",
    )
    transaction_participants_max: int = Field(
        default=10_000,
        ge=1,
        description="Topics and subscriptions of one transaction; more are refused.",
    )
    transaction_finished_max: int = Field(
        default=10_000,
        ge=1,
        description="Ended transactions of one coordinator whose outcome it remembers.",
    )
    transaction_log_records: int = Field(
        default=5_000,
        ge=1,
        description="Log records of a coordinator, or of a topic, after which a snapshot is "
        "written and older records are deleted.",
    )
    transaction_snapshot_entries: int = Field(
        default=20_000,
        ge=1,
        description="Most entries that the load of a topic with transactions reads to find the "
        "aborted transactions.",
    )
    transaction_check_interval_s: float = Field(
        default=10.0,
        ge=0,
        description="Time between two checks that coordinators are served and whether topics need "
        "a transaction snapshot; 0 = never.",
    )
    transaction_ends_at_once: int = Field(
        default=64,
        ge=1,
        description="Commits and aborts that a broker's coordinators send to topics and "
        "subscriptions in parallel; a quarter of them to one topic.",
    )
    transaction_end_timeout_ms: int = Field(
        default=20_000,
        ge=100,
        description="Timeout of one attempt to send a commit or abort to a topic or subscription.",
    )
    transaction_end_wait_ms: int = Field(
        default=10_000,
        ge=0,
        description="How long a commit or abort request waits until all topics have applied it; "
        "after that the broker answers that the decision is made.",
    )
    transaction_retry_ms: int = Field(
        default=200,
        ge=1,
        description="Delay before a commit or abort is sent again; it doubles up to "
        "transaction_retry_ms_max.",
    )
    transaction_retry_ms_max: int = Field(
        default=10_000, ge=1, description="Longest delay before a commit or abort is sent again."
    )
    transaction_pending_acks_max: int = Field(
        default=100_000,
        ge=1,
        description="Acknowledgements of a subscription in open transactions; more are refused. A "
        "partly acknowledged batch counts once more for each 4096 messages.",
    )
    transaction_snapshot_bytes_max: int = Field(
        default=_MIB,
        ge=1024,
        le=4 * _MIB,
        description="Bytes of one part of a snapshot of transactions, of a topic or a coordinator; "
        "at most message_bytes_max.",
    )

    # ---- WebSocket sessions

    websocket: bool = Field(
        default=True, description="Whether the HTTP port accepts WebSocket clients."
    )
    websocket_origins: str = Field(
        default="",
        description="Origins of web pages that may connect and send changes over HTTP, separated "
        "by commas, such as https://console.example. Empty: same host and port only. *: any. "
        "Without authentication, a broker on loopback also accepts these host names.",
    )
    websocket_sessions_max: int = Field(
        default=20_000, ge=1, description="Open WebSocket sessions; more get 503."
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
    websocket_decompressed_bytes_max: int = Field(
        default=64 * _MIB,
        ge=1,
        le=1 << 40,
        description="Most bytes of a message or batch after decompression for WebSocket consumers "
        "and readers; above it a message is corrupt to them, and stays unacknowledged. A batch of "
        "more than 65,536 messages needs 1 KiB of it for each message, and as much memory of the "
        "broker.",
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

    # ---- what operators see: health checks, metrics and traces

    # Health checks.

    health_check_timeout_ms: int = Field(
        default=3_000,
        ge=1,
        description="A broker is unhealthy if it cannot write and read a heartbeat within this "
        "time. Below the timeouts of probes, 4 s and 5 s.",
    )
    health_check_interval_ms: int = Field(
        default=2_000,
        ge=0,
        description="Health checks within this time share one heartbeat.",
    )

    # Metrics. The first three are named as in Pulsar.

    expose_topic_level_metrics: bool = Field(
        default=True,
        description="Whether topics and subscriptions have their own series; if not, one series "
        "per namespace sums them up.",
    )
    expose_consumer_level_metrics: bool = Field(
        default=False,
        description="Whether consumers have their own series, if their subscriptions do.",
    )
    expose_bundles_metrics: bool = Field(
        default=False, description="Whether the bundles of this broker have their own series."
    )
    metrics_topics_max: int = Field(
        default=1_000,
        ge=0,
        description="Topics with their own series; other topics are summed up per namespace. Also "
        "the limit for namespaces.",
    )
    metrics_subscriptions_max: int = Field(
        default=2_000,
        ge=0,
        description="Subscriptions with their own series; others are summed up per namespace. "
        "Also the limit for consumers.",
    )
    metrics_rate_interval_ms: int = Field(
        default=60_000,
        ge=10,
        description="Rates are averages over this interval, and updated once per interval.",
    )

    # The console.

    overview_topics_max: int = Field(
        default=5_000,
        ge=1,
        description="Loaded topics of a namespace in one overview; more are counted and left out.",
    )
    history_bytes_max: int = Field(
        default=8 << 20,
        ge=0,
        description="Bytes of memory for plots of the last hour, about 1.6 KB per topic with "
        "traffic or a backlog, one point per metrics_rate_interval_ms. 0: no plots.",
    )

    # Traces.

    tracing: bool = Field(
        default=False,
        description="Whether messages are traced with OpenTelemetry; needs magnetar[otel]. "
        "OpenTelemetry's own variables (OTEL_TRACES_EXPORTER and others) choose the exporter.",
    )
    tracing_sample_ratio: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Share of traced messages among those without a trace context; for others the "
        "client's decision applies.",
    )
    tracing_messages_max: int = Field(
        default=100,
        ge=1,
        description="Traced messages of one subscription that wait for dispatch or "
        "acknowledgement; above it the oldest traces end.",
    )

    @property
    def transaction_part_bytes_max(self) -> int:
        """Bytes of one part of a snapshot of transactions: an entry takes the largest message."""
        return min(self.transaction_snapshot_bytes_max, self.message_bytes_max)

    @property
    def has_authentication(self) -> bool:
        """Whether clients must authenticate."""
        return bool(
            self.token_secret_key.get_secret_value()
            or self.token_public_key
            or self.basic_auth_file
            or self.tls_auth
            or self.oauth_issuers
        )

    @model_validator(mode="after")
    def _parts_fit(self) -> "BrokerSettings":
        has_tls = bool(self.tls_certificate_file and self.tls_key_file)
        if (self.tls_port is not None or self.https_port is not None) and not has_tls:
            raise ValueError("tls_port and https_port need tls_certificate_file and tls_key_file")
        if self.broker_client_tls and (self.tls_port is None or self.https_port is None):
            raise ValueError("broker_client_tls needs tls_port and https_port")
        if bool(self.broker_client_tls_certificate_file) != bool(self.broker_client_tls_key_file):
            raise ValueError(
                "broker_client_tls_certificate_file and broker_client_tls_key_file go together"
            )
        if self.tls_require_client_certificate and not self.tls_ca_file:
            raise ValueError("tls_require_client_certificate needs tls_ca_file")
        if self.tls_auth and not (has_tls and self.tls_ca_file):
            raise ValueError("tls_auth needs tls_certificate_file, tls_key_file and tls_ca_file")
        if self.authorization and not self.has_authentication:
            raise ValueError(
                "authorization needs authentication: set token_secret_key, token_public_key, "
                "basic_auth_file, tls_auth or oauth_issuers"
            )
        if self.oauth_issuers and not self.oauth_audience:
            raise ValueError("oauth_issuers need oauth_audience")
        both = set(self.super_users) & set(self.proxy_roles)
        if both:
            raise ValueError(
                f"{sorted(both)[0]!r} is in both super_users and proxy_roles; remove it from one "
                "of them"
            )
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses that the broker listens on."""
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
        if self.scalable_segments_min > self.scalable_segments_max:
            raise ValueError("scalable_segments_min must not be above scalable_segments_max")
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
