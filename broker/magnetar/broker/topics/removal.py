"""Deletes topics for good: prevents loads meanwhile, and drops what is loaded first.

`topics/deletion.py` deletes the stored data, in steps that can each be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from magnetar.broker.base.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.cluster.ownership import Ownership
from magnetar.broker.features.retention import inactivity
from magnetar.broker.policies.records import Check
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.topic import Topic
from magnetar.broker.topics.deletion import TopicDeletion, check_members
from magnetar.broker.topics.ending import TopicEnds
from magnetar.broker.topics.table import TopicTable
from magnetar.sdk.wire import TopicName


class TopicRemoval:
    """Deletes topics that this broker owns."""

    def __init__(
        self,
        table: TopicTable,
        ends: TopicEnds,
        deletion: TopicDeletion,
        policies: PolicyRegistry,
        ownership: Ownership,
        *,
        is_scalable: Callable[[TopicName], Awaitable[bool]],
        acquire_timeout_s: float,
    ) -> None:
        """`is_scalable`: returns whether a scalable topic of a name exists. `acquire_timeout_s`:
        longest wait for the right to serve a topic, in seconds."""
        self._table = table
        self._ends = ends
        self._deletion = deletion
        self._policies = policies
        self._ownership = ownership
        self._is_scalable = is_scalable
        self._acquire_timeout_s = acquire_timeout_s
        self.followers: list[Callable[[TopicName, Check | None], Awaitable[object]]] = []
        """Called when a topic is deleted, to remove whatever else is kept under its name. The check
        is awaited before each removal."""
        self.on_deleted: list[Callable[[TopicName], None]] = []
        """Called with each topic, partition and segment that was deleted here."""
        deletion.forget = self._log_gone
        self._held: dict[TopicName, asyncio.Future[bool]] = {}
        """By topic that must not be loaded; the result is whether it was deleted."""

    def held(self, name: TopicName) -> asyncio.Future[bool] | None:
        """Return a future that completes when the topic may be loaded again; None: it may be loaded
        now."""
        return self._held.get(name)

    async def delete(self, name: TopicName, *, is_forced: bool, still: Check | None = None) -> None:
        """Delete a topic with everything that belongs to it.

        Calling this again, or loading the topic, completes an interrupted deletion.

        Args:
            is_forced: disconnect its clients.
            still: raises if the topic is not to be deleted any more. Awaited before its clients are
                disconnected, and before its log is marked.

        Raises:
            TopicNotFoundError: the topic does not exist.
            NotAllowedError: the topic is in use.
            RequestError: another broker owns the topic, or it cannot be deleted now.
            Every error of `still`.
        """
        async with self._held_back(name) as is_gone:
            if is_gone:  # Clients may be waiting to create it anew, for the same end as this.
                raise TopicNotFoundError(f"Topic {name} was deleted by another request")
            if name.is_persistent and not is_forced:
                await self._deletion.check_unused(name)
            await self._delete(name, None if is_forced else check_members, still)

    async def delete_unless_used(self, topic: Topic) -> None:
        """Delete a topic of this broker that is unused.

        Raises:
            NotAllowedError: it was used meanwhile.
            RequestError: it cannot be deleted now.
        """
        async with self._held_back(topic.name):
            if self._table.is_served(topic):
                await self._delete(topic.name, inactivity.check_unused)

    async def check_unused(self, name: TopicName) -> None:
        """Refuse to delete a topic that is in use: loaded here with members, or with subscriptions.

        Raises:
            NotAllowedError, BrokerMetadataError
        """
        topic = self._table.served.get(name)
        if topic is not None:
            check_members(topic)
        if name.is_persistent:
            await self._deletion.check_unused(name)

    async def _log_gone(self, name: TopicName, check: Check) -> None:
        """Forget a topic whose log is deleted, unless it is part of a scalable topic.

        The log of a plain topic that was migrated is a part of a scalable one, which has policies
        and schemas under that name for as long as it lives.

        Raises:
            BrokerMetadataError
        """
        if not await self._is_scalable(name):
            await self.forget(name, check)

    async def forget(self, name: TopicName, check: Check | None = None) -> None:
        """Remove the policies and everything else kept under the name of a deleted topic.

        The topic must be deleted with all its partitions. `check`: raises to leave the rest, which
        is a later topic's.

        Raises:
            BrokerMetadataError
            Every error of `check`.
        """
        await self._policies.remove_topic(name, check)
        for follower in self.followers:
            await follower(name, check)

    @asynccontextmanager
    async def _held_back(self, name: TopicName) -> AsyncIterator[bool]:
        """Prevent other loads of a topic, and wait for a load or close that is running.

        Yields whether another deletion, which ran until now, has deleted the topic.
        """
        is_gone = False
        while (held := self._held.get(name)) is not None:
            await asyncio.wait([held])
            is_gone = is_gone or held.result()
        held = self._held[name] = asyncio.get_running_loop().create_future()
        try:
            if (loading := self._table.loading.get(name)) is not None:
                await asyncio.wait([loading])
            if (closing := self._table.closing.get(name)) is not None:
                await asyncio.wait([closing.task])
            yield is_gone
        finally:
            del self._held[name]
            if not held.done():
                held.set_result(False)

    async def _delete(
        self,
        name: TopicName,
        check: Callable[[Topic], None] | None,
        still: Check | None = None,
    ) -> None:
        """Delete a topic. `check`: a last check, which may refuse a loaded topic. `still`: see
        `delete`."""
        if still is not None:
            await still()
        tenure = await self._ownership.acquire(name, timeout_s=self._acquire_timeout_s)
        topic = self._table.served.get(name)
        if topic is not None:
            if check is not None:
                check(topic)
            self._ends.drop([name], "it is deleted", is_ours=True)
        if (closing := self._table.closing.get(name)) is not None:
            await asyncio.wait([closing.task])
        if not tenure.holds():
            raise ServiceNotReadyError(f"the lease of {name} was lost: ask its next owner")
        if name.is_persistent:
            await self._deletion.mark(name, still)
            await self._deletion.finish(name, tenure.holds)
        elif topic is None:
            raise TopicNotFoundError(f"Topic {name} not found")
        elif name.partition_index < 0:
            await self.forget(name)
        self._held[name].set_result(True)
        for callback in self.on_deleted:
            callback(name)
