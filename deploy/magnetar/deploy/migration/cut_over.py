"""The cut-over: wait for clients to leave the source, move the rest, compare, release held
messages.

The steps, each of which may be repeated:

1. wait until the source's topics have no producers, and subscriptions no consumers;
2. wait until every copy has everything, look for new topics and changed policies, and check the
   clients again;
3. schemas, subscriptions, then policies and permissions;
4. compare both sides;
5. check that no client, no message and no topic has come to the source meanwhile;
6. if messages and subscriptions are the same: delete the subscriptions that held them (`let_go`,
   once the copies have ended: they would create them anew).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from magnetar.deploy.admin_client import RequestRefusedError, topic_path
from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration.creating import Inventory
from magnetar.deploy.migration.moving_policies import PolicyMove
from magnetar.deploy.migration.moving_subscriptions import (
    Part,
    compare_subscription,
    set_at_target,
    state_at_source,
    subscriptions_to_move,
)
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.schema_copies import SchemaCopies, comparable, versions_at
from magnetar.deploy.migration.selection import Clusters, TopicPlan
from magnetar.deploy.migration.sides import Side, is_refusal, subscription_path
from magnetar.deploy.migration.subscriptions import HOLD, is_moved, moved
from magnetar.deploy.migration.topic_copy import TopicCopy
from magnetar.sdk.wire import TopicName

LOOK_S: Final = 0.5
"""Seconds between two checks of a condition that the cut-over waits for."""
SCAN_S: Final = 30.0
"""Seconds between two scans for new and deleted topics, which also ask about all topics."""
NAMES_MAX: Final = 5
"""Most names in a line about waiting."""
_STATS: Final = {"getPreciseBacklog": "true", "subscriptionBacklogSize": "false"}
_CERTAIN: Final = ("messages", "topic", "subscription", "backlog", "position", "batch holes")
"""Kinds of differences after which both sides continue to hold messages."""


class CutOver:
    """One cut-over, while all copies run. `run` returns the report."""

    def __init__(
        self,
        source: Side,
        target: Side,
        clusters: Clusters,
        scan: Callable[[], Awaitable[Inventory]],
        look: Callable[[], Awaitable[Inventory]],
        copies: Mapping[TopicName, TopicCopy],
        schemas: SchemaCopies,
        say: Callable[[str], None],
    ) -> None:
        """Prepare a cut-over.

        Args:
            scan: reads the source's inventory, and creates and copies what is new.
            look: only reads the inventory: what `scan` does at the target must come before the
                policies.
            copies: all copies; `scan` changes them.
        """
        self._source = source
        self._target = target
        self._clusters = clusters
        self._scan = scan
        self._look = look
        self._copies = copies
        self._schemas = schemas
        self._say = say
        self._said = ""
        self._clients: dict[TopicName, Sequence[str]] = {}
        """Lines about clients of the source, by topic, as far as is known."""
        self._untaken: list[TopicName] = []
        """Topics of which the source has not reported yet that all was consumed."""

    async def run(self) -> Report:
        """Perform the cut-over.

        Raises:
            SdkError, DeployError: a cluster does not answer; repeat it.
        """
        found = await self._wait()
        report = Report(notes=list(found.notes))
        self._say("all messages are copied; subscriptions and policies follow")
        settings = await self._source.settings()
        keeps_parts = settings.get("acknowledgmentAtBatchIndexLevelEnabled", "true") != "false"
        moving = PolicyMove(self._source, self._target, self._clusters, report)
        for plan in found.topics:
            await self._move_topic(plan, report, moving, keeps_parts=keeps_parts)
        await moving.move(found)
        await self._compare_topics(found, report)
        for topic in found.parts:
            await self._compare_end(topic, report)
        if not is_moved_whole(report):
            report.notes.append(
                f"the subscription {HOLD} is kept on both sides, since messages or subscriptions "
                "differ: mend the cause and repeat --cut-over"
            )
        return report

    # Waiting

    async def _wait(self) -> Inventory:
        """Wait until the source has no clients, and the target all messages; return the inventory
        of the source at that time.

        Clients may have created topics before they left, and operators changed policies.
        """
        clock = asyncio.get_running_loop().time
        found = await self._scan()
        is_due = True
        is_last = False  # whether nothing is left if this look, after a scan, finds nothing either
        while True:
            try:
                what, names = await self._waits_for(asks_all=is_due or is_last)
            except BrokerUnreachableError as error:
                # The wait may take hours: what passes in that time must not end the attempt.
                self._tell_passing("the source cannot be asked what is left", error)
            else:
                if names:
                    self._tell_waiting(what, names)
                elif is_last:
                    return found
                else:
                    before, found = found, await self._scan()
                    is_last = found.parts == before.parts
                    if is_last:
                        continue
            is_last = False
            if is_due:
                scan_at = clock() + SCAN_S  # from its end: many topics may take longer than that
            await asyncio.sleep(LOOK_S)
            is_due = clock() >= scan_at
            if is_due:
                # A topic that is deleted at the source is not waited for: no copy of it ends.
                found = await self._rescan(found)

    async def _waits_for(self, *, asks_all: bool) -> tuple[str, Sequence[str]]:
        """Return what the cut-over waits for, and the names of some; no names if for nothing.

        While it waits for something that it knows of, it asks about little else: thousands of
        topics are costly to ask about.

        Args:
            asks_all: ask about all topics in any case.

        Raises:
            BrokerUnreachableError: the source does not answer, or refuses.
        """
        if not asks_all:
            await self._ask_again()
        if asks_all or not (self._clients or self._untaken or self._busy()):
            await self._ask_all()
        if self._clients:
            lines = [line for each in self._clients.values() for line in each]
            return "clients to leave the source", lines
        for topic in (*self._busy(), *self._untaken):
            problem = self._copies[topic].problem
            return "copies", [f"{topic}{f': {problem}' if problem else ''}"]
        return "", ()

    def _busy(self) -> Sequence[TopicName]:
        return [topic for topic, copy in self._copies.items() if not copy.is_idle]

    async def _ask_all(self) -> None:
        """Find all clients of the source, and the topics of which it does not report itself that
        all was consumed."""
        clients: dict[TopicName, Sequence[str]] = {}
        untaken: list[TopicName] = []
        for topic in self._copies:
            stats = await self._stats(topic)
            if lines := _clients_in(stats, topic):
                clients[topic] = lines
            if not _is_taken(stats):
                untaken.append(topic)
        self._clients, self._untaken = clients, untaken

    async def _ask_again(self) -> None:
        """Forget what is no longer so of what was found: of clients as far as they are named, and
        of copies up to the first that is waited for."""
        named = 0
        for topic in [*self._clients]:
            if named >= NAMES_MAX:
                break
            if lines := _clients_in(await self._stats(topic), topic):
                self._clients[topic] = lines
                named += len(lines)
            else:
                del self._clients[topic]
        while self._untaken and not self._clients and not self._busy():
            topic = self._untaken[0]
            if topic in self._copies and not _is_taken(await self._stats(topic)):
                break
            del self._untaken[0]

    async def _rescan(self, found: Inventory) -> Inventory:
        """Scan again; return the former inventory if the source or target does not answer now."""
        try:
            return await self._scan()
        except BrokerUnreachableError as error:
            self._tell_passing("new and deleted topics cannot be looked for", error)
            return found

    def _tell_passing(self, what: str, error: BrokerUnreachableError) -> None:
        """Print a failure while the cut-over waits.

        Raises:
            RequestRefusedError: the credentials are refused, which does not pass by itself.
        """
        if is_refusal(error, 401, 403):
            raise error
        self._tell(f"{what} just now: {' '.join(str(error).split())}")

    async def _stats(self, topic: TopicName) -> dict[str, Any]:
        return await self._source.get(f"{topic_path(topic)}/stats", _STATS) or {}

    def _tell_waiting(self, what: str, names: Sequence[str]) -> None:
        more = f", and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        self._tell(f"waiting for {what}: {'; '.join(names[:NAMES_MAX])}{more}")

    def _tell(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._say(line)

    # Moving

    async def _move_topic(
        self, plan: TopicPlan, report: Report, moving: PolicyMove, *, keeps_parts: bool
    ) -> None:
        parts = [Part(each, self._copies[each].copied) for each in plan.parts]
        if not parts:
            return
        await self._schemas.copy(parts[0].topic)
        await self._compare_schemas(plan, report)
        names: set[str] = set()
        for part in parts:
            await self._compare_messages(part, report)
            for name, told in (await subscriptions_to_move(self._source, part.topic)).items():
                names.add(name)
                state = await state_at_source(self._source, part, told, keeps_parts=keeps_parts)
                wanted = moved(state, part.copied)
                await set_at_target(self._target, part.topic, state, wanted)
                await compare_subscription(self._target, part, state, wanted, report)
        for name in sorted(names):
            await moving.move_subscription_rate(plan, name)

    async def _compare_schemas(self, plan: TopicPlan, report: Report) -> None:
        ones = comparable(await versions_at(self._source, plan.name))
        others = comparable(await versions_at(self._target, plan.name))
        if ones or others:
            report.compare(
                "schema",
                str(plan.name),
                ones,
                others,
                "version, type, definition and properties of each; version numbers in messages are "
                "translated",
                same=ones == others,
            )

    async def _compare_messages(self, part: Part, report: Report) -> None:
        topic, copied = part.topic, part.copied
        report.messages += copied.messages
        report.entries += copied.entries
        path = f"{topic_path(topic)}/internalStats"
        here = await self._source.get(path) or {}
        there = await self._target.get(path) or {}
        report.compare(
            "messages",
            str(topic),
            copied.entries,
            int(there.get("numberOfEntries") or 0),
            "entries that were copied, and that the target counts",
        )
        if "Terminated" in (here.get("state"), there.get("state")):
            report.compare("topic", f"{topic} state", here.get("state"), there.get("state"))

    async def _compare_topics(self, found: Inventory, report: Report) -> None:
        """Check that no topic has come to the source since the copies had everything."""
        known = set(found.parts)
        new = [str(each) for each in (await self._look()).parts if each not in known]
        report.compare(
            "topic", "new topics", new, [], "created at the source during the comparison"
        )

    async def _compare_end(self, topic: TopicName, report: Report) -> None:
        """Check that nothing came to a topic of the source since the copies had everything.

        A client that connects after this check is not noticed: the source cannot be closed.
        """
        stats = await self._stats(topic)
        report.compare(
            "topic",
            f"{topic} clients",
            _clients_in(stats, topic),
            [],
            "connected to the source during the comparison: stop them",
        )
        left = ((stats.get("subscriptions") or {}).get(HOLD) or {}).get("msgBacklog")
        report.compare("messages", f"{topic} left", left, 0, "entries not copied", same=left == 0)


def _clients_in(stats: Mapping[str, Any], topic: TopicName) -> Sequence[str]:
    """Return a line for each producer, and each consumer of an application, in the statistics of a
    topic."""
    found = [
        f"producer {each.get('producerName')} of {topic}" for each in stats.get("publishers") or ()
    ]
    for name, each in (stats.get("subscriptions") or {}).items():
        if is_moved(name, each):
            found += [
                f"consumer {one.get('consumerName')} of {topic}, subscription {name}"
                for one in each.get("consumers") or ()
            ]
    return found


def _is_taken(stats: Mapping[str, Any]) -> bool:
    """Return whether all messages were consumed for the migration, by the statistics of a topic."""
    hold = (stats.get("subscriptions") or {}).get(HOLD)
    return hold is not None and not hold.get("msgBacklog")


def is_moved_whole(report: Report) -> bool:
    """Return whether messages and subscriptions are the same, so that none need be held any
    more."""
    return not report.differs(*_CERTAIN)


async def let_go(side: Side, topics: Sequence[TopicName]) -> None:
    """Delete the subscriptions that held messages at one side.

    Raises:
        BrokerUnreachableError: the cluster does not answer.
    """
    for topic in topics:
        try:
            await side.ask("DELETE", subscription_path(topic, HOLD), None, {"force": "true"})
        except RequestRefusedError as error:
            if not is_refusal(error, 404):
                raise
