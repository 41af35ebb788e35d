"""Scrubbing of one topic: regularly reads the objects of its ledgers, and heals them.

The owner of the topic scrubs, as it makes the copies (`log_scrub.py` of the ledger component says
why the leader does not). A broker reads for one topic at a time, at a bounded rate, in turns of a
minute. Other topics wait in the order in which they became due.

Objects that could not be reached or healed are retried after a pause that doubles. Nothing else
waits for that.

Source: tiered storage, section 18.
"""

from collections.abc import Mapping

import structlog

from magnetar.broker.features.offloading.beside_ticker import BesideTicker
from magnetar.broker.features.offloading.offload import OffloadSurroundings
from magnetar.broker.topic import TopicPort, Work
from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.log_scrub import LogScrub
from magnetar.ledger.offloading.scrub_plan import Finding

_log = structlog.get_logger()


class Scrubbing(BesideTicker):
    """Scrubbing of one topic that this broker owns. All code runs on the event loop."""

    def __init__(
        self,
        topic: TopicPort,
        log: ManagedLog,
        around: OffloadSurroundings | None,
        offload: LogOffload | None,
    ) -> None:
        """Create the feature.

        Args:
            around: None if the broker has no object store.
            offload: steps that copy the topic's ledgers; None if `around` is None.
        """
        super().__init__()
        self._topic = topic
        self._around = around
        self._scrub: LogScrub | None = None
        self._failures = 0
        self._retry_at_s = 0.0
        if around is not None and offload is not None:
            self._scrub = LogScrub(
                log,
                around.scrubber,
                offload,
                period_s=around.settings.object_scrub_period_s,
                clock=around.clock,
            )

    @property
    def findings(self) -> Mapping[int, Finding]:
        """Damaged objects, by ledger, as of the last read of each."""
        return self._scrub.findings if self._scrub is not None else {}

    def look(self) -> Work | None:
        """Begin a turn if objects are due, or queue for one while another topic is being
        scrubbed."""
        around, scrub = self._around, self._scrub
        if around is None or scrub is None or self.is_working or self._topic.is_leaving:
            return None
        if around.clock.monotonic_s() < self._retry_at_s:
            return None
        if scrub.is_due and around.scrubber.take_turn(self.look):
            task = self._begin(self._run(around, scrub), f"scrub-{self._topic.name}")
            # Not in the task: a task that is cancelled before it has begun runs nothing.
            task.add_done_callback(lambda _: around.scrubber.end_turn())
        return None

    def close(self) -> None:
        super().close()
        if self._scrub is not None:
            self._scrub.close()
        if self._around is not None:
            self._around.scrubber.leave(self.look)

    async def _run(self, around: OffloadSurroundings, scrub: LogScrub) -> None:
        name = str(self._topic.name)
        try:
            await scrub.run()
        except (LogFencedError, LogClosedError):
            pass  # another broker owns the topic, and scrubs it
        except LedgerError as error:
            pause_s = self._pause(around)
            _log.warning("object_scrub_failed", topic=name, error=str(error), retry_s=pause_s)
        except Exception:  # noqa: BLE001 - the next turn may do better
            self._pause(around)
            _log.exception("object_scrub_broke", topic=name)
        else:
            self._failures = 0

    def _pause(self, around: OffloadSurroundings) -> float:
        self._failures += 1
        settings = around.settings
        pause_s = backoff(settings.offload_retry_s, self._failures, settings.offload_retry_s_max)
        self._retry_at_s = around.clock.monotonic_s() + pause_s
        return pause_s
