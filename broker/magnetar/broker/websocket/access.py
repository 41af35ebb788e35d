"""Who a WebSocket client is, and what it may do: asked when the session begins, and when it grows.

Sessions reach topics as the broker, which may do everything: what clients may is decided here.
Source: WebSocket sheet, section 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.broker.base.errors import AuthenticationError, AuthorizationError
from magnetar.broker.security import (
    Action,
    Authenticator,
    Authorizer,
    Identity,
    Namespace,
    Subscription,
    Topic,
)
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.sdk.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class Rights:
    """Of one client. Everything raises BrokerMetadataError when it cannot be told now."""

    identity: Identity
    authorizer: Authorizer
    address: str

    async def check_produce(self, topic: TopicName) -> None:
        """Raises: UpgradeRefusedError: 403."""
        await self._check(Action.PRODUCE, Topic(topic))

    async def check_read(self, topic: TopicName) -> None:
        """Raises: UpgradeRefusedError: 403."""
        await self._check(Action.CONSUME, Topic(topic))

    async def check_consume(self, topic: TopicName, subscription: str) -> None:
        """Raises: UpgradeRefusedError: 403."""
        await self._check(Action.CONSUME, Subscription(topic, subscription))

    async def check_list(self, namespace: str) -> None:
        """The names of its topics. Raises: UpgradeRefusedError: 403."""
        await self._check(Action.LIST_TOPICS, Namespace(namespace))

    async def _check(self, action: Action, resource: Topic | Subscription | Namespace) -> None:
        try:
            await self.authorizer.check(self.identity, action, resource, address=self.address)
        except AuthorizationError as error:
            raise UpgradeRefusedError(403, str(error)) from error


async def rights_of(
    authenticator: Authenticator,
    authorizer: Authorizer,
    headers: Mapping[str, str],
    *,
    address: str,
    certificate_role: str,
    query_token: str,
) -> Rights:
    """Authenticate a request; `headers` by names in lower case.

    Raises:
        UpgradeRefusedError: 401.
    """
    try:
        identity = await authenticator.of_request(
            headers,
            address=address,
            certificate_role=certificate_role,
            query_token=query_token,
        )
    except AuthenticationError as error:
        raise UpgradeRefusedError(401, str(error)) from error
    return Rights(identity, authorizer, address)
