"""Settings of TLS, authentication, authorization, audit and limits."""

from pydantic import Field, SecretStr, model_validator

from magnetar.broker.base.settings.section import Section


class SecuritySettings(Section):
    """A part of `BrokerSettings`. Files are read at the start, and again when they change.

    A key is given as file:///path, as a path, or as data:;base64,….
    """

    plain_host: str = Field(
        default="",
        description="Address for the ports without TLS, as 127.0.0.1; empty = the same as host.",
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
        description="Port of the binary protocol over TLS, as 6651; 0 = any free one; unset = no "
        "such port.",
    )
    https_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the HTTP service over TLS, as 8443; 0 = any free one; unset = no such "
        "port.",
    )
    tls_certificate_file: str = Field(
        default="", description="The broker's certificate and its intermediate certificates, PEM."
    )
    tls_key_file: str = Field(default="", description="Private key of the certificate, PEM.")
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
        description="While an issuer does not answer, its last keys are used for this long.",
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
        default="", description="Role of clients without credentials; empty = they are refused."
    )
    credentials_refresh_ms: int = Field(
        default=30_000,
        ge=10,
        description="Time that a client has to send new credentials when its own have expired.",
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
        default="", description="Private key of the certificate, PEM."
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
        description="Commands per second of one connection, messages not counted; more have to "
        "wait; 0 = no limit.",
    )

    @property
    def has_authentication(self) -> bool:
        """Whether anybody has to prove who they are."""
        return bool(
            self.token_secret_key.get_secret_value()
            or self.token_public_key
            or self.basic_auth_file
            or self.tls_auth
            or self.oauth_issuers
        )

    @model_validator(mode="after")
    def _parts_fit(self) -> "SecuritySettings":
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
