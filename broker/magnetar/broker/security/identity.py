"""The identity of a client that has authenticated, and the role in its certificate. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, how it was proven, and who speaks for it.

    `role` is who acts. Of a request that a proxy passes on, that is the client behind it, and
    `proxy_role` is the proxy's own: both must be allowed what is asked for.
    """

    role: str
    method: str = "none"
    proxy_role: str = ""
    expires_at_ms: int | None = None
    """When the credentials end, since the epoch; None: never."""

    @property
    def roles(self) -> tuple[str, ...]:
        """All that must be allowed what is asked for."""
        return (self.role, self.proxy_role) if self.proxy_role else (self.role,)

    @property
    def connected_role(self) -> str:
        """Of whoever holds the connection: the proxy, if there is one."""
        return self.proxy_role or self.role

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms

    def __str__(self) -> str:
        who = self.role or "nobody"
        return f"{who} (by {self.proxy_role})" if self.proxy_role else who


NOBODY = Identity("")
"""Everybody, while authentication is off."""


def role_of(certificate: object) -> str:
    """The common name of a certificate's subject, which is its role; empty if there is no
    certificate, or none that was verified.

    `certificate` as `SSLObject.getpeercert()` gives it: a dictionary, and an empty one for a
    certificate that nobody has checked. Of several names the last counts, the most specific one.
    """
    if not isinstance(certificate, Mapping):
        return ""
    subject: Sequence[Sequence[tuple[str, Any]]] = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName" and value]
    return str(names[-1]) if names else ""
