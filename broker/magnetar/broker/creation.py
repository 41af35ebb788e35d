"""Whether a topic that is used may appear by itself."""

from collections.abc import Awaitable, Callable, Sequence

from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.sdk.wire import TopicName


class TopicCreation:
    """Asks the policies; reads the store only if they limit anything."""

    def __init__(
        self,
        policies: PolicyRegistry,
        *,
        exists: Callable[[TopicName], Awaitable[bool]],
        names: Callable[[str], Awaitable[Sequence[str]]],
    ) -> None:
        """`exists` and `names` (of a namespace) ask the metadata store."""
        self._policies = policies
        self._exists = exists
        self._names = names

    async def check(self, name: TopicName, *, may_create: bool) -> None:
        """Refuse a topic that does not exist and must not appear.

        `may_create`: whether the request wants it to.

        Raises:
            TopicNotFoundError: it does not exist; the text says what keeps it from being created.
            NotAllowedError: the namespace has as many topics as it may have.
            BrokerMetadataError
        """
        policies = await self._policies.of(name)
        is_allowed = may_create and policies.auto_topic_creation
        if (is_allowed and not policies.max_topics) or await self._exists(name):
            return
        if not may_create:
            raise TopicNotFoundError(f"{name} does not exist")
        if not is_allowed:
            raise TopicNotFoundError(
                f"{name} does not exist, and topics do not appear by themselves in "
                f"{name.namespace_name}: create it first"
            )
        await self.check_room(name.namespace_name, 1)

    async def check_room(self, namespace: str, more: int) -> None:
        """Refuse more topics than the namespace may have.

        Raises:
            NotAllowedError, NamespaceNotFoundError, BrokerMetadataError
        """
        limit = (await self._policies.of_namespace(namespace)).max_topics
        if limit:
            count = len(await self._names(namespace))
            if count + more > limit:
                raise NotAllowedError(
                    f"namespace {namespace} has {count} topics, and the limit is {limit}"
                )
