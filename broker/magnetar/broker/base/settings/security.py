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
        description="Whether a broker without authentication may listen on other addresses than "
        "loopback: anybody who reaches it may then do everything.",
    )

    # --- TLS
    tls_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the binary protocol over TLS, as 6651; 0 = any free one; none = no.",
    )
    https_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of the HTTP service over TLS, as 8443; 0 = any free one; none = no.",
    )
    tls_certificate_file: str = Field(
        default="", description="The broker's certificate and those in between, PEM."
    )
    tls_key_file: str = Field(default="", description="The key of that certificate, PEM.")
    tls_ca_file: str = Field(
        default="",
        description="Whose certificates clients may have, PEM; empty = theirs are not asked for.",
    )
    tls_require_client_certificate: bool = Field(
        default=False, description="Whether a client without a certificate is let in (mutual TLS)."
    )
    security_reload_s: float = Field(
        default=60.0,
        ge=0,
        description="Time between two looks at whether certificates, keys or passwords changed; "
        "0 = only at the start.",
    )
    tls_handshake_timeout_ms: int = Field(
        default=10_000, ge=1, description="Time that a TLS handshake may take."
    )

    # --- authentication
    token_secret_key: SecretStr = Field(
        default=SecretStr(""), description="Key of tokens with HS256, HS384 or HS512."
    )
    token_public_key: str = Field(
        default="", description="Key of tokens with RS256 to RS512 or ES256 to ES512, PEM or DER."
    )
    token_role_claim: str = Field(default="sub", description="Claim that holds the role.")
    token_audience_claim: str = Field(default="aud", description="Claim that holds the audience.")
    token_audience: str = Field(
        default="", description="Audience that tokens must have; empty = any or none."
    )
    basic_auth_file: str = Field(
        default="", description="Users and passwords in htpasswd's form, bcrypt or apr1."
    )
    tls_auth: bool = Field(
        default=False, description="Whether the common name of a client certificate is a role."
    )
    oauth_issuers: tuple[str, ...] = Field(
        default=(), description="Issuers (https://…) whose tokens are taken, by OpenID Connect."
    )
    oauth_audience: str = Field(default="", description="Audience that their tokens must have.")
    oauth_role_claim: str = Field(
        default="sub", description="Claim of their tokens that holds the role."
    )
    oauth_jwks_url: str = Field(
        default="", description="Where their keys are; empty = as each issuer's discovery says."
    )
    oauth_ca_file: str = Field(
        default="", description="Who vouches for the issuers' servers, PEM; empty = the system's."
    )
    oauth_keys_fresh_s: float = Field(
        default=300.0, gt=0, description="Keys of an issuer are asked for again after this long."
    )
    oauth_keys_kept_s: float = Field(
        default=86_400.0,
        gt=0,
        description="While an issuer does not answer, its keys are used this long.",
    )
    oauth_keys_refresh_min_s: float = Field(
        default=10.0,
        ge=0,
        description="Shortest time between two requests to an issuer, also for unknown keys.",
    )
    oauth_timeout_ms: int = Field(
        default=5_000, ge=1, description="Time that an issuer has to answer."
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
        default=2, ge=1, description="Passwords that are checked side by side, on threads."
    )
    password_checks_waiting_max: int = Field(
        default=256, ge=0, description="Clients that wait for that; more are refused."
    )
    passwords_remembered_max: int = Field(
        default=1_000,
        ge=0,
        description="Passwords that were right and need not be checked again, as salted digests.",
    )

    # --- authorization
    authorization: bool = Field(
        default=False, description="Whether roles need grants; it takes authentication."
    )
    super_users: tuple[str, ...] = Field(default=(), description="Roles that may do everything.")
    proxy_roles: tuple[str, ...] = Field(
        default=(), description="Roles that may speak for others, never for themselves."
    )
    rights_recheck_interval_s: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="Time between two looks at the rights of all who are connected; 0 = only when "
        "grants change, which brokers are told of.",
    )
    metrics_open: bool = Field(
        default=False,
        description="Whether /metrics, with names of topics, needs no credentials; else it takes a "
        "super user.",
    )
    broker_client_token: SecretStr = Field(
        default=SecretStr(""),
        description="Token by which brokers ask each other: a super user's, file:///path or data.",
    )
    broker_client_tls: bool = Field(
        default=False,
        description="Whether brokers reach each other over TLS, at tls_port and https_port, and "
        "over nothing else.",
    )
    broker_client_tls_ca_file: str = Field(
        default="",
        description="Whose certificates other brokers must have, PEM; empty = the system's.",
    )
    broker_client_tls_certificate_file: str = Field(
        default="", description="The certificate that is shown to other brokers, PEM; empty = none."
    )
    broker_client_tls_key_file: str = Field(
        default="", description="The key of that certificate, PEM."
    )

    # --- audit and limits
    audit_events_per_s: int = Field(
        default=100, ge=0, description="Most events of the audit log; 0 = there is none."
    )
    connections_per_address_max: int = Field(
        default=5_000,
        ge=0,
        description="Connections from one address at once: of the binary protocol, of HTTP and of "
        "WebSockets so many each; 0 = any number, as behind a proxy that hides addresses.",
    )
    connections_kept_for_loopback: int = Field(
        default=32,
        ge=0,
        description="Connections that the host itself may open beyond all limits, of the binary "
        "protocol and of HTTP so many each: health checks and operators.",
    )
    http_names: str = Field(
        default="",
        description="Names that the HTTP service answers to, with commas between, beside "
        "localhost, addresses, what is advertised and the hosts in websocket_origins; others get "
        "403. Not looked at where clients without credentials are refused. Empty: any name, and "
        "at loopback none but those.",
    )
    http_connections_max: int = Field(
        default=10_000,
        ge=1,
        description="HTTP connections of a port at once, WebSockets not counted; more are closed.",
    )
    http_request_timeout_ms: int = Field(
        default=60_000,
        ge=100,
        description="Time an HTTP client has to send a request, head and body, and may take "
        "nothing of an answer; then it is closed.",
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
        description="Commands of one connection beside messages; more have to wait; 0 = any.",
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
            raise ValueError(f"{sorted(both)[0]!r} is among super_users and proxy_roles")
        return self
