"""A feature: an object that adds an optional function to a topic, and the topic's interface to it.

A topic hosts an ordered tuple of features, which is fixed when the topic is opened. Only
`topics/opening.py` knows which features exist; the topic knows none by name. Each method here has a
default that does nothing, so a feature overrides only what it needs.

The order of the tuple is the order of every call below, except for `restore`: features that
subscriptions depend on are restored before subscriptions are opened, the others afterwards.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.broker.cluster.ownership.protocol import Tenure
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.broker.topic.publish_batch import MessageCheck, PublishBatch
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.surroundings import InternalAppend, TopicLog
from magnetar.broker.topic.trim_gate import TrimGate
from magnetar.cursors import Cursor
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.position import Position
from magnetar.sdk.wire import Send, TopicName

Work = Coroutine[object, object, None]
"""Work that `Feature.look` found due."""


class BacklogCursor(Protocol):
    """Interface of a cursor with a backlog. Subscription cursors satisfy it."""

    @property
    def mark_delete(self) -> Position: ...

    @property
    def backlog_entries(self) -> int: ...

    @property
    def is_caught_up(self) -> bool: ...

    def next_unacked(self, position: Position, /) -> Position: ...


class Backlog(Protocol):
    """Entries that a subscription or a feature has not finished with."""

    @property
    def name(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def cursor(self) -> BacklogCursor: ...


class DurableBacklogCursor(BacklogCursor, Protocol):
    """The durable cursor of a feature's backlog."""

    async def persist(self) -> None:
        """Store the state of the cursor.

        Raises:
            CursorError
        """
        ...


class FeatureBacklog(Protocol):
    """A backlog of a feature, under the name of its cursor.

    Quotas that hold producers back count it. It is never evicted, and operators can drop it.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def cursor(self) -> DurableBacklogCursor: ...

    @property
    def what(self) -> str:
        """The pending work in words, such as `copies to cluster west`."""
        ...

    @property
    def expires(self) -> bool:
        """Whether its messages expire like those of subscriptions."""
        ...

    def drop_through(self, through: Position, /) -> int:
        """Drop everything through a position; return the number of entries dropped."""
        ...


class TopicPort(Protocol):
    """A topic as its features see it."""

    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> TopicLog: ...

    @property
    def tenure(self) -> Tenure:
        """The right to serve the topic; checked before anything is sent."""
        ...

    @property
    def policies(self) -> Policies:
        """Effective policies of the topic."""
        ...

    @property
    def visibility(self) -> Visibility:
        """Visible part of the log."""
        ...

    @property
    def gate(self) -> TrimGate:
        """Entered by code that creates a durable cursor, or moves one back (rule 5.2)."""
        ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_leaving(self) -> bool:
        """Whether the topic is closed, or takes no more publishes because it moves."""
        ...

    def append(self, record: InternalAppend, /) -> None:
        """Append entries that the broker itself writes."""
        ...

    def reload(self, reason: str, /) -> None:
        """Drop the topic at once; the next request loads it again."""
        ...

    def reopen(self, reason: str, /) -> None:
        """Close the topic after its publishes are answered and everything is saved; the next
        request loads it again."""
        ...


class Gate(Protocol):
    """Decides about each batch before it goes to the log."""

    def accept(self, batch: PublishBatch, /) -> Iterable[PublishBatch] | None:
        """Decide about a batch.

        Returns:
            None: the batch passes unchanged. Otherwise its parts in order, each with the decision:
            `is_duplicate`, `refusal`, or neither if the part passes.
        """
        ...


class Listener(Protocol):
    """Receives the outcome of each batch, before dispatch and before receipts."""

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int, /) -> None:
        """Handle entries that are durable."""
        ...

    def failed(self, batch: PublishBatch, error: LedgerError, /) -> None:
        """Handle entries that are not stored, or whose outcome is unknown."""
        ...


class Stamp(Protocol):
    """Adds a prefix to each stored entry. A topic has at most one stamp."""

    def published(self, batch: PublishBatch, /) -> AppendBatch:
        """Return what to append for a batch; sets its `prefixes`."""
        ...

    def internal(self, record: InternalAppend, /) -> AppendBatch:
        """Return what to append for entries of the broker's own."""
        ...


