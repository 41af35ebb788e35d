"""The state of re-replication, for operators and for the auditor's metrics.

Everything here is read from the metadata store and may be slightly out of date. Sizes are
estimates: the average entry size of a ledger times the number of entries that a bookie lacks. The
length of a ledger that is not closed is unknown; it counts as 0 bytes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from magnetar.ledger.autorecovery.controls import Check, Controls, election_path
from magnetar.ledger.autorecovery.fragments import spans_of
from magnetar.ledger.autorecovery.ledger_scan import PacedReads
from magnetar.ledger.autorecovery.metrics import AuditorMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.work_items import WorkItem, WorkItems
from magnetar.ledger.errors import InvalidLedgerMetadataError, NoNodeError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.election import read_leader
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import lock_path
from magnetar.ledger.under_replication import Missing, Range, merge_ranges

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ItemReport:
    """One ledger that waits for copies."""

    ledger_id: int
    bookies: tuple[str, ...]
    """Bookies that lack entries of the ledger."""
    age_ms: int
    """Time since the first report, by the wall clock."""
    bytes_to_copy: int
    """Estimated; 0 for a ledger that is not closed."""
    is_in_work: bool
    """Whether a worker holds its lock: it copies, or waits before it tries again."""


@dataclass(frozen=True, slots=True)
class ItemsReport:
    """All work items, as far as they could be read."""

    count: int
    """Number of all items, including those that were not read."""
    items: tuple[ItemReport, ...]
    """Reports of the items that were read, in the order of their ledgers."""
    lost: Mapping[int, Sequence[Range]]
    """Entries that no bookie has, as workers found out, by ledger; no ranges if the record cannot
    be read."""
    unreadable: tuple[str, ...] = ()
    """Errors about the items and records that this version does not understand."""

    @property
    def bytes_to_copy(self) -> int:
        return sum(item.bytes_to_copy for item in self.items)

    @property
    def oldest_age_ms(self) -> int:
        return max((item.age_ms for item in self.items), default=0)

    @property
    def in_work(self) -> int:
        return sum(item.is_in_work for item in self.items)


@dataclass(frozen=True, slots=True)
class BookieReport:
    """One bookie, as the metadata store knows it."""

    bookie_id: str
    state: str
    """`writable`, `readonly`, or `lost`: it has a cookie, and is not registered."""


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """The state of re-replication, without the details of the items."""

    auditor: str | None
    is_enabled: bool
    delay_s: float | None
    """None if no operator set one; the auditor's settings apply."""
    bookies: tuple[BookieReport, ...]
    last_run_ms: dict[str, int | None]
    """When each check last finished, in ms of the wall clock; None if it never did."""
    items: ItemsReport

    def bookies_in(self, state: str) -> list[str]:
        return [bookie.bookie_id for bookie in self.bookies if bookie.state == state]


def bytes_to_copy(metadata: LedgerMetadata, missing: Missing) -> int:
    """Return about how many bytes the bookies lack of a closed ledger; 0 if it is not closed, or
    empty."""
    entries = metadata.last_entry_id + 1
    if entries <= 0:
        return 0
    share = metadata.write_quorum / metadata.ensemble_size
    lacked = {
        bookie_id: merge_ranges(ranges, ranges_max=max(1, len(ranges)))
        for bookie_id, ranges in missing.items()
    }
    lacking = sum(
        _overlap(lacked[bookie_id], (span.first, span.last)) * share
        for span in spans_of(metadata)
        for bookie_id in span.bookies
        if bookie_id in lacked
    )
    return round(lacking * metadata.length / entries)


def _overlap(ranges: Sequence[Range], span: Range) -> int:
    return sum(max(0, min(last, span[1]) - max(first, span[0]) + 1) for first, last in ranges)


async def report_items(
    items: WorkItems,
    reads: PacedReads,
    *,
    now_ms: int,
    items_max: int,
    lacking: str | None = None,
) -> ItemsReport:
    """Read the work items, up to `items_max` of them.

    Args:
        lacking: report only items that name this bookie; the count still covers all.

    Raises:
        MetadataError
    """
    ids = await items.ids()
    locked = await items.locked_ids()
    reports: list[ItemReport] = []
    unreadable: list[str] = []
    gone = 0
    step = reads.at_once_max
    for start in range(0, min(len(ids), items_max), step):
        some = ids[start : min(start + step, items_max)]
        found, problems = await _read_items(items, some)
        unreadable += problems
        gone += len(some) - len(found) - len(problems)
        wanted = [item for item in found if lacking is None or lacking in item.missing]
        ledgers = {
            ledger.metadata.ledger_id: ledger.metadata
            for ledger in await reads.read_all([item.ledger_id for item in wanted])
        }
        reports += [
            ItemReport(
                ledger_id=item.ledger_id,
                bookies=tuple(sorted(item.missing)),
                age_ms=max(0, now_ms - item.since_ms),
                bytes_to_copy=(
                    bytes_to_copy(ledgers[item.ledger_id], item.missing)
                    if item.ledger_id in ledgers
                    else 0
                ),
                is_in_work=item.ledger_id in locked,
            )
            for item in wanted
        ]
    lost, problems = await items.lost()
    unreadable += problems
    return ItemsReport(len(ids) - gone, tuple(reports), lost, tuple(unreadable))


