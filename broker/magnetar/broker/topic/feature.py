"""A feature: one object by which a topic can do something more; and what it sees of the topic.

A topic hosts an ordered tuple of features, which is fixed when the topic is opened (`topics/
opening.py`, the only place that knows which there are). The topic knows none of them by name. What
a feature has nothing to say about, it leaves as it is here.

The order of the tuple is the order of everything below, but for `restore`: that of the features
that subscriptions depend on comes before subscriptions are opened, and of the others behind.
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
from magnetar.sdk.wire import TopicName

Work = Coroutine[object, object, None]
"""What a look has found to be done."""


class BacklogCursor(Protocol):
    """What is asked of a cursor that has a backlog; those of subscriptions are such."""

    @property
    def mark_delete(self) -> Position: ...

    @property
    def backlog_entries(self) -> int: ...

    @property
    def is_caught_up(self) -> bool: ...

    def next_unacked(self, position: Position, /) -> Position: ...


class Backlog(Protocol):
    """Entries that a subscription, or a feature, is not done with."""

    @property
    def name(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def cursor(self) -> BacklogCursor: ...


class DurableBacklogCursor(BacklogCursor, Protocol):
    """The durable cursor of a feature's backlog."""

    async def persist(self) -> None:
        """
        Raises:
            CursorError
        """
        ...


class FeatureBacklog(Protocol):
    """A backlog of a feature, by the name of its cursor. It counts against quotas that hold
    producers back, is never evicted, and operators can drop it."""

    @property
    def name(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def cursor(self) -> DurableBacklogCursor: ...

    @property
    def what(self) -> str:
        """The work that the backlog is of, in words, such as `copies to cluster west`."""
        ...

    @property
    def expires(self) -> bool:
        """Whether messages in it expire as in those of subscriptions."""
        ...

    def drop_through(self, through: Position, /) -> int:
        """Be done with everything through a position; returns how many entries that drops."""
        ...


class TopicPort(Protocol):
    """What a feature sees of the topic that hosts it."""

    @property
    def name(self) -> TopicName: ...

    @property
    def log(self) -> TopicLog: ...

    @property
    def tenure(self) -> Tenure:
        """The right to serve the topic: asked before anything leaves."""
        ...

    @property
    def policies(self) -> Policies:
        """What counts now."""
        ...

    @property
    def visibility(self) -> Visibility:
        """What of the log may be read."""
        ...

    @property
    def gate(self) -> TrimGate:
        """Entered by whoever makes a durable cursor, or moves one back (rule 5.2)."""
        ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def is_leaving(self) -> bool:
        """Whether it is closed, or takes no more publishes because it moves."""
        ...

    def append(self, record: InternalAppend, /) -> None:
        """Append entries of the broker's own."""
        ...

    def reload(self, reason: str, /) -> None:
        """Give the topic up at once, and have it loaded again by whoever asks for it."""
        ...

    def reopen(self, reason: str, /) -> None:
        """Have it loaded again, after its publishes are answered and everything is saved."""
        ...


class Gate(Protocol):
    """Decides about each batch, before it is handed to the log."""

    def accept(self, batch: PublishBatch, /) -> Iterable[PublishBatch] | None:
        """None: the batch goes on as it is. Else its parts in order, each with what was decided:
        `is_duplicate`, `refusal`, or neither: it goes on."""
        ...


class Listener(Protocol):
    """Hears of the outcome of each batch, before anything is dispatched or receipted."""

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int, /) -> None:
        """The entries are durable."""
        ...

    def failed(self, batch: PublishBatch, error: LedgerError, /) -> None:
        """The entries are not stored, or nobody can tell."""
        ...


class Stamp(Protocol):
    """Puts something in front of each entry that is stored. A topic has one at most."""

    def published(self, batch: PublishBatch, /) -> AppendBatch:
        """Return what the log is given for a batch, whose `prefixes` are set."""
        ...

    def internal(self, record: InternalAppend, /) -> AppendBatch:
        """Return what the log is given for entries of the broker's own."""
        ...


