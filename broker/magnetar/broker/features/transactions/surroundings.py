"""What transactions see of their topic, and what their parts see of each other."""

from collections.abc import Mapping
from typing import Protocol

from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.topic_log import TopicTransactionLog
from magnetar.broker.topic import PublishLine, TopicPort
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.position import Position


class TransactionalTopic(TopicPort, Protocol):
    """What transactions see of their topic beyond what any feature does."""

    @property
    def line(self) -> PublishLine: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...

    def internal_stored(self, position: Position, entry: bytes, /) -> None:
        """A marker is durable; readers may see more now."""
        ...

    def log_ended(self) -> None:
        """Readers may see more, though nothing was appended."""
        ...


class EnabledTransactions(Protocol):
    """What messages and acknowledgements in transactions stand on; `TopicTransactions` is such."""

    @property
    def log(self) -> TopicTransactionLog | None:
        """The log beside the topic's; None: the topic has had no transaction."""
        ...

    @property
    def state(self) -> BufferState | None:
        """Entries that transactions hide; None: the topic has had no transaction."""
        ...

    async def enable(self) -> None:
        """Be ready for transactions.

        Raises:
            NotAllowedError, ServiceNotReadyError, LedgerError
        """
        ...
