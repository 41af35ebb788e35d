"""Deletes the stored data of topics: cursors first, then the log and its ledgers.

Every step can be repeated, so the next deletion, or the next load of the topic, completes one that
was interrupted; see `ledger/managed_log/log_deletion.py`. `topics/removal.py` prevents loads
meanwhile.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    NotAllowedError,
    TopicNotFoundError,
)
from magnetar.broker.features import compaction
from magnetar.broker.features.compaction.compacted_ledger import delete_compacted
from magnetar.broker.features.delayed.bucket_ledgers import delete_index
from magnetar.broker.features.transactions.topic_log import delete_log
from magnetar.broker.topic import Topic
from magnetar.cursors import CursorError, delete_unopened, list_cursors
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_deletion import delete_marked, mark_deleted
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class TopicDeletion:
    """The stored data of topics, in the metadata store and on bookies, and its deletion."""

    def __init__(self, client: LedgerClient, store: MetadataStore) -> None:
        self._client = client
        self._store = store
        self.forget: Callable[[TopicName], Awaitable[None]] | None = None
        """Removes what else is kept under the name of a whole topic: its policies, its schemas."""

    async def check_unused(self, name: TopicName) -> None:
        """Refuse a topic that has durable subscriptions, loaded or not.

        Raises:
            NotAllowedError, BrokerMetadataError
        """
        try:
            await self._store.catch_up()
            cursors = await list_cursors(self._store, naming.log_path(name))
        except LedgerError as error:
            raise BrokerMetadataError(f"cannot list subscriptions of {name}: {error}") from error
        used = [each for each in cursors if not naming.is_internal_cursor(each)]
        if used:
            raise NotAllowedError(
                f"Topic has active producers/subscriptions: {name} has {len(used)} subscriptions, "
                f"{used[0]} and so on; delete them, or the topic with force"
            )

    async def mark(self, name: TopicName) -> None:
        """Mark a topic as deleted. From here on it exists for no broker, whatever happens.

        Raises:
            TopicNotFoundError, BrokerMetadataError
        """
        try:
            if not await mark_deleted(self._store, naming.log_path(name)):
                raise TopicNotFoundError(f"Topic {name} not found")
        except LedgerError as error:
            raise BrokerMetadataError(f"{name} is not deleted: {error}; try again") from error

    async def finish(self, name: TopicName) -> None:
        """Remove everything of a marked topic.

        Raises:
            BrokerMetadataError: the next attempt removes what is left.
        """
        path = naming.log_path(name)
        try:
            for cursor in await list_cursors(self._store, path):
                delete = partial(delete_unopened, self._client, self._store, path, cursor)
                if cursor == compaction.CURSOR:
                    await delete_compacted(self._client, self._store, path, delete)
                else:
                    await delete()
            await delete_index(self._client, self._store, path)
            await delete_log(self._client, self._store, name)
            if self.forget is not None and name.partition_index < 0 and not name.is_segment:
                # While the mark exists: a new topic of the name must not find any of it, and a
                # deletion that ends here is completed later.
                await self.forget(name)
            await delete_marked(self._client, self._store, path)
        except (LedgerError, CursorError, BrokerPersistenceError) as error:
            raise BrokerMetadataError(
                f"{name} is not wholly deleted: {error}; delete it again"
            ) from error
        _log.info("topic_deleted", topic=str(name))


def check_members(topic: Topic) -> None:
    """Refuse a topic that has producers or subscriptions.

    Raises:
        NotAllowedError
    """
    consumers = sum(len(each.consumers) for each in topic.subscriptions.values())
    if topic.producers or topic.subscriptions:
        raise NotAllowedError(
            f"Topic has active producers/subscriptions: {topic.name} has {len(topic.producers)} "
            f"producers, {len(topic.subscriptions)} subscriptions and {consumers} consumers"
        )
