"""Offloading of one topic: copies closed ledgers to the object store when they are due.

The owner of the topic checks regularly, by the policies of that moment. An administrator may
request the offload of everything before a message. A failed ledger is retried after a pause that
doubles, and so is the whole topic if its store is unavailable; the error is shown. Publishing
continues meanwhile, and a failure loses nothing (`offloader.py` of the ledger component has the
steps).

Source: tiered storage, sections 1, 2 and 16.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog

from magnetar.broker.base.errors import (
    ConflictError,
    InvalidPolicyError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.offloading.beside_ticker import BesideTicker
from magnetar.broker.features.offloading.manifests import Manifests, ManifestSurroundings
from magnetar.broker.features.offloading.rules import offload_rules, reads_objects_first, store_of
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import Topic, TopicPort, Work
from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError, LedgersLeftError, LogFencedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.object_keys import object_base
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.offload_choice import OffloadRules
from magnetar.ledger.offloading.offloader import Offloader
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

_log = structlog.get_logger()


class OffloadStatus(Enum):
    """Outcome of the last offload that was requested. The values are Pulsar's."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class OffloadSurroundings:
    """Parts that offloading shares over all topics of a broker."""

    offloader: Offloader
    scrubber: ObjectScrubber
    urls: Mapping[str, str]
    """URLs of the broker's object stores, by name."""
    settings: ObjectSettings
    clock: Clock
    manifests: ManifestSurroundings | None = None
    """None if this broker writes no manifests."""


