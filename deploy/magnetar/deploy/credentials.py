"""Credentials of the tools and the authorities they trust, from the environment.

    MAGNETAR_TOKEN             a token, or file:///path of one
    MAGNETAR_BASIC             user:password, or file:///path
    MAGNETAR_TLS_TRUST         PEM file: authorities of brokers; default: the system's
    MAGNETAR_TLS_CERTIFICATE   PEM file: the tool's certificate, for mutual TLS
    MAGNETAR_TLS_KEY           PEM file: its key

For commands with two clusters, MAGNETAR_FROM_TOKEN, MAGNETAR_TO_TOKEN and so on override these.

There are no options for them, because every user of the machine can read a command line.
"""

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from magnetar.deploy.errors import SettingsError
from magnetar.sdk.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Credentials that the environment holds."""

    token: str = field(default="", repr=False)
    basic: str = field(default="", repr=False)
    tls_trust: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    @classmethod
    def of_environment(
        cls, environment: Mapping[str, str] | None = None, *, side: str = ""
    ) -> Self:
        """Read the variables.

        Args:
            side: `FROM` or `TO`, in a command with two clusters: MAGNETAR_FROM_TOKEN overrides
                MAGNETAR_TOKEN, and so on. An empty variable means no credential.

        Raises:
            SettingsError: a file cannot be read.
        """
        given = os.environ if environment is None else environment
        found = _of_side(given, side)
        return cls(
            _secret(found, "MAGNETAR_TOKEN"),
            _secret(found, "MAGNETAR_BASIC"),
            found.get("MAGNETAR_TLS_TRUST", ""),
            found.get("MAGNETAR_TLS_CERTIFICATE", ""),
            found.get("MAGNETAR_TLS_KEY", ""),
        )

    def client_settings(
        self, *, operation_timeout_ms: int = 30_000, is_replicator: bool = False
    ) -> ClientSettings:
        """Return the SDK client's settings. `is_replicator`: the client publishes copies with
        positions."""
        method, data = "none", b""
        if self.token:
            method, data = "token", self.token.encode()
        elif self.basic:
            method, data = "basic", self.basic.encode()
        elif self.tls_certificate:
            method = "tls"
        return ClientSettings(
            auth_method_name=method,
            auth_data=data,
            tls_trust_file=self.tls_trust,
            tls_certificate_file=self.tls_certificate,
            tls_key_file=self.tls_key,
            operation_timeout_ms=operation_timeout_ms,
            is_replicator=is_replicator,
        )

    @property
    def source_authentication(self) -> str:
        """Value of the option `authentication` for the jobs' sources and sinks."""
        if self.token:
            return f"token:{self.token}"
        return f"basic:{self.basic}" if self.basic else "none"

    def http_headers(self) -> dict[str, str]:
        """Return the headers that carry the credentials in an HTTP request."""
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        if self.basic:
            return {"Authorization": f"Basic {base64.b64encode(self.basic.encode()).decode()}"}
        return {}

    def tls(self) -> ssl.SSLContext:
        """Make the TLS context for https.

        Raises:
            SettingsError: a file cannot be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.tls_trust or None)
            if self.tls_certificate:
                context.load_cert_chain(self.tls_certificate, self.tls_key or None)
        except OSError as error:
            raise SettingsError(f"MAGNETAR_TLS_…: a file cannot be used: {error}") from error
        return context


def _of_side(given: Mapping[str, str], side: str) -> Mapping[str, str]:
    if not side:
        return given
    own = f"MAGNETAR_{side}_"
    of_side = {
        f"MAGNETAR_{name.removeprefix(own)}": value
        for name, value in given.items()
        if name.startswith(own)
    }
    return {**given, **of_side}


def _secret(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value.startswith("file://"):
        return value
    path = Path(value.removeprefix("file://"))
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}: cannot read {path}: {error}") from error