@dataclass(frozen=True, slots=True)
class PublishRows:
    """A feature's contribution to the rows of the publish line. Empty ones cost nothing."""

    checks: tuple[MessageCheck, ...] = ()
    """Checks of the metadata of each message."""
    gates: tuple[Gate, ...] = ()
    on_handed: tuple[Callable[[PublishBatch], None], ...] = ()
    """Called with each batch that has passed the gates, right before it goes to the log."""
    stamp: Stamp | None = None
    """Adds a prefix to each entry, after `on_handed`; None: entries are stored as they arrived."""
    listeners: tuple[Listener, ...] = ()
    takes_transactions: Callable[[], bool] | None = None
    """Returns whether messages of transactions may come now. False: the feature is still preparing,
    and the client must send them again. None: the feature has no say.

    Raises:
        NotAllowedError: the topic never takes messages of transactions.
    """
    closes_after_refusal: Callable[[Send], bool] | None = None
    """Returns whether a producer is closed after this message of it was refused. None: the feature
    has no say.

    The client may send that message again, and a second copy must not count as already stored.
    """


NO_ROWS: Final = PublishRows()


class Feature:
    """One optional part of one topic. All methods run on the event loop."""

    reserved_as = ""
    """Description of the topic, if the log belongs to the feature. Clients may not use such a
    topic; trimming and the deletion of unused topics leave it alone. Empty: an ordinary topic."""

    follows: frozenset[str] = frozenset()
    """Policies whose changes call `policies_changed`, including those that its rows depend on."""

    @property
    def is_working(self) -> bool:
        """Whether a long operation runs, apart from looks and requests."""
        return False

    # Life cycle

    async def restore(self) -> None:
        """Restore the stored state, before clients use the topic."""

    def policies_changed(self, before: Policies) -> None:
        """React to a change of one of the policies in `follows`."""

    def look(self) -> Work | None:
        """Check whether something is due; return the work if it takes time."""
        return None

    def shown(self) -> Mapping[str, Any]:
        """Return what statistics show of the feature, under names of its own."""
        return {}

    def cursors(self) -> Iterable[Cursor]:
        """Return the feature's durable cursors, which hold trimming back.

        They close with the topic.
        """
        return ()

    def backlogs(self) -> Iterable[FeatureBacklog]:
        """Return the feature's backlogs, each with one of its durable cursors."""
        return ()

    async def before_trim(self, before: Position, /) -> None:
        """Store what only the ledgers before `before` can tell: they are about to be trimmed.

        Raises:
            LedgerError: it is not stored; no ledger may be trimmed.
        """

    def abandon(self) -> None:
        """Write nothing more: another broker may own the topic."""

    def close(self) -> None:
        """Begin nothing more: the topic is closed."""

    async def stopped(self) -> None:
        """Return when no operation is running; cursors are closed after that."""

    def ending(self) -> Work | None:
        """Return the work of closing what the feature stores beside the log; None if there is
        nothing.

        It runs while the log and the cursors are closed. Most topics of a broker have no such work.
        """
        return None

    def log_grew(self) -> None:
        """Handle a durable entry of the broker's own, such as the end of a transaction.

        It may make more messages visible to readers.
        """

    # Publishing

    def rows(self) -> PublishRows:
        """Return the feature's rows of the publish line.

        A change of a policy in `follows` calls this again.
        """
        return NO_ROWS

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        """Return when a producer of that name may join. `is_transactional`: it will send in
        transactions.

        Raises:
            RequestError, LedgerError: it may not join.
        """

    async def settled(self, producer_name: str) -> None:
        """Return when every message published under that name has a known outcome."""

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the last sequence id of a producer name, after which a new producer continues.

        -1: the feature has no say.
        """
        return -1

    # Subscriptions

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        """Return the dispatch context of a subscription that is being opened, with the feature's
        own parts added."""
        return context

    async def deleted(self, subscription: str) -> None:
        """Drop what the feature keeps of a subscription whose cursor is deleted.

        Raises:
            BrokerPersistenceError: it cannot be dropped.
        """

    def forgotten(self, subscription: str) -> None:
        """Drop what is kept in memory of a subscription that has left the topic."""
