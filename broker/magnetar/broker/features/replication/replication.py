"""Replication of one topic: one sender for each other cluster that its policies name.

The durable cursors are opened with the topic, before anything can be trimmed, whatever the policies
are by then. A cursor is deleted when policies were read that name other clusters, but no longer
this one (rules 2.1, 2.2). The policies that a topic is opened with may be older than the cursor, so
they are read again before a cursor is deleted that was found then. Copied messages stay in the
other cluster.

A cluster that comes into the policies of a loaded topic gets its cursor before anything more is
stored: publishes are held until then. Otherwise the topic could move, and its next owner would not
know which of the messages without a cursor were published for that cluster. Only the metadata store
of this cluster is needed for a cursor. If it cannot be created for so long as a topic may take to
load, publishing goes on: until the cursor exists, only this broker knows where copying begins.

The life of the log (its *incarnation*) is a random number in the log's properties, written before
the first cursor. With it, the other cluster does not take a log that was created anew for the
former one.

Source: geo-replication sheet, sections 2, 4 and 18.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.naming import REPLICATOR_PREFIX
from magnetar.broker.features.replication.dropped import dropped_in
from magnetar.broker.features.replication.names import cursor_name
from magnetar.broker.features.replication.partitions import have_partitions
from magnetar.broker.features.replication.remotes import RemoteClusters
from magnetar.broker.features.replication.sending import Sending, SendingSurroundings, TailedTopic
from magnetar.broker.features.replication.subscriptions import ReplicatedSubscriptionsSurroundings
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import (
    Feature,
    FeatureBacklog,
    PublishBatch,
    PublishRows,
    Work,
)
from magnetar.broker.topic.dispatch.throttle import Published
from magnetar.broker.topic.use import TopicUse
from magnetar.cursors import Cursor, CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.sdk.errors import SdkError
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

INCARNATION_PROPERTY: Final = "magnetar.geo.incarnation"
"""Property of the topic's log that holds its incarnation, a number from 1."""

START_PROPERTY: Final = "magnetar.geo.start"
"""Property of a cluster's cursor: the last entry before the copied ones, `ledger:entry`. Without
it, all entries are copied."""

_INCARNATION_BITS: Final = 62

SETTLE_S_MAX: Final = 50.0
"""Longest time, in seconds, that an unused topic stays loaded for its copies before other topics
have their turn."""

SPREAD_S_MAX: Final = 5.0
"""Longest time, in seconds, that creating a partitioned topic waits for other clusters to have
it."""


_CHANGES_AT_ONCE: Final = 64
"""Cursors of all topics that are created or deleted at once after lists have changed. A namespace
may have thousands of topics: their requests would hold up those of everything else."""


@dataclass(frozen=True, slots=True)
class ReplicationSurroundings:
    """The objects that all replications of a broker share."""

    remotes: RemoteClusters
    sending: SendingSurroundings
    random: random.Random
    starts_at_earliest: bool
    """Whether a cluster that is new among the policies also gets what a topic already has."""
    subscriptions: ReplicatedSubscriptionsSurroundings
    senders: set[Sending] = field(default_factory=set)
    """Running senders."""
    changes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CHANGES_AT_ONCE))
    """Bounds what topics do at once when their lists have changed."""

    async def spread_partitions(self, topic: TopicName, clusters: Iterable[str]) -> str:
        """Create a partitioned topic of this cluster in others, with as many partitions, at once.

        A replicator does this as well, before it copies; but an unused topic has no replicator.

        Returns:
            The failures in words; empty if all clusters have the topic.
        """
        around = self.sending
        if not around.settings.replication_creates_partitions or not topic.is_persistent:
            return ""

        async def spread(cluster: str) -> str:
            try:
                async with asyncio.timeout(SPREAD_S_MAX):
                    here = await around.partitions_of(topic)
                    remote = self.remotes.cluster(cluster)
                    await have_partitions(topic, here, remote, may_create=True)
            except (SdkError, RequestError, TimeoutError) as error:
                reason = str(error) or f"no answer within {SPREAD_S_MAX:g} s"
                _log.warning(
                    "partitions_not_spread", topic=str(topic), cluster=cluster, reason=reason
                )
                return f"not in cluster {cluster} yet: {reason}"
            return ""

        others = [each for each in clusters if each != around.cluster]
        return "; ".join(filter(None, await asyncio.gather(*map(spread, others))))