async def _read_items(
    items: WorkItems, ledger_ids: Sequence[int]
) -> tuple[list[WorkItem], list[str]]:
    found: list[WorkItem] = []
    problems: list[str] = []
    for result in await asyncio.gather(*map(items.read, ledger_ids), return_exceptions=True):
        if isinstance(result, InvalidLedgerMetadataError):
            problems.append(str(result))
        elif isinstance(result, BaseException):
            raise result
        elif result is not None:  # else a worker finished it meanwhile
            found.append(result)
    return found, problems


async def report_bookies(store: MetadataStore, root: str) -> tuple[BookieReport, ...]:
    """Return all bookies that are registered or have a cookie, in the order of their ids.

    Raises:
        MetadataError
    """

    async def names(path: str) -> set[str]:
        try:
            return set(await store.children(f"{root}/{path}"))
        except NoNodeError:
            return set()

    await store.catch_up()
    cookies = await names("cookies")
    readonly = await names("available/readonly")
    writable = await names("available") - {"readonly"}
    readonly |= await names("available/readonly")
    states = dict.fromkeys(cookies, "lost") | dict.fromkeys(readonly, "readonly")
    states |= dict.fromkeys(writable, "writable")
    return tuple(BookieReport(bookie_id, states[bookie_id]) for bookie_id in sorted(states))


async def report_status(
    store: MetadataStore,
    items: WorkItems,
    reads: PacedReads,
    *,
    now_ms: int,
    items_max: int,
    root: str = "/ledgers",
) -> RecoveryStatus:
    """Return the state of re-replication.

    Raises:
        InvalidLedgerMetadataError: a value that an operator wrote is not understood.
        MetadataError
    """
    controls = Controls(store, root)
    auditor = await read_leader(store, election_path(root))
    delay_s, _ = await controls.read_delay()
    return RecoveryStatus(
        auditor=auditor,
        is_enabled=await controls.is_enabled(),
        delay_s=delay_s,
        bookies=await report_bookies(store, root),
        last_run_ms={check.name.lower(): await controls.last_run_ms(check) for check in Check},
        items=await report_items(items, reads, now_ms=now_ms, items_max=items_max),
    )


async def lock_holder(store: MetadataStore, ledger_id: int, *, root: str = "/ledgers") -> str:
    """Return the worker that holds the ledger's replication lock; empty if none does.

    Raises:
        MetadataError
    """
    try:
        value = (await store.get(lock_path(root, ledger_id))).value
    except NoNodeError:
        return ""
    return value.decode(errors="replace").rpartition(" ")[0]


class Survey:
    """Counts the work items for the auditor's metrics, periodically."""

    def __init__(
        self,
        items: WorkItems,
        reads: PacedReads,
        *,
        clock: Clock,
        settings: AuditorSettings,
        metrics: AuditorMetrics,
    ) -> None:
        self._items = items
        self._reads = reads
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Request a survey before the interval is over, since something has changed."""
        self._requested.set()

    async def wait_request(self, timeout_s: float) -> None:
        """Wait for a request, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._requested.wait()
        except TimeoutError:
            pass  # the interval is over
        self._requested.clear()

    async def run(self) -> None:
        """Count the work items once.

        Raises:
            MetadataError: the metrics stay as they were.
        """
        report = await report_items(
            self._items,
            self._reads,
            now_ms=self._clock.wall_ms(),
            items_max=self._settings.survey_items_max,
        )
        metrics, overdue_s = self._metrics, self._settings.overdue_item_age_s
        metrics.under_replicated_ledgers = report.count
        metrics.under_replicated_bytes = report.bytes_to_copy
        metrics.ledgers_in_work = report.in_work
        metrics.oldest_item_age_s = report.oldest_age_ms / 1000
        metrics.overdue_items = sum(
            overdue_s > 0 and item.age_ms > overdue_s * 1000 for item in report.items
        )
        metrics.ledgers_without_replica = len(report.lost)
        if len(report.unreadable) > metrics.unreadable_items:
            for problem in report.unreadable:
                _log.error("work_item_not_understood", problem=problem)
        metrics.unreadable_items = len(report.unreadable)
