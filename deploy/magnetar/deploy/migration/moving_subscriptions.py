"""Subscriptions: read at the source, set at the target, and compared.

Nothing at the source changes but its redelivery counts: a consumer that reads a backlog
acknowledges nothing. No other consumer may be connected meanwhile.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.deploy.admin_client import RequestRefusedError, topic_path
from magnetar.deploy.errors import BrokerUnreachableError, MigrationDiffersError
from magnetar.deploy.migration.entries import Credit
from magnetar.deploy.migration.positions import EntryRange, PositionMap
from magnetar.deploy.migration.raw_clients import RawConsumer
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.sides import Side, is_refusal, subscription_path
from magnetar.deploy.migration.subscriptions import (
    HOLD,
    Moved,
    Seen,
    SubscriptionState,
    Told,
    expected_open,
    is_told_by_statistics,
    told_by,
)
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import TopicName

LOOK_BYTES_MAX: Final = 8 << 20
"""About how many bytes of a backlog may be in memory while it is read."""
LOOK_IDLE_S: Final = 2.0
"""Seconds without a message after which the cluster is asked how much of the backlog is left. A
subscription with incomplete statistics, and with its last entries acknowledged, takes at least this
long."""
LOOK_TRIES: Final = 30
"""Most such questions in a row before the read fails."""
_STATS: Final = {"getPreciseBacklog": "true", "subscriptionBacklogSize": "false"}


@dataclass(frozen=True, slots=True)
class Part:
    """A topic or partition, and the position map of its copies."""

    topic: TopicName
    copied: PositionMap


async def subscriptions_at(side: Side, topic: TopicName) -> Mapping[str, Told]:
    """Return what a cluster reports about a topic's subscriptions, by name. While it loads the
    topic, it may report none.

    Raises:
        BrokerUnreachableError: it does not answer, or with a part only.
    """
    return await _told_at(side, topic, await _stats(side, topic))


async def subscriptions_to_move(source: Side, topic: TopicName) -> Mapping[str, Told]:
    """Return what the source reports about all of a topic's subscriptions, by name.

    Raises:
        BrokerUnreachableError: it does not answer, or does not list them just now.
    """
    stats = await _stats(source, topic)
    if HOLD not in (stats.get("subscriptions") or {}):
        # The copy has just used that one: an answer without it lacks others, too.
        raise BrokerUnreachableError(
            f"{topic}: the {source.what} does not list the topic's subscriptions just now: check "
            "that the topic can be consumed, and repeat the command"
        )
    return await _told_at(source, topic, stats)


async def _stats(side: Side, topic: TopicName) -> Mapping[str, Any]:
    return await side.get(f"{topic_path(topic)}/stats", _STATS) or {}


async def _told_at(side: Side, topic: TopicName, stats: Mapping[str, Any]) -> Mapping[str, Told]:
    internal = await side.get(f"{topic_path(topic)}/internalStats") or {}
    try:
        return {each.state.name: each for each in told_by(stats, internal)}
    except BrokerUnreachableError as error:
        raise BrokerUnreachableError(f"{topic} at the {side.what}: {error}") from error


async def state_at_source(
    source: Side, part: Part, told: Told, *, keeps_parts: bool
) -> SubscriptionState:
    """Return the complete state of a subscription at the source.

    Raises:
        SdkError, DeployError: it cannot be read now.
    """
    if is_told_by_statistics(told, part.copied, keeps_parts=keeps_parts):
        return told.state
    last = part.copied.last
    return await _looked(source, part.topic, told, EARLIEST if last is None else last.source)


async def _looked(side: Side, topic: TopicName, told: Told, end: Position) -> SubscriptionState:
    """Return the state of a subscription after its backlog was read.

    Entries that were not delivered count as acknowledged only if the statistics do not list all
    acknowledged ranges. If they do, reading adds the acknowledged messages of batches alone; a
    count of the backlog that is wrong then shows in the comparison.
    """
    seen = await look(side, topic, told, end)
    if told.is_complete:
        return replace(told.state, parts=seen.parts)
    return replace(told.state, acked=seen.acked(end), parts=seen.parts, backlog=seen.entries)


async def look(side: Side, topic: TopicName, told: Told, end: Position) -> Seen:
    """Read a backlog, and acknowledge nothing.

    Args:
        end: position of the last entry of the topic.

    Raises:
        SdkError, DeployError: it cannot be read to its end.
    """
    state = told.state
    seen = Seen(state.mark)
    news = asyncio.Event()
    connection = await side.connection_for(topic)
    consumer = RawConsumer(connection, side.next_id(), news.set)
    await consumer.attach(topic, state.name)
    credit = Credit(LOOK_BYTES_MAX)
    backlog, tries = state.backlog, 0
    position = state.mark
    try:
        while True:
            news.clear()
            consumer.check()
            while consumer.has_entries:
                entry = consumer.take()
                position, tries = max(position, entry.position), 0
                credit.received(entry.messages, len(entry.payload))
                credit.done(entry.messages)
                seen.saw(entry.position, entry.words, entry.messages)
            if position >= end or (told.is_complete and seen.entries >= backlog):
                return seen
            asked = credit.ask()
            if asked:
                consumer.flow(asked)
            if not await _happened(news, LOOK_IDLE_S):
                tries += 1
                now = (await subscriptions_at(side, topic)).get(state.name)
                if now is not None:  # a broker that loads the topic may list no subscription
                    backlog = now.state.backlog
                    # The count alone is no proof: it may be too low while entries are on their way.
                    if seen.entries >= backlog and not consumer.has_entries:
                        return seen
                if tries > LOOK_TRIES:
                    raise MigrationDiffersError(
                        f"{topic}: the {side.what} has delivered {seen.entries} of {backlog} "
                        f"entries of subscription {state.name}, then nothing more: check "
                        "whether a consumer receives them, then repeat --cut-over"
                    )
    finally:
        await consumer.close()


async def _happened(news: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await news.wait()
    except TimeoutError:
        return False
    return True


async def set_at_target(
    target: Side, topic: TopicName, state: SubscriptionState, wanted: Moved
) -> None:
    """Create or reset a subscription at the target, in the state that it has at the source.

    Raises:
        SdkError, DeployError: it cannot be set now.
    """
    mark = wanted.mark
    place: dict[str, object] = {
        "ledgerId": -1 if mark is None else mark.ledger_id,
        "entryId": -1 if mark is None else mark.entry_id,
        "partitionIndex": topic.partition_index,
        "isExcluded": mark is not None,
    }
    path = subscription_path(topic, state.name)
    query = {"replicated": "true"} if state.is_replicated else None
    is_new = await target.create(path, {**place, "properties": dict(state.properties)}, query)
    if not is_new:
        await _reset(target, topic, state.name, path, place)
    if not wanted.acked and not wanted.parts:
        return
    news = asyncio.Event()
    consumer = RawConsumer(await target.connection_for(topic), target.next_id(), news.set)
    await consumer.attach(topic, state.name)
    try:
        await consumer.acknowledge(
            (
                Position(each.ledger_id, entry_id)
                for each in wanted.acked
                for entry_id in range(each.first, each.last + 1)
            ),
            wanted.parts.items(),
        )
    finally:
        await consumer.close()


async def _reset(
    target: Side, topic: TopicName, name: str, path: str, place: Mapping[str, object]
) -> None:
    told = (await subscriptions_at(target, topic)).get(name)
    if told is None:
        raise BrokerUnreachableError(
            f"{topic}: the target has subscription {name} but does not list it just now, so it may "
            "have consumers: check that the topic can be consumed there, and repeat the command"
        )
    if told.consumers:
        raise MigrationDiffersError(
            f"{topic}: subscription {name} is in use at the target already, by "
            f"{', '.join(told.consumers)}: disconnect its consumers until the cut-over is done"
        )
    try:
        await target.ask("POST", f"{path}/resetcursor", dict(place))
    except RequestRefusedError as error:
        if not is_refusal(error, 412):
            raise
        raise MigrationDiffersError(
            f"{topic}: subscription {name} cannot be reset at the target: {error}"
        ) from error


async def compare_subscription(
    target: Side, part: Part, state: SubscriptionState, wanted: Moved, report: Report
) -> None:
    """Read the subscription's state at the target, and compare it.

    Raises:
        SdkError, DeployError: it cannot be read now.
    """
    label = f"{part.topic} {state.name}"
    told = (await subscriptions_at(target, part.topic)).get(state.name)
    report.compare("subscription", label, True, told is not None, "whether it exists")
    if told is None:
        return
    found = told.state
    if wanted.parts or not told.is_complete:
        last = part.copied.last
        found = await _looked(target, part.topic, told, EARLIEST if last is None else last.target)
    expected = expected_open(wanted, part.copied)
    backlog = sum(each.entries for each in expected)
    report.compare("backlog", label, backlog, found.backlog, "entries")
    there = part.copied.open_ranges(found.mark, found.acked)
    if state.backlog > backlog:
        report.notes.append(
            f"{label}: the source counts {state.backlog} entries of backlog; "
            f"{state.backlog - backlog} of them are no messages, or were acknowledged meanwhile"
        )
    elif state.backlog < backlog:
        report.compare(
            "backlog", f"{label} as the source counts", state.backlog, backlog, "entries"
        )
    same = list(expected) == list(there)
    report.compare(
        "position", label, _shown(expected), _shown(there), "entries to deliver", same=same
    )
    report.compare(
        "batch holes",
        label,
        {str(position): list(each.words) for position, each in wanted.parts.items()},
        {str(position): list(each.words) for position, each in found.parts.items()},
        "messages of batches to deliver",
    )
    report.compare(
        "subscription", f"{label} properties", dict(state.properties), dict(found.properties)
    )
    report.compare("subscription", f"{label} replicated", state.is_replicated, found.is_replicated)


def _shown(ranges: Sequence[EntryRange]) -> str:
    return ", ".join(f"{each.ledger_id}:{each.first}-{each.last}" for each in ranges[:20])
