"""The identity of a client that has authenticated. Pure."""

from dataclasses import dataclass


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
