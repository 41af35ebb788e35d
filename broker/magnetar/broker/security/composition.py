"""Build the security of a broker from its settings, and follow the files that the settings name."""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
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


class _MakeKey(Protocol):
    def __call__(self, data: bytes, *, what: str) -> TokenKey: ...


@dataclass(slots=True)
class _Part:
    """Files that are only usable together, and what reads them."""

    name: str
    paths: list[str]
    load: Callable[[], None]
    """Raises SecurityConfigError or TlsConfigError; the previous files then stay in force."""
    known: list[bytes] = field(default_factory=list)
    """Contents when they were read, in the order of the paths."""


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
        self._parts = self._all_parts()
        self.audit = Audit(clock.monotonic_s, events_per_s=settings.audit_events_per_s)
        self.tls: ServerTls | None = None
        """Certificates of both TLS ports. None if there is no such port, and before `load` has
        returned."""
        self._passwords: Passwords | None = None
        self._tokens: TokenMethod | None = None
        self._token_keys: dict[str, TokenKey] = {}
        """The broker's own keys, by setting."""
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
        for part in self._parts:
            found = self._contents(part)
            part.load()
            part.known = found

    def reload(self) -> None:
        """Read the files again that have changed.

        Each part is read on its own. If one of its files is unusable, the previous ones stay in
        force for this part alone: a user who was removed must not get in because a certificate is
        broken.
        """
        for part in self._parts:
            found = self._contents(part)
            if found == part.known:
                continue
            try:
                part.load()
            except (SecurityConfigError, LedgerError) as error:
                # A certificate and its key change one after the other: the next look succeeds.
                _log.warning("security_files_refused", part=part.name, error=str(error))
            except Exception:  # noqa: BLE001 - a defect must not end the following of the files
                _log.exception("security_files_refused", part=part.name)
            else:
                part.known = found
                _log.info("security_files_reloaded", part=part.name)

    def start(self) -> None:
        """Check the files for changes every `security_reload_s` seconds. Call `load` before."""
        if self._settings.security_reload_s and any(part.paths for part in self._parts):
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
        while True:
            await asyncio.sleep(self._settings.security_reload_s)
            self.reload()

    def _contents(self, part: "_Part") -> list[bytes]:
        contents: list[bytes] = []
        for path in part.paths:
            try:
                contents.append(self._read(path))
            except OSError:
                contents.append(b"")
        return contents

    def _all_parts(self) -> list["_Part"]:
        settings = self._settings
        parts: list[_Part] = []
        if settings.tls_certificate_file:
            tls = (settings.tls_certificate_file, settings.tls_key_file, settings.tls_ca_file)
            parts.append(_Part("tls", _paths(*tls), partial(self._load_tls, TlsFiles(*tls))))
        if settings.broker_client_tls:
            peer = (
                settings.broker_client_tls_certificate_file,
                settings.broker_client_tls_key_file,
                settings.broker_client_tls_ca_file,
            )
            load = partial(self._load_peer_tls, TlsFiles(*peer))
            parts.append(_Part("broker_client_tls", _paths(*peer), load))
        for setting, where, make in (
            ("token_secret_key", settings.token_secret_key.get_secret_value(), secret_key),
            ("token_public_key", settings.token_public_key, public_key),
        ):
            if where:
                load = partial(self._load_token_key, setting, where, make)
                parts.append(_Part(setting, _paths(where), load))
        if settings.basic_auth_file:
            parts.append(
                _Part("basic_auth_file", _paths(settings.basic_auth_file), self._load_passwords)
            )
        token = settings.broker_client_token.get_secret_value()
        if token:
            load = partial(self._load_client_token, token)
            parts.append(_Part("broker_client_token", _paths(token), load))
        return parts

    def _load_tls(self, files: TlsFiles) -> None:
        if self.tls is None:
            requires = self._settings.tls_require_client_certificate
            self.tls = ServerTls(files, requires_certificate=requires)
        else:
            self.tls.reload()

    def _load_peer_tls(self, files: TlsFiles) -> None:
        if self._peer_tls is None:
            self._peer_tls = ClientTls(files)
        else:
            self._peer_tls.reload()

    def _load_token_key(self, setting: str, where: str, make: "_MakeKey") -> None:
        assert self._tokens is not None
        self._token_keys[setting] = make(read_key(where, self._read, what=setting), what=setting)
        self._tokens.keys = tuple(self._token_keys.values())

    def _load_passwords(self) -> None:
        assert self._passwords is not None
        what = "basic_auth_file"
        data = read_key(self._settings.basic_auth_file, self._read, what=what)
        self._passwords.replace(parse_passwords(data.decode("utf-8", "replace"), what=what))

    def _load_client_token(self, where: str) -> None:
        self._client_token = read_key(where, self._read, what="broker_client_token").strip()

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


def _paths(*named: str) -> list[str]:
    """Return the paths of files among the values of settings."""
    return [each.removeprefix("file://") for each in named if each and each[:5] != "data:"]


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
