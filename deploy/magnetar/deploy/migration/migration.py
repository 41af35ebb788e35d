"""A migration: copies of all topics that follow the source, until an operator requests the
cut-over.

Three activities run in parallel. The copies are one task each. The ticker saves their progress,
acknowledges it at the source, prints progress and problems, and looks for new topics. The work
itself waits for the signal and then cuts over. The signal is a file in the state directory, so the
next process finds it if this one is killed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import BrokerUnreachableError, SettingsError
from magnetar.deploy.migration.creating import Inventory, create_all, inventory
from magnetar.deploy.migration.cut_over import CutOver, is_moved_whole, let_go
from magnetar.deploy.migration.entries import source_of
from magnetar.deploy.migration.policies import namespace_plan
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.schema_copies import SchemaCopies
from magnetar.deploy.migration.selection import Clusters
from magnetar.deploy.migration.sides import Side, is_magnetar, is_refusal
from magnetar.deploy.migration.state_directory import Asked, StateDirectory
from magnetar.deploy.migration.topic_copy import TopicCopy
from magnetar.sdk.errors import SdkError
from magnetar.sdk.wire import TopicName

BYTES_MAX: Final = 64 << 20
"""About how many bytes of all topics may be in memory."""
TOPIC_BYTES_MIN: Final = 256 << 10
"""Least bytes in memory for one topic, however many topics there are."""
ATTACHING_MAX: Final = 32
"""Most sessions of copies that begin at the same time."""
TICK_S: Final = 0.5
SAVE_TICKS: Final = 2
"""Ticks between two saves of the position maps, which also acknowledge at the source."""
PROGRESS_TICKS: Final = 20
RESCAN_TICKS: Final = 60
CUT_OVER_TRIES: Final = 10
"""Most tries of an interrupted cut-over; each step may be repeated."""
CUT_OVER_PAUSE_S: Final = 2.0
SCAN_TRIES: Final = 5
"""Most tries of a scan that the command begins with."""
SCAN_PAUSE_S: Final = 2.0
TOLD_MAX: Final = 10_000
"""Most lines that are remembered, so that they are not printed again."""

Say = Callable[[str], None]


class Migration:
    """One process of a migration. `run` returns the report of the cut-over."""

    def __init__(
        self, asked: Asked, directory: StateDirectory, source: Side, target: Side, say: Say
    ) -> None:
        """Prepare a migration. `directory` must be locked. `say` prints a line."""
        self._asked = asked
        self._directory = directory
        self._source = source
        self._target = target
        self._say = say
        self._schemas = SchemaCopies(source, target)
        self._copies: dict[TopicName, TopicCopy] = {}
        self._tasks: dict[TopicName, asyncio.Task[None]] = {}
        self._restarts: dict[TopicName, int] = {}
        self._attaching = asyncio.Semaphore(ATTACHING_MAX)
        self._cut_over = asyncio.Event()
        self._scanning = asyncio.Lock()
        self._found = Inventory()
        self._left_out: dict[str, None] = {}
        """Lines about what was left out at the target, in order: of all scans, since a scan creates
        only what is new."""
        self._clusters = Clusters("", "", frozenset())
        self._told: set[str] = set()
        self._entries_told: dict[TopicName, int] = {}

    async def run(self, *, is_cut_over: bool) -> Report:
        """Follow the source until the cut-over is requested, and perform it.

        Args:
            is_cut_over: request the cut-over now.

        Raises:
            SdkError, DeployError: an operator must do something.
        """
        await self._source.check()
        await self._target.check()
        if not is_magnetar(self._target):
            raise SettingsError(
                f"the target {self._target.url} is no Magnetar, it says it is "
                f"{self._target.server_version!r}: give --to the address of a Magnetar broker"
            )
        if is_cut_over:
            self._directory.ask_to_cut_over()
        known = await self._target.get("clusters") or ()
        self._clusters = Clusters(self._source.cluster, self._target.cluster, frozenset(known))
        await self._repeated(self._scan)
        self._tell_plan()
        ticking = asyncio.create_task(self._tick(), name="migration-ticker")
        working = asyncio.create_task(self._work(), name="migration")
        try:
            await asyncio.wait({ticking, working}, return_when=asyncio.FIRST_COMPLETED)
            if ticking.done():
                ticking.result()
            return await working
        finally:
            await _end([ticking, working])
            await self._end_copies()
            self._save()

    async def let_go(self) -> None:
        """Finish a migration whose cut-over is done: delete the subscriptions that held messages.

        Raises:
            BrokerUnreachableError: a cluster does not answer.
        """
        await self._source.check()
        await self._target.check()
        await self._let_go((await self._repeated(self._look)).parts)

    async def _let_go(self, topics: Collection[TopicName]) -> None:
        """Delete the subscriptions that held messages: at the target, then at the source. Those at
        the target include topics that are gone at the source: the state directory has their
        names."""
        there = dict.fromkeys([*topics, *self._directory.topics()])
        await let_go(self._target, list(there))
        await let_go(self._source, list(topics))

    async def _work(self) -> Report:
        await self._cut_over.wait()
        self._say("cutting over")
        for attempt in range(1, CUT_OVER_TRIES + 1):
            try:
                report = await self._try_cut_over()
                break
            except (SdkError, BrokerUnreachableError) as error:
                if attempt == CUT_OVER_TRIES:
                    raise
                self._say(f"the cut-over is interrupted, and begins again: {_line(error)}")
                await asyncio.sleep(CUT_OVER_PAUSE_S)
        is_done = is_moved_whole(report)
        # First, as the disk may be full: a cut-over that is done does not compare again.
        self._directory.prepare_report(
            text="".join(f"{each}\n" for each in report.lines()), json_text=report.to_json()
        )
        if is_done:
            # Before anybody may read a good report and start the clients at the target: a process
            # after a kill must not cut over again, which resets subscriptions that they use.
            self._directory.remove_report()
            self._directory.remember(self._asked.model_copy(update={"is_done": True}))
        self._directory.show_report()
        await self._end_copies()
        self._directory.cut_over_ended()
        if is_done:
            await self._let_go(self._copies)
        return report

    async def _try_cut_over(self) -> Report:
        cut_over = CutOver(
            self._source,
            self._target,
            self._clusters,
            self._scan,
            self._look,
            self._copies,
            self._schemas,
            self._say,
        )
        return await cut_over.run()

    # New and deleted topics

    async def _repeated(self, scan: Callable[[], Awaitable[Inventory]]) -> Inventory:
        """Scan, and again after a refusal that may pass: a Pulsar refuses while it moves a topic.

        Raises:
            BrokerUnreachableError: a cluster does not answer, or refuses.
            DeployError: an operator must do something.
        """
        for _ in range(SCAN_TRIES - 1):
            try:
                return await scan()
            except RequestRefusedError as error:
                if is_refusal(error, 401, 403):
                    raise
                self._say(f"topics cannot be looked for just now; trying again: {_line(error)}")
                await asyncio.sleep(SCAN_PAUSE_S)
        return await scan()

    async def _look(self) -> Inventory:
        return await inventory(self._source, self._asked.namespaces)

    async def _scan(self) -> Inventory:
        """Start copies of all topics that the source has now; return what it has.

        Raises:
            BrokerUnreachableError: a cluster does not answer.
            DeployError: an operator must do something.
        """
        async with self._scanning:
            found = await self._look()
            former = {each.name: each for each in self._found.topics}
            changed = [each for each in found.topics if former.get(each.name) != each]
            new = Inventory(found.tenants, found.namespaces, changed)
            if (
                changed
                or found.namespaces.keys() != self._found.namespaces.keys()
                or found.tenants.keys() != self._found.tenants.keys()
            ):
                self._left_out |= dict.fromkeys(await create_all(self._target, new, self._clusters))
            found.notes += self._left_out
            self._found = found
            parts = found.parts
            for topic in set(self._copies) - set(parts):
                await _end([self._tasks.pop(topic)])
                del self._copies[topic]
                self._tell_once(f"topic {topic} is gone at the source; what was copied stays")
            bytes_max = max(TOPIC_BYTES_MIN, BYTES_MAX // max(1, len(parts)))
            for topic in parts:
                if topic not in self._copies:
                    self._begin(topic, bytes_max)
            return found

    def _begin(self, topic: TopicName, bytes_max: int) -> None:
        copied = self._directory.load(topic)
        self._directory.repair(topic, copied)
        copy = TopicCopy(
            topic,
            self._source,
            self._target,
            source_of(self._source.cluster),
            self._schemas,
            copied,
            bytes_max=bytes_max,
            attaching=self._attaching,
        )
        self._copies[topic] = copy
        self._restarts[topic] = copy.restarts
        self._entries_told[topic] = copied.entries
        self._tasks[topic] = asyncio.create_task(copy.run(), name=f"copy-{topic}")

    async def _end_copies(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        await _end(tasks)

    # The ticker

    async def _tick(self) -> None:
        """Save, report and look for topics periodically, until cancelled.

        Raises:
            DeployError: a copy cannot continue.
        """
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            for task in list(self._tasks.values()):
                if task.done() and not task.cancelled():
                    task.result()
            if ticks % SAVE_TICKS == 0:
                self._save()
            if ticks % PROGRESS_TICKS == 0:
                self._tell_progress()
            if self._directory.is_cut_over_asked:
                self._cut_over.set()
            if not self._cut_over.is_set() and ticks % RESCAN_TICKS == 0:
                await self._rescan()

    async def _rescan(self) -> None:
        try:
            await self._scan()
        except BrokerUnreachableError as error:
            self._tell_once(f"new topics cannot be looked for just now: {_line(error)}")

    def _save(self) -> None:
        for topic, copy in self._copies.items():
            if self._restarts[topic] != copy.restarts:
                self._directory.append(topic, "", anew=True)
                self._restarts[topic] = copy.restarts
            copy.save(partial(self._directory.append, topic))

    # Printed lines

    def _tell_plan(self) -> None:
        found = self._found
        self._say(
            f"moving {len(found.topics)} topics ({len(found.parts)} with partitions) of "
            f"{len(found.namespaces)} namespaces from cluster {self._source.cluster} "
            f"({self._source.url}) to {self._target.cluster} ({self._target.url})"
        )
        for note in found.notes:
            self._tell_once(f"note: {note}")
        for namespace, document in found.namespaces.items():
            for each in namespace_plan(document, self._clusters).unknown:
                self._tell_once(f"note: {namespace}: the target has no policy {each}")
        self._say(
            "following the source; to cut over, stop its clients and run: magnetar migrate "
            f"--state {self._directory.path} --cut-over"
        )

    def _tell_progress(self) -> None:
        busy = 0
        for topic, copy in self._copies.items():
            busy += copy.copied.entries != self._entries_told.get(topic)
            self._entries_told[topic] = copy.copied.entries
            if copy.problem:
                self._tell_once(f"{topic} waits: {copy.problem}")
        messages = sum(each.copied.messages for each in self._copies.values())
        if busy:
            self._say(f"{messages} messages are copied; {busy} of {len(self._copies)} topics busy")
        else:
            self._tell_once(f"{messages} messages are copied; no topic is busy")

    def _tell_once(self, line: str) -> None:
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        if line not in self._told:
            self._told.add(line)
            self._say(line)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
