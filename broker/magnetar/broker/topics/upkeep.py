"""Periodic jobs on topics: one ticker for the whole broker.

A *job* looks at every loaded topic once per interval. Its topics are spread over the interval, so
that thousands of them cause no load peak. A topic loaded meanwhile has its turn in the next round.
A look is a plain call that decides whether there is anything to do, and returns the work as a
coroutine if there is. Work runs concurrently with the ticker, a bounded number at a time for each
job, and never twice at once for one topic. So slow work, for example while bookies are down, delays
neither the ticker nor another job.

No work begins for a topic that is closed, or that another broker may own by now.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

import structlog

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.retention import trimming
from magnetar.broker.features.retention.backlog import Quotas
from magnetar.broker.features.retention.expiry import Expiry
from magnetar.broker.features.retention.inactivity import InactiveSubscriptions
from magnetar.broker.topic import Topic
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

Work = Coroutine[object, object, None]
Look = Callable[[Topic], Work | None]
"""Looks at one topic; returns the work, or None if there is nothing to do now."""

_TICK_S_MAX = 1.0
_WORKS_AT_ONCE = 16
"""Works of one job that run at once: enough that a slow topic delays no other, few enough to spare
the metadata store."""
_ROUNDS_MAX = 5
"""Most rounds of all jobs for one topic: a job may leave work to the next round."""
_WORK_S_MAX = 60.0
"""Time limit for one work, in seconds: longer than any request to bookies or the metadata store
takes, so that a hanging work does not keep its place."""


class _Job:
    """One kind of work, and the progress of its round."""

    def __init__(
        self, name: str, interval_s: float, look: Look, is_busy: Callable[[], bool]
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self.look = look
        self.is_busy = is_busy
        self.left: deque[Topic] = deque()
        """Topics of this round that are not looked at yet."""
        self.size = 0
        self.began_s = -math.inf
        self.working: dict[Topic, asyncio.Task[None]] = {}

    def due(self, now_s: float, topics: Callable[[], Sequence[Topic]], tick_s: float) -> int:
        """Return how many topics to look at now; begin the next round when it is due."""
        if not self.left and now_s - self.began_s >= self.interval_s:
            self.left.extend(topics())
            self.size = len(self.left)
            self.began_s = now_s
        if not self.left:
            return 0
        share = (now_s - self.began_s + tick_s) / self.interval_s
        return min(len(self.left), max(0, math.ceil(self.size * share) - self._looked))

    @property
    def _looked(self) -> int:
        return self.size - len(self.left)


class Upkeep:
    """The broker's ticker. `register` before or after `start`; `stop` cancels running work and
    waits for its end."""

    def __init__(self, clock: Clock, topics: Callable[[], Sequence[Topic]]) -> None:
        """`topics`: returns the topics that are loaded now."""
        self._clock = clock
        self._topics = topics
        self._jobs: list[_Job] = []
        self._task: asyncio.Task[None] | None = None
        self.failures = 0
        """Works that ended with an error; each was logged."""

    def register(
        self,
        name: str,
        interval_s: float,
        look: Look,
        *,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call `look` for every loaded topic once per `interval_s` seconds; 0: never.

        `is_busy`: whether the job would begin nothing now, whatever is due; no topic is loaded for
        it then.
        """
        if interval_s > 0:
            self._jobs.append(_Job(name, interval_s, look, is_busy))

    @property
    def jobs(self) -> Sequence[str]:
        """Names of the jobs that are not turned off, and could begin something now."""
        return [job.name for job in self._jobs if not job.is_busy()]

    def start(self) -> None:
        """Start the ticker."""
        assert self._task is None, "it ticks already"
        self._task = asyncio.get_running_loop().create_task(self._run(), name="upkeep")

    async def stop(self) -> None:
        """Stop the ticker and cancel running work: every work can be cancelled."""
        tasks = [task for job in self._jobs for task in job.working.values()]
        if self._task is not None:
            tasks.append(self._task)
            self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            tick_s = min([_TICK_S_MAX, *(job.interval_s for job in self._jobs)])
            try:
                self.tick(tick_s)
            except Exception:  # noqa: BLE001 - a defect must not end the ticker
                self.failures += 1
                _log.exception("upkeep_tick_broke")
            await asyncio.sleep(tick_s)

    async def look_after(self, topic: Topic) -> int:
        """Run every job for one topic at once, in rounds, until nothing is left to do.

        The result of each round is saved before the next one: expired messages let ledgers be
        trimmed, and a topic may be deleted with its last subscription. Return how many works ran.

        Raises:
            CursorError: the result cannot be saved now.
        """
        total = 0
        for _ in range(_ROUNDS_MAX):
            works = 0
            for job in self._jobs:
                self._look(job, topic)
                if (working := job.working.get(topic)) is not None:
                    works += 1
                    await asyncio.wait([working])
            for feature in topic.features:
                if feature.is_working:
                    works += 1
                    await feature.stopped()
            total += works
            if topic.is_closed or not works:
                break
            for cursor in topic.durable_cursors():
                await cursor.persist()
        return total

    def tick(self, tick_s: float = _TICK_S_MAX) -> None:
        """Look at the topics that are due within the next `tick_s` seconds."""
        now_s = self._clock.monotonic_s()
        for job in self._jobs:
            for _ in range(job.due(now_s, self._topics, tick_s)):
                if len(job.working) >= _WORKS_AT_ONCE:
                    break  # the rest of the round is late, and continues at a later tick
                self._look(job, job.left.popleft())

    def _look(self, job: _Job, topic: Topic) -> None:
        if topic.is_leaving or topic in job.working:
            return
        if not topic.tenure.holds():
            return
        try:
            work = job.look(topic)
        except Exception:  # noqa: BLE001 - a bug with one topic is not the end of the ticker
            self.failures += 1
            _log.exception("upkeep_broke", job=job.name, topic=str(topic.name))
            return
        if work is not None:
            task = asyncio.get_running_loop().create_task(
                self._work(job, topic, work), name=f"{job.name}-{topic.name}"
            )
            job.working[topic] = task
            task.add_done_callback(lambda _: job.working.pop(topic, None))

    async def _work(self, job: _Job, topic: Topic, work: Work) -> None:
        try:
            async with asyncio.timeout(_WORK_S_MAX):
                await work
        except TimeoutError:
            self.failures += 1
            _log.warning("upkeep_not_done_in_time", job=job.name, topic=str(topic.name))
        except (LedgerError, CursorError, RequestError) as error:
            self.failures += 1
            _log.warning("upkeep_failed", job=job.name, topic=str(topic.name), error=str(error))
        except Exception:  # noqa: BLE001
            self.failures += 1
            _log.exception("upkeep_broke", job=job.name, topic=str(topic.name))


class Keeping:
    """The jobs of retention, expiry and quotas, as far as other parts of the broker use them."""

    def __init__(self, clock: Clock) -> None:
        self.expiry = Expiry(clock)
        self.quotas = Quotas(clock, self.expiry)
        self.inactive = InactiveSubscriptions(clock)

    def register(self, upkeep: Upkeep, settings: BrokerSettings) -> None:
        """Register the jobs with the ticker."""
        upkeep.register("expiry", settings.message_expiry_check_interval_s, self.expiry.look_at)
        upkeep.register("quotas", settings.backlog_quota_check_interval_s, self.quotas.look_at)
        upkeep.register("trimming", settings.retention_check_interval_s, trimming.look_at)
        upkeep.register(
            "inactive-subscriptions",
            settings.subscription_expiry_check_interval_s,
            self.inactive.look_at,
        )
