"""The ownership of a single broker: it owns every topic, for ever."""

import math
from collections.abc import Callable, Mapping

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.sdk.wire import TopicName


class _Always:
    """A tenure that does not end."""

    def holds(self) -> bool:
        return True


ALWAYS = _Always()
"""The tenure of a broker without others."""


class SoleOwner:
    """Ownership of the only broker."""

    def __init__(
        self,
        service_url: Callable[[], str],
        http_url: Callable[[], str] = lambda: "",
        listeners: Mapping[str, str] | None = None,
        tls_urls: Callable[[], tuple[str, str]] = lambda: ("", ""),
    ) -> None:
        """The URLs for clients. `listeners`: further ones by name. `tls_urls`: those of the binary
        protocol and of HTTP."""
        self._tls_urls = tls_urls
        self._service_url = service_url
        self._http_url = http_url
        self._listeners = listeners or {}

    async def owner_of(
        self, topic: TopicName, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        service_url = self._listeners.get(listener) if listener else self._service_url()
        if service_url is None:
            raise NotAllowedError(f"there is no advertised listener {listener!r}")
        service_url_tls, http_url_tls = self._tls_urls()
        return Owner(
            service_url,
            is_self=True,
            http_url=self._http_url(),
            service_url_tls="" if listener else service_url_tls,
            http_url_tls=http_url_tls,
        )

    @property
    def is_serving(self) -> bool:
        """Always true: no other broker could serve instead."""
        return True

    async def acquire(self, topic: TopicName, *, timeout_s: float) -> _Always:
        """Return a tenure at once: no other broker could own the topic."""
        return ALWAYS

    async def alone_since_s(self, topic: TopicName) -> float | None:
        """Return minus infinity: no other broker has ever served the topic."""
        return -math.inf