class Offload(BesideTicker):
    """Offloading of one topic that this broker owns. All code runs on the event loop."""

    def __init__(
        self,
        topic: TopicPort,
        log: ManagedLog,
        around: OffloadSurroundings | None,
        manifests: Manifests | None = None,
    ) -> None:
        """Create the feature.

        Args:
            around: None if the broker has no object store.
            manifests: those of the topic; they are checked after each offload.
        """
        super().__init__()
        self._topic = topic
        self._log = log
        self._around = around
        self._manifests = manifests
        self.steps = (
            LogOffload(
                log,
                around.offloader,
                around.clock,
                retry_s=around.settings.offload_retry_s,
                retry_s_max=around.settings.offload_retry_s_max,
            )
            if around is not None
            else None
        )
        """Offload steps of this topic's log; None if the broker has no object store."""
        self._failures = 0
        self._retry_at_s = 0.0
        self.status = OffloadStatus.NOT_RUN
        self.last_error = ""
        self.failed_ms = 0
        """Time of the last failure, in ms since 1970; 0 if there was none."""
        log.prefer_objects(reads_objects_first(topic.policies))

    follows = frozenset({"offload"})

    def policies_changed(self, before: Policies) -> None:
        self._log.prefer_objects(reads_objects_first(self._topic.policies))
        self._retry_at_s = 0.0  # the new policies may have removed the cause
        if self.steps is not None:
            self.steps.retry_now()

    # Running

    @property
    def has_store(self) -> bool:
        """Whether this broker has an object store at all."""
        return self._around is not None

    def look(self) -> Work | None:
        """Begin what is due by the policies. It runs beside the ticker, since a ledger takes
        long."""
        around, steps = self._around, self.steps
        if around is None or steps is None or self.is_working or self._topic.is_leaving:
            return None
        if around.clock.monotonic_s() < self._retry_at_s:
            return None
        rules = self._rules(around)
        if steps.is_due(self._log.ledgers, rules):
            self._offload(around, rules, None)
        return None

    def start(self, before: Position) -> None:
        """Begin to offload all ledgers that end before a position, at an administrator's request.

        Raises:
            NotAllowedError: this broker has no object store.
            ConflictError: a requested offload is running.
            ServiceNotReadyError: the topic is being closed.
        """
        name = str(self._topic.name)
        if self._around is None:
            raise NotAllowedError(
                f"{name} cannot be offloaded: this broker has no object store; name one in its "
                "settings (object_stores)"
            )
        if self.status is OffloadStatus.RUNNING:
            raise ConflictError(f"Offload already in progress: {name} is being offloaded")
        if self._topic.is_leaving:
            raise ServiceNotReadyError(f"{name} is closing")
        self.status, self.last_error = OffloadStatus.RUNNING, ""
        self._offload(self._around, self._rules(self._around), before)

    def _rules(self, around: OffloadSurroundings) -> OffloadRules:
        return offload_rules(
            self._topic.policies,
            small_bytes=around.settings.object_bytes_min,
            small_wait_s=around.settings.object_small_wait_s,
        )

    def _offload(
        self, around: OffloadSurroundings, rules: OffloadRules, before: Position | None
    ) -> None:
        work = self._run(around, rules, before, previous=self._task)
        self._begin(work, f"offload-{self._topic.name}")

    async def _run(
        self,
        around: OffloadSurroundings,
        rules: OffloadRules,
        before: Position | None,
        previous: "asyncio.Task[None] | None",
    ) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        name = str(self._topic.name)
        try:
            await self._step(around, rules, before)
        except LogFencedError:
            self._finished(before, "another broker has the topic")
        except (LedgerError, InvalidPolicyError) as error:
            around.offloader.counts.failures += 1
            self.failed_ms = around.clock.wall_ms()
            self._finished(before, str(error))
            pause_s = self._pause_after(error, around.settings)
            self._retry_at_s = around.clock.monotonic_s() + pause_s
            _log.warning("offload_failed", topic=name, error=str(error), retry_s=pause_s)
        except asyncio.CancelledError:
            self._finished(before, "the topic was closed")
            raise
        except Exception as error:  # noqa: BLE001 - callers must see that it has ended
            around.offloader.counts.failures += 1
            self._retry_at_s = around.clock.monotonic_s() + around.settings.offload_retry_s_max
            self.failed_ms = around.clock.wall_ms()
            self._finished(before, f"{type(error).__name__}: {error}")
            _log.exception("offload_broke", topic=name)
        else:
            self._failures = 0
            self._finished(before, "")

    def _pause_after(self, error: Exception, settings: ObjectSettings) -> float:
        """Return the pause of the topic in seconds; 0 if only single ledgers failed, since each of
        them pauses on its own."""
        if isinstance(error, LedgersLeftError) and not error.is_ended:
            self._failures = 0
            return 0.0
        self._failures += 1
        return backoff(settings.offload_retry_s, self._failures, settings.offload_retry_s_max)

    async def _step(
        self, around: OffloadSurroundings, rules: OffloadRules, before: Position | None
    ) -> None:
        assert self.steps is not None
        store = store_of(self._topic.policies, around.urls, around.settings.offload_store)
        if not store:
            raise InvalidPolicyError(
                f"{self._topic.name} has no object store: its policies name none, and the broker "
                "has no offload_store"
            )
        instance_id = await around.offloader.instance_id()
        base = object_base(store, around.settings.object_prefix, instance_id, self._log.path)
        try:
            await self.steps.look(self._log.ledgers, rules, base, before=before)
        finally:
            if self._manifests is not None:
                self._manifests.look()

    def _finished(self, before: Position | None, error: str) -> None:
        self.last_error = error
        if before is not None:
            self.status = OffloadStatus.ERROR if error else OffloadStatus.SUCCESS

    # Shown

    def shown(self) -> Mapping[str, Any]:
        ledgers = self._offloaded()
        if not ledgers and not self.failed_ms:
            return {}
        return {
            "offload": {
                "offloadedStorageSize": sum(ledger.bytes for ledger in ledgers),
                "lastOffloadLedgerId": ledgers[-1].ledger_id if ledgers else 0,
                "lastOffloadSuccessTimeStamp": max(
                    (ledger.object.at_ms for ledger in ledgers if ledger.object), default=0
                ),
                "lastOffloadFailureTimeStamp": self.failed_ms,
            }
        }

    def stores(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the settings of the stores that have the topic's ledgers, by name, for direct
        readers of objects. They contain no secrets."""
        if self._around is None:
            return {}
        found = (ledger.object for ledger in self._offloaded())
        used = {self._log.objects.base(each).store for each in found if each is not None}
        return {
            each.name: each.model_dump(mode="json", exclude_defaults=True)
            for each in self._around.settings.object_stores
            if each.name in used
        }

    def first_on_bookies(self) -> Position | None:
        """Return the first entry that lies in no object; None if every ledger is in one."""
        for ledger in self._log.ledgers:
            if not ledger.is_in_object:
                return Position(ledger.ledger_id, 0)
        return None

    def _offloaded(self) -> list[LogLedger]:
        return [ledger for ledger in self._log.ledgers if ledger.is_in_object]


def offload_of(topic: Topic) -> Offload:
    """Return the offloading of a topic.

    Raises:
        NotAllowedError: the topic is not persistent.
    """
    found = topic.find(Offload)
    if found is None:
        raise NotAllowedError(f"{topic.name} is not persistent: there is nothing to offload")
    return found
