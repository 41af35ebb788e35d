"""What the sessions of one WebSocket client share."""

import base64
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlencode

from magnetar.sdk.ports import Clock
from magnetar.sdk.settings import ClientSettings
from magnetar.sdk.wire.topic_name import TopicName


class Session(Protocol):
    """A producer, consumer or reader, as the client sees it when it closes."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WebSocketContext:
    """Passed to everything that a client makes."""

    base_url: str
    """`ws://host:port` or `wss://host:port`"""
    settings: ClientSettings
    make_tls: Callable[[], ssl.SSLContext] | None
    """Called for each session, on a thread; None: without TLS."""
    clock: Clock
    random: random.Random
    forget: Callable[[Session], None]

    async def headers(self) -> dict[str, str]:
        """Who we are, at this moment.

        Raises:
            CredentialsError: we have nothing to prove it.
        """
        method_name, data = await self.settings.current_credentials()
        if method_name == "token":
            return {"Authorization": f"Bearer {data.decode()}"}
        if method_name == "basic":
            return {"Authorization": f"Basic {base64.b64encode(data).decode()}"}
        return {}

    def url(
        self, kind: str, topic: TopicName, parameters: dict[str, object], subscription: str = ""
    ) -> str:
        """Where a session of this kind is: `producer`, `consumer` or `reader`."""
        parts = [
            topic.domain,
            topic.tenant,
            topic.namespace,
            quote(topic.local_name, safe=""),
        ]
        if subscription:
            parts.append(quote(subscription, safe=""))
        query = urlencode({key: _text(value) for key, value in parameters.items()})
        return f"{self.base_url}/ws/v2/{kind}/{'/'.join(parts)}?{query}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
