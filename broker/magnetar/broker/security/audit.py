"""The audit log: who connected, who was refused what, who changed something.

One structured event per fact, named `audit`, in the log of the process. It holds roles, addresses,
actions and resources, and never a credential: no function here takes one. Its rate is limited, so
clients cannot fill a disk with refused attempts. Dropped events are counted, and one event reports
the count.
"""

from collections.abc import Callable

import structlog

from magnetar.broker.base.token_bucket import TokenBucket
from magnetar.broker.security.actions import Action, Resource
from magnetar.broker.security.identity import Identity

_log = structlog.get_logger("magnetar.audit")

TEXT_CHARACTERS_MAX = 256
"""Characters of each field that are logged: clients choose roles and names."""


class Audit:
    """Writes the audit log, `events_per_s` at most; 0 turns it off."""

    def __init__(self, now_s: Callable[[], float], *, events_per_s: int) -> None:
        self._bucket = (
            TokenBucket(now_s, per_period=events_per_s, period_s=1.0) if events_per_s else None
        )
        self._left_out = 0

    def connected(self, identity: Identity, *, address: str) -> None:
        """Record that a client has authenticated."""
        self._write("connected", identity, address=address)

    def refused(self, method: str, reason: str, *, address: str) -> None:
        """Record that an authentication failed, with the reason that the client gets."""
        self._write("refused", None, method=method, reason=reason, address=address)

    def denied(
        self, identity: Identity, action: Action, resource: Resource, *, address: str
    ) -> None:
        """Record that an identity tried what it may not do."""
        self._write(
            "denied", identity, action=action.value, resource=str(resource), address=address
        )

    def changed(self, identity: Identity, what: str, *, status: int, address: str) -> None:
        """Record a change over HTTP; `what` is method and path."""
        self._write("changed", identity, request=what, status=str(status), address=address)

    def _write(self, outcome: str, identity: Identity | None, **fields: str) -> None:
        bucket = self._bucket
        if bucket is None:
            return
        if bucket.available() < 1:
            self._left_out += 1
            return
        bucket.spend(1)
        if self._left_out:
            _log.warning("audit_left_out", events=self._left_out)
            self._left_out = 0
        if identity is not None:
            fields |= {"role": identity.role, "method": identity.method}
            if identity.proxy_role:
                fields["proxy_role"] = identity.proxy_role
        bounded = {key: value[:TEXT_CHARACTERS_MAX] for key, value in fields.items() if value}
        _log.info("audit", outcome=outcome, **bounded)
