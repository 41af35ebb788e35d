"""The identity of a client that has authenticated, and the role in its certificate. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, the method that proved it, and the proxy that speaks for it.

    `role` is the one that acts. For a request that a proxy forwards, `role` is the client's and
    `proxy_role` is the proxy's own: both need the right.
    """

    role: str
    method: str = "none"
    proxy_role: str = ""
    expires_at_ms: int | None = None
    """When the credentials expire, in milliseconds since the epoch; None if never."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that all need the right for an action."""
        return (self.role, self.proxy_role) if self.proxy_role else (self.role,)

    @property
    def connected_role(self) -> str:
        """Role of the holder of the connection: the proxy's, if there is one."""
        return self.proxy_role or self.role

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms

    def __str__(self) -> str:
        who = self.role or "nobody"
        return f"{who} (by {self.proxy_role})" if self.proxy_role else who


NOBODY = Identity("")
"""Identity of all clients while authentication is off."""


def role_of(certificate: object) -> str:
    """Return the common name of a certificate's subject, which is its role; empty if there is no
    certificate, or none that was verified.

    `certificate` has the form of `SSLObject.getpeercert()`: a dictionary, which is empty for a
    certificate that was not verified. Of several names the last one counts, the most specific.
    """
    if not isinstance(certificate, Mapping):
        return ""
    subject: Sequence[Sequence[tuple[str, Any]]] = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName" and value]
    return str(names[-1]) if names else ""
