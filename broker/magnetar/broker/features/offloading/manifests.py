"""Manifests of one topic: describe its objects, next to them, to readers without the cluster.

The owner of the topic writes one when the set of its objects has changed (`manifest_writer.py` of
the ledger component says when exactly). No copy, check or publish waits for it. A failed write is
retried after a pause that doubles.

Source: tiered storage, section 21.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from magnetar.broker.base.errors import RequestError
from magnetar.broker.base.settings.objects import ObjectSettings
from magnetar.broker.features.offloading.beside_ticker import BesideTicker
from magnetar.broker.schemas.errors import SchemaNotFoundError
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.topic import TopicPort, Work
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.offloading.log_manifest import (
    NO_TRANSACTIONS,
    ManifestSchema,
    ManifestTransactions,
)
from magnetar.ledger.offloading.manifest_writer import ManifestWriter
from magnetar.ledger.offloading.object_store import ObjectStores
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_WRITES_AT_ONCE = 4
"""Manifests that one broker writes at once: after a failover, many topics have one to write."""

FindSchemas = Callable[[TopicName], Awaitable[Sequence[ManifestSchema]]]


@dataclass(slots=True)
class ManifestCounts:
    """Counters of one broker."""

    written: int = 0
    failures: int = 0
    """Writes that ended with an error; each is tried again."""


@dataclass(frozen=True, slots=True)
class ManifestSurroundings:
    """Parts that manifests share over all topics of a broker."""

    stores: ObjectStores
    find_instance_id: Callable[[], Awaitable[str]]
    find_schemas: FindSchemas
    settings: ObjectSettings
    clock: Clock
    counts: ManifestCounts = field(default_factory=ManifestCounts)
    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_WRITES_AT_ONCE))


class Manifests(BesideTicker):
    """Manifests of one topic that this broker owns. All code runs on the event loop."""

    def __init__(
        self, topic: TopicPort, log: ManagedLog, around: ManifestSurroundings | None
    ) -> None:
        """`around` is None if the broker has no object store."""
        super().__init__()
        self._topic = topic
        self._log = log
        self._around = around
        self._failures = 0
        self._retry_at_s = 0.0
        self._writer: ManifestWriter | None = None
        if around is not None:
            self._writer = ManifestWriter(
                log,
                around.stores,
                around.settings.object_prefix,
                interval_s=around.settings.manifest_interval_s,
                clock=around.clock,
            )

    def look(self) -> Work | None:
        """Begin to write a manifest if one is due. The write runs beside the ticker."""
        around, writer = self._around, self._writer
        if around is None or writer is None or self.is_working or self._topic.is_leaving:
            return None
        if around.clock.monotonic_s() >= self._retry_at_s and writer.is_due(self._transactions()):
            self._begin(self._run(around, writer), f"manifest-{self._topic.name}")
        return None

    async def _run(self, around: ManifestSurroundings, writer: ManifestWriter) -> None:
        name = self._topic.name

        async def find_schemas() -> Sequence[ManifestSchema]:
            return await around.find_schemas(name)

        try:
            async with around.at_once:
                while writer.is_due(transactions := self._transactions()):
                    instance_id = await around.find_instance_id()
                    await writer.write(instance_id, find_schemas, transactions)
                    around.counts.written += 1
                    self._failures = 0
        except (LedgerError, RequestError) as error:
            pause_s = self._pause(around)
            _log.warning("manifest_failed", topic=str(name), error=str(error), retry_s=pause_s)
        except Exception:  # noqa: BLE001 - the next try may do better
            self._pause(around)
            _log.exception("manifest_broke", topic=str(name))

    def _pause(self, around: ManifestSurroundings) -> float:
        around.counts.failures += 1
        self._failures += 1
        settings = around.settings
        pause_s = backoff(settings.offload_retry_s, self._failures, settings.offload_retry_s_max)
        self._retry_at_s = around.clock.monotonic_s() + pause_s
        return pause_s

    def _transactions(self) -> ManifestTransactions:
        return transactions_in(self._topic.visibility, self._log.objects.ledgers)


def transactions_in(visibility: Visibility, ledgers: Sequence[LogLedger]) -> ManifestTransactions:
    """Return what readers of a topic's objects need to know about its transactions.

    Args:
        ledgers: the list of the topic's log.
    """
    hidden = visibility.hidden
    if hidden is None or hidden.is_plain:
        return NO_TRANSACTIONS
    copied = [ledger for ledger in ledgers if ledger.is_in_object]
    if not copied:
        return NO_TRANSACTIONS
    last = visibility.last
    ends_within = last < Position(copied[-1].ledger_id, copied[-1].entries - 1)
    aborted = {each.ledger_id: hidden.aborted.bits(each.ledger_id) for each in copied}
    return ManifestTransactions(
        last if ends_within else None, {each: bits for each, bits in aborted.items() if bits}
    )


def schemas_in(registry: SchemaRegistry) -> FindSchemas:
    """Return a function that finds the versions of a topic's schema that are not deleted."""

    async def find(topic: TopicName) -> Sequence[ManifestSchema]:
        try:
            stored = await registry.versions(topic)
        except SchemaNotFoundError:
            return ()
        return [
            ManifestSchema(
                each.version,
                each.timestamp_ms,
                each.schema.type.value,
                each.schema.data,
                dict(each.schema.properties),
            )
            for each in stored
        ]

    return find
