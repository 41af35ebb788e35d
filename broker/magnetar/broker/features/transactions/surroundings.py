"""Ports of transactions: their view of the topic, and the parts' views of each other."""

from collections.abc import Mapping
from typing import Protocol

from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.topic_log import TopicTransactionLog
from magnetar.broker.topic import PublishLine, TopicPort
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.position import Position


class TransactionalTopic(TopicPort, Protocol):
    """View of a topic that transactions need beyond that of any feature."""

    @property
    def line(self) -> PublishLine: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...

    def internal_stored(self, position: Position, entry: bytes, /) -> None:
        """Handle a marker that is durable; readers may see more now."""
        ...

    def log_ended(self) -> None:
        """Handle an end that was written beside the topic's log; readers may see more now."""
        ...


class EnabledTransactions(Protocol):
    """Base of messages and acknowledgements in transactions; `TopicTransactions` implements it."""

    @property
    def log(self) -> TopicTransactionLog | None:
        """The transaction log of the topic; None if the topic has had no transaction."""
        ...

    @property
    def state(self) -> BufferState | None:
        """Entries that transactions hide; None if the topic has had no transaction."""
        ...

    async def enable(self) -> None:
        """Prepare the topic for transactions.

        Raises:
            NotAllowedError, ServiceNotReadyError, LedgerError
        """
        ...
