"""Deletes the stored data of topics: cursors first, then the log and its ledgers.

Every step can be repeated, so the next deletion, or the next load of the topic, completes one that
was interrupted; see `ledger/managed_log/log_deletion.py`. `topics/removal.py` prevents loads
meanwhile.

Another owner may complete a deletion that is still running here: its bundle was unloaded, or the
process stood still. Then a topic of the same name may be in use already. So each step first makes
sure that the log is still marked, and that this broker may still own it. A node to be deleted is
read before that, and compared: what is deleted is what was there under the mark.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from magnetar.broker.features import compaction
from magnetar.broker.features.compaction.compacted_ledger import delete_compacted
from magnetar.broker.features.delayed.bucket_ledgers import delete_index
from magnetar.broker.features.transactions.topic_log import delete_log
from magnetar.broker.policies.records import Check
from magnetar.broker.topic import Topic
from magnetar.cursors import CursorError, delete_unopened, list_cursors
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.managed_log.log_deletion import delete_marked, is_marked_at, mark_deleted
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class _CompletedError(Exception):
    """Another owner has completed the deletion."""


class TopicDeletion:
    """The stored data of topics, in the metadata store and on bookies, and its deletion."""

    def __init__(self, client: LedgerClient, store: MetadataStore) -> None:
        self._client = client
        self._store = store
        self.forget: Callable[[TopicName, Check], Awaitable[None]] | None = None
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

    async def mark(self, name: TopicName, check: Check | None = None) -> None:
        """Mark a topic as deleted. From here on it exists for no broker, whatever happens.

        `check`: awaited between the read of the log's node and the mark.

        Raises:
            TopicNotFoundError, BrokerMetadataError
            Every error of `check`: nothing is marked.
        """
        try:
            if not await mark_deleted(self._store, naming.log_path(name), check):
                raise TopicNotFoundError(f"Topic {name} not found")
        except LedgerError as error:
            raise BrokerMetadataError(f"{name} is not deleted: {error}; try again") from error

    async def finish(self, name: TopicName, may_own: Callable[[], bool]) -> None:
        """Remove everything of a marked topic; do nothing more once another owner has done so.

        `may_own`: whether this broker may own the topic at this moment.

        Raises:
            BrokerMetadataError: the next attempt removes what is left.
            ServiceNotReadyError: this broker may not own it any more; its next owner goes on.
        """
        try:
            await self._finish(name, partial(self._check, name, may_own))
        except _CompletedError:
            _log.info("topic_deleted_elsewhere", topic=str(name))
            return
        except (LedgerError, CursorError, BrokerPersistenceError) as error:
            raise BrokerMetadataError(
                f"{name} is not wholly deleted: {error}; delete it again"
            ) from error
        _log.info("topic_deleted", topic=str(name))

    async def _finish(self, name: TopicName, check: Check) -> None:
        path = naming.log_path(name)
        for cursor in await list_cursors(self._store, path):
            delete = partial(delete_unopened, self._client, self._store, path, cursor, check)
            if cursor == compaction.CURSOR:
                await delete_compacted(self._client, self._store, path, delete)
            else:
                await delete()
        await delete_index(self._client, self._store, path)
        await delete_log(self._client, self._store, name, check)
        if self.forget is not None and name.partition_index < 0 and not name.is_segment:
            # While the mark exists: a new topic of the name must not find any of it, and a
            # deletion that ends here is completed later.
            await self._store.catch_up()  # Or a server that is behind shows the mark still.
            await self.forget(name, check)
        await delete_marked(self._client, self._store, path)

    async def _check(self, name: TopicName, may_own: Callable[[], bool]) -> None:
        """Make sure that the next step concerns the topic that is being deleted.

        Raises:
            _CompletedError: the log is gone, or is that of a later topic of the name.
            ServiceNotReadyError: this broker may not own it any more.
            LedgerError
        """
        if not await is_marked_at(self._store, naming.log_path(name)):
            raise _CompletedError
        # After the wait: nothing is sent by a process that stood still until now.
        if not may_own():
            raise ServiceNotReadyError(f"the lease of {name} was lost: ask its next owner")


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
