"""Operator actions on a topic's subscriptions and data (create, reset, skip, truncate) and on its
clients (disconnect).

Each action is durable when it returns, or as durable as an acknowledgement. Resetting and clearing
close the subscription's consumers, which reconnect at the new position by themselves.

Actions that drop a backlog also take the name of a feature's backlog, such as `pulsar.repl.west`:
the messages not yet copied to cluster west. Other actions do not treat it as a subscription.

Source: HTTP sheet, sections 9.1 and 9.3.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    NotAllowedError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
)
from magnetar.broker.features.retention import trimming
from magnetar.broker.features.retention.expiry import Expirable, advance
from magnetar.broker.topic import Topic
from magnetar.broker.topic.positions import position_at_time
from magnetar.broker.topic.subscription import REPLICATED_PROPERTY, Subscription
from magnetar.broker.topics import Topics
from magnetar.broker.topics.inspecting import nth_unacked
from magnetar.cursors import Cursor, CursorError
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.position import LATEST, Position

UNREADABLE_ENTRIES_MAX = 10_000
"""Most entries that one call skips as unreadable; each is read first."""


def subscription_of(topic: Topic, name: str) -> Subscription:
    """Return a durable subscription of the topic.

    Raises:
        SubscriptionNotFoundError
    """
    subscription = topic.subscriptions.get(name)
    if subscription is None or not subscription.is_open or not subscription.is_durable:
        raise SubscriptionNotFoundError(f"Subscription {name} of {topic.name} not found")
    return subscription


async def is_there(topic: Topic, name: str) -> bool:
    """Whether the topic has a subscription; waits for one that is being created."""
    subscription = topic.subscriptions.get(name)
    if subscription is not None and not subscription.is_open:
        async with subscription.lock:
            pass
    return name in topic.subscriptions


def check_subscription_alone(topic: Topic, name: str) -> None:
    """Refuse the name of a feature's backlog where a subscription is required.

    Raises:
        NotAllowedError
    """
    found = topic.feature_backlogs().get(name)
    if found is not None:
        raise NotAllowedError(
            f"{name} of {topic.name} is no subscription: it is the backlog of {found.what}, which "
            "goes when the topic's policies name that cluster no more"
        )


def backlog_of(topic: Topic, name: str) -> Expirable:
    """Return a durable subscription of the topic, or the backlog of a feature.

    Raises:
        SubscriptionNotFoundError
    """
    found = topic.feature_backlogs().get(name)
    return found if found is not None else subscription_of(topic, name)


async def create_subscription(
    topics: Topics,
    topic: Topic,
    name: str,
    first: Position,
    properties: Mapping[str, str],
    words: Sequence[int] = (),
    *,
    is_replicated: bool = False,
) -> None:
    """Create a durable subscription that begins at `first`, which may be EARLIEST or LATEST.

    Its cursor gets everything in one write. If a second step failed, a retry would find the
    subscription created, and never make up for that step.

    Raises:
        NotAllowedError: there is one of that name.
        RequestError
    """
    naming.check_subscription(name)
    if name in topic.subscriptions or name in topic.internal_cursors:
        raise NotAllowedError(f"Subscription {name} of {topic.name} already exists")
    open_cursor = partial(
        topics.open_cursor,
        topic,
        topics.log_of(topic),
        name,
        first,
        dict(properties),
        {REPLICATED_PROPERTY: 1} if is_replicated else None,
        initial_words=words,
    )
    await topic.subscriptions.ensure(name, open_cursor)


def disconnect_consumers(topic: Topic, subscription: str, *, name: str, address: str) -> int:
    """Close the matching consumers of a subscription, and return their number.

    Their clients get CLOSE_CONSUMER and reconnect. Messages that they had not acknowledged are
    delivered again. An empty name or address matches all.
    """
    found = topic.subscriptions.get(subscription)
    if found is None or not found.is_open:
        return 0
    leaving = [
        each
        for each in found.consumers
        if name in ("", each.name) and address in ("", each.peer.address)
    ]
    for consumer in leaving:
        found.disconnect(consumer)
    return len(leaving)


def disconnect_producers(topic: Topic, *, name: str, address: str) -> int:
    """Close the matching producers of a topic, and return their number.

    Their clients get CLOSE_PRODUCER, reconnect, and send again what has no receipt. An empty name
    or address matches all.
    """
    leaving = [
        each
        for each in topic.producers.values()
        if name in ("", each.name) and address in ("", each.peer.address)
    ]
    for producer in leaving:
        producer.close_by_broker()
    return len(leaving)


async def reset(subscription: Subscription, first: Position, words: Sequence[int] = ()) -> None:
    """Move the subscription to `first`; ack_set words mark indexes of that entry as acknowledged.

    Raises:
        UnknownFailureError: the new position could not be stored.
    """

    async def find() -> tuple[Position, Sequence[int]]:
        return first, words

    await subscription.seek(None, find)


async def reset_to_time(topic: Topic, subscription: Subscription, publish_time_ms: int) -> None:
    """Move the subscription to the first entry published at or after the time.

    Raises:
        UnknownFailureError: the new position could not be stored.
        BrokerPersistenceError: it could not be found.
    """

    async def find() -> tuple[Position, Sequence[int]]:
        return await position_at_time(topic.log, publish_time_ms), ()

    try:
        await subscription.seek(None, find)
    except LedgerError as error:
        raise BrokerPersistenceError(
            f"subscription {subscription.name} of {topic.name}: the position was not found: {error}"
        ) from error


async def skip_all(topic: Topic, backlog: Expirable) -> None:
    """Drop the whole backlog.

    Raises:
        UnknownFailureError, RequestError: the new position could not be stored.
    """
    if isinstance(backlog, Subscription):
        await reset(backlog, LATEST)
    else:
        backlog.drop_through(topic.log.last_confirmed)
        await persist(backlog)


async def skip(topic: Topic, subscription: Expirable, entries: int) -> int:
    """Drop the oldest `entries` unacknowledged entries; return how many were dropped.

    Raises:
        ServiceNotReadyError: the topic was closed meanwhile.
        BrokerPersistenceError: the change could not be stored; a crash undoes it.
    """
    count = min(entries, subscription.cursor.backlog_entries)
    position = await nth_unacked(topic, subscription, count) if count else None
    if position is None:
        return 0
    if isinstance(subscription, Subscription):
        dropped = advance(subscription, position)
    else:
        dropped = subscription.drop_through(position)
    await persist(subscription)
    return dropped


async def skip_unreadable(topic: Topic, subscription: Subscription) -> int:
    """Acknowledge exactly the entries at which a failed read stands; return how many.

    They end at the first entry that can be read, and after `UNREADABLE_ENTRIES_MAX` in any case.
    Entries whose bookies are only down count as unreadable, too: restart those bookies first.

    Raises:
        NotAllowedError: no read has failed, or one of the compacted ledger. Its entries are not
            skipped: that would acknowledge entries of the log by what the log can read.
        ServiceNotReadyError: the topic was closed meanwhile.
        BrokerPersistenceError: the change could not be stored; a crash undoes it.
    """
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    found = None if dispatcher is None else dispatcher.unreadable
    if dispatcher is None or found is None:
        raise NotAllowedError(
            f"subscription {subscription.name} of {topic.name} has no unreadable entry to skip: "
            "whyIdle in its statistics says what it waits for"
        )
    if dispatcher.source.is_view_unreadable:
        raise NotAllowedError(
            f"subscription {subscription.name} of {topic.name} reads the compacted ledger of the "
            f"topic, whose entries are not skipped: {found[1]}. Restart its bookies, reset the "
            "subscription to a later message, or read without the compacted view"
        )
    position, skipped = found[0], 0
    if cursor.is_acked(position):
        position = cursor.next_unacked(position)
    while skipped < UNREADABLE_ENTRIES_MAX and position <= topic.log.last_confirmed:
        try:
            await topic.log.read_range(position, entries_max=1, bytes_max=1)
            break
        except (LogFencedError, LogClosedError) as error:
            raise ServiceNotReadyError(f"{topic.name} is closing: try again") from error
        except LedgerError:
            cursor.ack_range(position.ledger_id, position.entry_id, position.entry_id)
            dispatcher.forget(position)
            skipped += 1
            position = cursor.next_unacked(position)
    if skipped:
        subscription.moved()
        subscription.wake()
        await persist(subscription)
    return skipped


async def persist(subscription: Expirable) -> None:
    """Store the advanced position.

    Raises:
        ServiceNotReadyError: the topic was closed meanwhile, and nothing was advanced.
        BrokerPersistenceError
    """
    is_closing = (
        subscription.is_closed
        if isinstance(subscription, Subscription)
        else not subscription.is_open
    )
    if is_closing:
        raise ServiceNotReadyError(f"subscription {subscription.name} is closing: try again")
    try:
        await subscription.cursor.persist()
    except CursorError as error:
        raise BrokerPersistenceError(
            f"subscription {subscription.name}: the new position is not stored: {error}"
        ) from error


async def set_properties(subscription: Subscription, properties: Mapping[str, str]) -> None:
    """Replace the subscription's properties.

    Raises:
        BrokerPersistenceError
    """
    cursor = subscription.cursor
    assert isinstance(cursor, Cursor), "durable subscriptions have durable cursors"
    try:
        await cursor.set_properties(properties)
    except CursorError as error:
        raise BrokerPersistenceError(
            f"the properties of subscription {subscription.name} are not stored: {error}"
        ) from error


async def trim(topic: Topic) -> int:
    """Trim at once, by the topic's retention; return the number of trimmed ledgers.

    Raises:
        BrokerPersistenceError
    """
    return await _trim(topic, truncates=False)


async def truncate(topic: Topic) -> int:
    """Drop the backlog of every durable subscription and feature, and all data, even within the
    retention.

    Messages that are not yet copied to another cluster are dropped, too, as by Pulsar's brokers:
    otherwise their ledgers would stay. Return the number of trimmed ledgers. The last ledger of a
    topic without publishes since it was loaded stays until the next publish.

    Raises:
        RequestError
    """
    for subscription in list(topic.subscriptions.values()):
        if subscription.is_durable and subscription.is_open:
            await skip_all(topic, subscription)
    for backlog in topic.feature_backlogs().values():
        if backlog.is_open:
            await skip_all(topic, backlog)
    try:
        await topic.log.rotate()
        await topic.log.rotate()  # Nothing to rotate: waits until the previous one is closed.
    except LedgerError as error:
        raise BrokerPersistenceError(f"{topic.name} is not truncated: {error}") from error
    return await _trim(topic, truncates=True)


async def _trim(topic: Topic, *, truncates: bool) -> int:
    try:
        return await trimming.trim(topic, truncates=truncates)
    except (CursorError, LedgerError) as error:
        raise BrokerPersistenceError(f"{topic.name} is not trimmed: {error}") from error