class ReplicatedTopic(TailedTopic, Protocol):
    """A topic as its replication needs it."""

    @property
    def use(self) -> TopicUse: ...


class Replication(Feature):
    """Copies of one topic of this broker to all other clusters."""

    def __init__(
        self,
        topic: ReplicatedTopic,
        log: ManagedLog,
        around: ReplicationSurroundings,
        *,
        stored_cursors: Callable[[], Awaitable[Sequence[str]]],
        open_cursor: Callable[[str, Position, dict[str, str]], Awaitable[Cursor]],
        read_policies: Callable[[], Awaitable[Policies]],
        changed: Callable[[], None],
        published: Published,
        hold: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Create the feature.

        Args:
            stored_cursors: returns the names of the topic's durable cursors.
            open_cursor: opens the cursor of a name, or creates it at a position, with properties.
            read_policies: returns the topic's policies as they are stored now.
            changed: called when the rows of the publish line change.
            published: returns the messages and bytes published to the topic so far.
            hold: keeps publishes from being stored until `release`.
        """
        self._topic = topic
        self._log = log
        self._around = around
        self._stored_cursors = stored_cursors
        self._open_cursor = open_cursor
        self._read_policies = read_policies
        self._changed = changed
        self._published = published
        self._hold = hold
        self._release = release
        self._deadline: asyncio.TimerHandle | None = None
        """Releases publishes even if a cluster still has no cursor; None: they are not held."""
        self._retry: asyncio.TimerHandle | None = None
        self._doubtful: set[str] = set()
        """Clusters whose cursor is being deleted, or may be deleted: the answer was lost. Nothing
        is copied by such a cursor, as what it saves would be fenced."""
        self._cursors: dict[str, Cursor] = {}
        """Cursors by cluster."""
        self._unsure: set[str] = set()
        """Clusters whose cursor was found when the topic was opened, and that the policies did not
        name: a former owner may have known later policies."""
        self._senders: dict[str, Sending] = {}
        """Senders by cluster."""
        self._starts: dict[str, Position] = {}
        """Last entry when a cluster came into the policies, for clusters without a cursor: messages
        published while it is created are copied."""
        self._applying: asyncio.Task[None] | None = None
        self._is_closed = False

    # Life cycle

    async def restore(self) -> None:
        """Open the stored cursors, before anything is trimmed, and create the missing ones.

        Each cluster in the policies gets its cursor before anything is published: entries before
        the cursor are not copied.

        Raises:
            LedgerError, CursorError: a cursor cannot be opened or created now.
        """
        for name in await self._stored_cursors():
            if name.startswith(REPLICATOR_PREFIX):
                remote = name.removeprefix(REPLICATOR_PREFIX)
                self._cursors[remote] = await self._open_cursor(name, LATEST, {})
        self._unsure = set(self._cursors) - self._wanted()
        for remote in sorted(self._wanted()):
            await self._begin(remote)
        self._apply_soon()

    follows = frozenset({"replicated_to", "replicator_dispatch_rate"})

    def policies_changed(self, before: Policies) -> None:
        for each in self._senders.values():
            each.policies_changed()
        if self._topic.policies.replicated_to != before.replicated_to:
            self._note_starts()
            if self._look_released() and self._lacks_cursors() and not self._is_closed:
                # A timer: a look, or a call to the metadata store, may come too late for clients.
                patience_s = self._around.sending.settings.topic_load_timeout_ms / 1000
                loop = asyncio.get_running_loop()
                self._deadline = loop.call_later(patience_s, self._on_deadline)
                self._hold()
            self._apply_soon()

    def look(self) -> Work | None:
        """Retry changes that failed when the policies changed, and check the senders.

        A topic that was loaded only for upkeep stays loaded until its copies are stored there.
        """
        self._look_released()
        self._apply_soon()
        for each in self._senders.values():
            each.look()
        if self._topic.use.is_asked_for:
            return None
        behind = [each for each in self._senders.values() if each.cursor.backlog_entries]
        return self._settle(behind) if behind else None

    async def _settle(self, senders: Sequence[Sending]) -> None:
        """Return when the copies are stored there, or stuck, or after `SETTLE_S_MAX`.

        A later look continues.
        """
        settling = [asyncio.ensure_future(each.settle()) for each in senders]
        try:
            await asyncio.wait(settling, timeout=SETTLE_S_MAX)
        finally:
            for each in settling:
                each.cancel()

    def _note_starts(self) -> None:
        last, wanted = self._log.last_confirmed, self._wanted()
        self._starts = {name: self._starts.get(name, last) for name in wanted}

    def _wanted(self) -> set[str]:
        here = self._around.sending.cluster
        return {name for name in self._topic.policies.replicated_to if name != here}

    def _lacks_cursors(self) -> bool:
        """Whether a cluster in the policies has no cursor, or none that will stay."""
        return not self._wanted() <= self._cursors.keys() - self._doubtful

    def _look_released(self) -> bool:
        """Release the publishes that are held if they may be; return whether none are held."""
        if self._deadline is None:
            return True
        if self._lacks_cursors():
            return False
        self._deadline.cancel()
        self._deadline = None
        self._release()
        return True

    def _on_deadline(self) -> None:
        if not self._look_released():
            _log.warning("publishes_not_held_for_replication", topic=str(self._topic.name))
            self._deadline = None
            self._release()

    def _apply_soon(self) -> None:
        is_as_wanted = self._wanted() == set(self._senders) == set(self._cursors)
        is_busy = self._applying is not None and not self._applying.done()
        if not (is_as_wanted or is_busy or self._is_closed):
            self._applying = asyncio.get_running_loop().create_task(
                self._apply(), name=f"replication-policies-{self._topic.name}"
            )

    async def _apply(self) -> None:
        while True:
            wanted = self._wanted()
            for remote in sorted(wanted - set(self._senders)):
                await self._change(remote, self._begin)
            self._look_released()
            for remote in sorted(set(self._cursors) - wanted):
                await self._change(remote, self._end)
            if self._is_closed or self._wanted() == wanted:
                break  # otherwise the policies have changed meanwhile
        if not (self._look_released() or self._is_closed):
            retry_s = self._around.sending.settings.topic_load_retry_ms / 1000
            self._retry = asyncio.get_running_loop().call_later(retry_s, self._apply_soon)

    async def _change(self, remote: str, change: Callable[[str], Awaitable[None]]) -> None:
        """Change the copying to one cluster; a failure does not hold up the other clusters."""
        try:
            async with self._around.changes:
                await change(remote)
        except (LedgerError, CursorError, RequestError) as error:
            # The next look retries; sooner, and more often, while publishes are held.
            tell = _log.warning if self._deadline is None else _log.debug
            tell(
                "replication_not_changed",
                topic=str(self._topic.name),
                cluster=remote,
                error=str(error),
            )

    async def _begin(self, remote: str) -> None:
        incarnation = await self._make_incarnation()
        if remote in self._doubtful:
            await self._delete_cursor(remote)
        cursor = self._cursors.get(remote)
        if cursor is None:
            async with self._topic.gate.placing():
                cursor = await self._make_cursor(remote)
            self._cursors[remote] = cursor
        if self._is_closed or remote in self._senders:
            return  # changed policies have started it meanwhile
        sender = Sending(
            self._topic,
            self._log,
            cursor,
            self._around.remotes.cluster(remote),
            self._around.sending,
            incarnation=incarnation,
            published=self._published,
        )
        self._senders[remote] = sender
        self._around.senders.add(sender)
        self._changed()
        sender.start()
        _log.info("replication_begun", topic=str(self._topic.name), cluster=remote)

    async def _make_cursor(self, remote: str) -> Cursor:
        """Create the cursor of a new cluster, and record where copying to it begins."""
        last = self._starts.get(remote, self._log.last_confirmed)
        if self._around.starts_at_earliest or last < self._log.first_position():
            return await self._open_cursor(cursor_name(remote), EARLIEST, {})
        behind = Position(last.ledger_id, last.entry_id + 1)
        return await self._open_cursor(cursor_name(remote), behind, {START_PROPERTY: str(last)})

    def is_copied(self, remote: str, position: Position) -> bool:
        """Whether an entry is copied to a cluster: after the start of copying, and not dropped."""
        cursor = self._cursors.get(remote)
        dropped = dropped_in(cursor.position_properties) if cursor is not None else None
        if dropped is not None and position in dropped:
            return False
        return position > self._not_copied_through(cursor)

    def _not_copied_through(self, cursor: Cursor | None) -> Position:
        """Return the last entry before the copied ones; `EARLIEST` if all are copied."""
        text = cursor.properties.get(START_PROPERTY, "") if cursor is not None else ""
        ledger_id, _, entry_id = text.partition(":")
        if not (ledger_id.isdecimal() and entry_id.isdecimal()):
            return EARLIEST
        return Position(int(ledger_id), int(entry_id))

    async def _end(self, remote: str) -> None:
        """Stop copying; delete the cursor if policies were read that name only other clusters."""
        sender = self._senders.pop(remote, None)
        if sender is not None:
            self._close(sender)
            await sender.stopped()
            self._changed()
        if remote in self._unsure:
            now = await self._read_policies()
            if remote in now.replicated_to:
                return  # The topic learns of it, too.
            self._unsure.discard(remote)
        lists_others = bool(self._topic.policies.replicated_to) and remote not in self._wanted()
        if lists_others and not self._is_closed:
            await self._delete_cursor(remote)

    async def _delete_cursor(self, remote: str) -> None:
        self._doubtful.add(remote)
        await self._cursors[remote].delete()
        # Only now: while it may be stored, a look finds it here and deletes it.
        del self._cursors[remote]
        self._doubtful.discard(remote)
        _log.info("replication_ended", topic=str(self._topic.name), cluster=remote)

    async def _make_incarnation(self) -> int:
        found = self.incarnation()
        if found:
            return found
        new = self._around.random.getrandbits(_INCARNATION_BITS) + 1
        await self._log.update_properties({INCARNATION_PROPERTY: str(new)})
        return new

    def cursors(self) -> Iterable[Cursor]:
        return self._cursors.values()

    def backlogs(self) -> Iterable[FeatureBacklog]:
        return self._senders.values()

    def close(self) -> None:
        """Start no task, and stop all senders."""
        self._is_closed = True
        for timer in (self._retry, self._deadline):
            if timer is not None:
                timer.cancel()
        if self._applying is not None:
            self._applying.cancel()
        for each in self._senders.values():
            self._close(each)

    def _close(self, sender: Sending) -> None:
        self._around.senders.discard(sender)
        sender.close()

    def abandon(self) -> None:
        self.close()

    async def stopped(self) -> None:
        if self._applying is not None:
            await asyncio.wait([self._applying])
        for each in self._senders.values():
            await each.stopped()

    def log_grew(self) -> None:
        for each in self._senders.values():
            each.on_stored()

    def sessions(self) -> Mapping[str, int]:
        """Return a number for the present connection to each cluster that the topic is copied to.

        No other connection to that cluster had the number. 0: there is no connection.
        """
        known = self._senders
        return {name: known[name].since_ms if name in known else 0 for name in self._wanted()}

    def takes_acks(self) -> bool:
        """Whether a connected cluster takes single acknowledgements."""
        return any(each.takes_acks for each in self._senders.values())

    def incarnation(self) -> int:
        """Return the incarnation of the log; 0 if nothing was ever copied from it."""
        found = self._log.properties.get(INCARNATION_PROPERTY, "")
        return int(found) if found.isdecimal() else 0

    # Publishing

    def rows(self) -> PublishRows:
        return PublishRows(listeners=(self,)) if self._senders else PublishRows()

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Wake the senders: the log has new entries."""
        for each in self._senders.values():
            each.on_stored()

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """Do nothing: entries that are not stored are not copied."""

    # Shown

    def shown(self) -> Mapping[str, Any]:
        if not self._senders:
            return {}
        return {"replication": {name: each.shown() for name, each in self._senders.items()}}
