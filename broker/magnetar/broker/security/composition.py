"""Build the security of a broker from its settings, and follow the files that the settings name."""

import asyncio
import random
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import structlog

from magnetar.broker.base.errors import ListenError
from magnetar.broker.base.http_client import HttpCallError, call
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security.audit import Audit
from magnetar.broker.security.authenticator import (
    TLS,
    Authenticator,
    BasicMethod,
    Method,
    TlsMethod,
    TokenMethod,
)
from magnetar.broker.security.authorizer import Authorizer, Namespaces
from magnetar.broker.security.issuers import Fetch, Freshness, Issuers
from magnetar.broker.security.keys import (
    ReadFile,
    SecurityConfigError,
    TokenKey,
    public_key,
    read_key,
    secret_key,
)
from magnetar.broker.security.passwords import METHOD as BASIC
from magnetar.broker.security.passwords import Passwords, parse_passwords
from magnetar.broker.security.tokens import METHOD as TOKEN
from magnetar.broker.security.tokens import Claims
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.link_settings import is_loopback
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network
from magnetar.ledger.tls import ClientTls, ServerTls, TlsFiles, TlsNetwork

_log = structlog.get_logger()


class Security:
    """Authentication, authorization, audit and TLS of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        namespaces: Namespaces,
        store: MetadataStore,
        *,
        clock: Clock,
        network: Network,
        random: random.Random,
        read: ReadFile,
    ) -> None:
        """`read` reads a small file. `network` serves issuers at loopback addresses."""
        self._settings = settings
        self._clock = clock
        self._network = network
        self._read = read
        self._following: asyncio.Task[None] | None = None
        self.audit = Audit(clock.monotonic_s, events_per_s=settings.audit_events_per_s)
        self.tls: ServerTls | None = None
        """Certificates of both TLS ports. None if there is no such port, and before `load` has
        returned."""
        self._passwords: Passwords | None = None
        self._tokens: TokenMethod | None = None
        self._issuers = self._make_issuers()
        self._client_token = b""
        self._peer_tls: ClientTls | None = None
        self.authenticator = Authenticator(
            self._methods(random),
            anonymous_role=settings.anonymous_role,
            proxy_roles=frozenset(settings.proxy_roles),
            audit=self.audit,
        )
        self.authorizer = Authorizer(
            namespaces,
            store,
            is_on=settings.authorization,
            super_users=frozenset(settings.super_users),
            audit=self.audit,
        )

    @property
    def client_token(self) -> bytes:
        """Token by which this broker authenticates at other brokers; empty if it has none."""
        return self._client_token

    def tls_network(self) -> TlsNetwork | None:
        """Return the network for the TLS port of the binary protocol; None if there is no
        certificate.
        """
        if self.tls is None:
            return None
        timeout_s = self._settings.tls_handshake_timeout_ms / 1000
        return TlsNetwork(server=self.tls, handshake_timeout_s=timeout_s)

    def peer_network(self) -> TlsNetwork | None:
        """Return the network to other brokers. None if it is not over TLS, and before the first
        `load`."""
        return TlsNetwork(client=self._peer_tls) if self._peer_tls is not None else None

    def check_addresses(self, addresses: Iterable[str]) -> None:
        """Refuse to listen beyond loopback if clients need no credentials.

        Raises:
            ListenError: an address is not loopback, and there is neither authentication nor
                `--insecure`.
        """
        settings = self._settings
        open_to = [address for address in addresses if not is_loopback(address)]
        if not open_to or settings.has_authentication:
            return
        if settings.insecure:
            _log.warning("open_to_everybody", address=open_to[0])
        else:
            raise ListenError(
                f"refusing to listen on {open_to[0]} without authentication: anybody who reaches "
                "it could do everything. Set up authentication (docs/security.md), listen on "
                "127.0.0.1, or give --insecure"
            )

    def load(self) -> None:
        """Read all files. Later calls read them again.

        Raises:
            SecurityConfigError, TlsConfigError: one of the files cannot be used.
        """
        settings = self._settings
        if settings.tls_certificate_file:
            if self.tls is None:
                self.tls = ServerTls(
                    TlsFiles(
                        settings.tls_certificate_file,
                        settings.tls_key_file,
                        settings.tls_ca_file,
                    ),
                    requires_certificate=settings.tls_require_client_certificate,
                )
            else:
                self.tls.reload()
        if settings.broker_client_tls:
            if self._peer_tls is None:
                self._peer_tls = ClientTls(
                    TlsFiles(
                        settings.broker_client_tls_certificate_file,
                        settings.broker_client_tls_key_file,
                        settings.broker_client_tls_ca_file,
                    )
                )
            else:
                self._peer_tls.reload()
        if self._tokens is not None:
            self._tokens.keys = self._token_keys()
        if self._passwords is not None:
            what = "basic_auth_file"
            data = read_key(settings.basic_auth_file, self._read, what=what)
            self._passwords.replace(parse_passwords(data.decode("utf-8", "replace"), what=what))
        where = settings.broker_client_token.get_secret_value()
        if where:
            self._client_token = read_key(where, self._read, what="broker_client_token").strip()

    def start(self) -> None:
        """Check the files for changes every `security_reload_s` seconds. Call `load` before."""
        if self._settings.security_reload_s and self._paths():
            self._following = asyncio.get_running_loop().create_task(
                self._follow(), name="security-files"
            )

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._issuers is not None:
            self._issuers.close()
        self.authorizer.close()

    # Files

    async def _follow(self) -> None:
        contents = self._contents()
        while True:
            await asyncio.sleep(self._settings.security_reload_s)
            found = self._contents()
            if found == contents:
                continue
            try:
                self.load()
            except (SecurityConfigError, LedgerError) as error:
                # The previous ones stay in force. A certificate and its key change one after the
                # other.
                _log.warning("security_files_refused", error=str(error))
                continue
            except Exception:  # noqa: BLE001 - a defect must not end the following of the files
                _log.exception("security_files_refused")
                continue
            contents = found
            _log.info("security_files_reloaded")

    def _contents(self) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for path in self._paths():
            try:
                contents[path] = self._read(path)
            except OSError:
                contents[path] = b""
        return contents

    def _paths(self) -> list[str]:
        settings = self._settings
        named = [
            settings.tls_certificate_file,
            settings.tls_key_file,
            settings.tls_ca_file,
            settings.broker_client_tls_certificate_file,
            settings.broker_client_tls_key_file,
            settings.broker_client_tls_ca_file,
            settings.basic_auth_file,
            settings.token_public_key,
            settings.token_secret_key.get_secret_value(),
            settings.broker_client_token.get_secret_value(),
        ]
        return [each.removeprefix("file://") for each in named if each and each[:5] != "data:"]

    # Methods

    def _methods(self, random: random.Random) -> dict[str, Method]:
        settings = self._settings
        methods: dict[str, Method] = {}
        secret = settings.token_secret_key.get_secret_value()
        if secret or settings.token_public_key or settings.oauth_issuers:
            claims = Claims(
                settings.token_role_claim, settings.token_audience_claim, settings.token_audience
            )
            self._tokens = TokenMethod(claims, self._issuers, self._clock)
            methods[TOKEN] = self._tokens
        if settings.basic_auth_file:
            self._passwords = Passwords(
                secret=random.randbytes(32),
                at_once=settings.password_checks_at_once,
                waiting_max=settings.password_checks_waiting_max,
                remembered_max=settings.passwords_remembered_max,
            )
            methods[BASIC] = BasicMethod(self._passwords)
        if settings.tls_auth:
            methods[TLS] = TlsMethod()
        return methods

    def _token_keys(self) -> tuple[TokenKey, ...]:
        settings = self._settings
        keys: list[TokenKey] = []
        for setting, where, make in (
            ("token_secret_key", settings.token_secret_key.get_secret_value(), secret_key),
            ("token_public_key", settings.token_public_key, public_key),
        ):
            if where:
                keys.append(make(read_key(where, self._read, what=setting), what=setting))
        return tuple(keys)

    def _make_issuers(self) -> Issuers | None:
        settings = self._settings
        if not settings.oauth_issuers:
            return None
        return Issuers(
            settings.oauth_issuers,
            Claims(settings.oauth_role_claim, "aud", settings.oauth_audience),
            jwks_url=settings.oauth_jwks_url,
            freshness=Freshness(
                settings.oauth_keys_fresh_s,
                settings.oauth_keys_kept_s,
                settings.oauth_keys_refresh_min_s,
            ),
            fetch=_fetcher(
                self._network,
                authorities=settings.oauth_ca_file,
                timeout_s=settings.oauth_timeout_ms / 1000,
            ),
            clock=self._clock,
        )


def _fetcher(network: Network, *, authorities: str, timeout_s: float) -> Fetch:
    def secured() -> Network:
        # Created per request: requests are few, and CA certificates get renewed.
        return TlsNetwork(client=ClientTls(TlsFiles(authorities=authorities)))

    async def fetch(url: str) -> bytes:
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise OSError(f"{url} is not https")
        over: Callable[[], Network] = secured if parts.scheme == "https" else lambda: network
        try:
            answer = await call(over(), "GET", url, timeout_s=timeout_s)
        except (HttpCallError, LedgerError) as error:
            raise OSError(str(error)) from error
        if not answer.is_success:
            raise OSError(f"{url} answered {answer.status}")
        return answer.body

    return fetch