@dataclass(frozen=True, slots=True)
class PublishRows:
    """What a feature puts into the rows of its topic's publish line. Empty ones cost nothing."""

    checks: tuple[MessageCheck, ...] = ()
    """Look at the metadata of each message."""
    gates: tuple[Gate, ...] = ()
    on_handed: tuple[Callable[[PublishBatch], None], ...] = ()
    """Called with each batch that has passed the gates, right before the log has it."""
    stamp: Stamp | None = None
    """Puts something in front of each entry, behind `on_handed`; None: entries are stored as they
    came."""
    listeners: tuple[Listener, ...] = ()
    takes_transactions: Callable[[], bool] | None = None
    """Whether messages of transactions may come now; if not, that is being prepared, and they have
    to be sent again. None: the feature does not say.

    Raises:
        NotAllowedError: they may never come.
    """
    closes_after_refusal: bool = False
    """Whether a producer is closed after one of its messages was refused: its client may send that
    again, and it must not be taken for one that was stored."""


NO_ROWS: Final = PublishRows()


class Feature:
    """One optional part of one topic. Everything happens on the event loop."""

    reserved_as = ""
    """What the topic is, if its log is the feature's own: clients may not use it, and neither
    trimming nor disuse takes anything away. Empty: it is a topic like others."""

    follows: frozenset[str] = frozenset()
    """The policies of which it is told when they change, and those that its rows go by."""

    @property
    def is_working(self) -> bool:
        """Whether it does something that takes long, beside looks and requests."""
        return False

    # Its life

    async def restore(self) -> None:
        """Take up what is stored, before clients use the topic."""

    def policies_changed(self, before: Policies) -> None:
        """One of the policies that it follows is another one now."""

    def look(self) -> Work | None:
        """Look whether something is due; returns the work, if it takes time."""
        return None

    def shown(self) -> Mapping[str, Any]:
        """What statistics show of it, by names of its own."""
        return {}

    def cursors(self) -> Iterable[Cursor]:
        """Durable cursors of the feature. They hold trimming back, and close with the topic."""
        return ()

    def backlogs(self) -> Iterable[FeatureBacklog]:
        """Backlogs of the feature, each with one of its durable cursors."""
        return ()

    async def before_trim(self) -> None:
        """The oldest ledgers of the log are about to go: store what only they can tell.

        Raises:
            LedgerError: that is not stored; nothing may go.
        """

    def abandon(self) -> None:
        """Write nothing more: somebody else may have the topic."""

    def close(self) -> None:
        """The topic is closed: begin nothing more."""

    async def stopped(self) -> None:
        """Return when nothing is under way; then cursors are closed."""

    def ending(self) -> Work | None:
        """The work of closing what it has beside the log, if it has anything; done while the log
        and cursors are closed. Most topics of a broker have nothing there."""
        return None

    def log_grew(self) -> None:
        """An entry of the broker's own is durable, such as the end of a transaction: readers may
        see more now."""

    # Publishing

    def rows(self) -> PublishRows:
        """What it does to publishes now. A change of a policy in `follows` asks again."""
        return NO_ROWS

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        """Return when a producer of that name may join. `is_transactional`: it will send in
        transactions.

        Raises:
            RequestError, LedgerError: it may not.
        """

    async def settled(self, producer_name: str) -> None:
        """Return when no message that was published under that name is undecided."""

    def last_sequence_id(self, producer_name: str) -> int:
        """From which a new producer of that name goes on; -1: it does not say."""
        return -1

    # Subscriptions

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        """A subscription is being opened: what its dispatchers work on, with what is ours."""
        return context

    async def deleted(self, subscription: str) -> None:
        """The cursor of a subscription is gone for good.

        Raises:
            BrokerPersistenceError: what is kept of it cannot be dropped.
        """

    def forgotten(self, subscription: str) -> None:
        """A subscription is no more there."""
