"""Audits and periodic checks, which an auditor runs over all ledgers of a cluster.

- The **audit** looks for ledgers that name lost bookies and publishes an item for each. It asks no
  bookie: `lost_bookies.py` decided before which ones are lost.
- The **replicas check** (BP-34) asks each bookie for the list of its entries and compares it with
  the round-robin schedule. It is the only one that finds entries that stayed at the ack quorum
  (rule 4.1).
- The **all-ledgers check** reads the first and the last entry that each bookie should hold of each
  fragment, without recovering anything.
- The **placement check** counts fragments whose write sets span too few racks or zones.

A bookie that gives no answer is not known to lack anything (rule 5.5). Its ledger gets a second
look after all the others, and then counts as undecided. Before anything is published as missing,
the metadata is read again and the ledger checked once more: a worker may just have moved the
copies, or the ledger may be deleted.

Source: auto-recovery, sections 3, 4 and 7.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from enum import Enum

import structlog

from magnetar.ledger.autorecovery.checker import Checker
from magnetar.ledger.autorecovery.fragments import (
    MemberState,
    Span,
    ranges_of_member,
    spans_of,
)
from magnetar.ledger.autorecovery.ledger_scan import PacedReads, for_each_at_once, scan_ledgers
from magnetar.ledger.autorecovery.metrics import AuditorMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    BookieUnavailableError,
    InvalidLedgerMetadataError,
    LedgerError,
    MetadataError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.pace import Pace
from magnetar.ledger.placing.placement_search import write_sets
from magnetar.ledger.ports import Clock
from magnetar.ledger.reading.lac_reads import LacRead
from magnetar.ledger.registration import BookieInfo
from magnetar.ledger.under_replication import EVERYTHING, Missing

_log = structlog.get_logger(__name__)


class UndecidedError(LedgerError):
    """Not enough bookies answered to say what a ledger lacks. Look again later."""

    retryable = True


Look = Callable[[LedgerMetadata, bool], Awaitable[Missing]]
"""Function that returns the entries that bookies certainly lack of a ledger; gets its metadata, and
whether this is the second look.

Raises:
    UndecidedError: part of the answer is unknown.
"""


class Audits:
    """Runs audits and checks over all ledgers. One audit and one check at a time."""

    def __init__(
        self,
        manager: LedgerManager,
        channels: ChannelPool,
        checker: Checker,
        items: WorkItems,
        *,
        clock: Clock,
        random: random.Random,
        settings: AuditorSettings,
        metrics: AuditorMetrics,
    ) -> None:
        self._manager = manager
        self._channels = channels
        self._checker = checker
        self._items = items
        self._clock = clock
        self._random = random
        self._settings = settings
        self._metrics = metrics
        self.reads = PacedReads(
            manager,
            clock,
            per_s_max=settings.metadata_reads_per_s_max,
            at_once_max=settings.metadata_reads_at_once_max,
        )
        self._mass_loss_pace = Pace(settings.mass_loss_items_per_s_max)

    async def audit(
        self, is_lost: Callable[[str], bool], *, is_mass_loss: Callable[[], bool]
    ) -> int:
        """Publish an item for each ledger that names a lost bookie; return how many items were new,
        or got another bookie.

        Both functions are called again for each ledger: a bookie that is back is not lost.

        Raises:
            MetadataError, LedgerLayoutError: incomplete; published items stay.
        """
        published = 0

        async def look(ledger: VersionedLedger) -> None:
            nonlocal published
            metadata = ledger.metadata
            if not any(map(is_lost, _members(metadata))):
                return
            wait_s = 0.0
            if is_mass_loss():
                wait_s = self._mass_loss_pace.take(1, self._clock.monotonic_s())
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            lost = [bookie_id for bookie_id in _members(metadata) if is_lost(bookie_id)]
            missing = {bookie_id: [EVERYTHING] for bookie_id in lost}
            if lost and await self._publish(metadata.ledger_id, missing, source="audit"):
                published += 1

        async def counted() -> AsyncIterator[VersionedLedger]:
            async for ledger in self._scan():
                self._metrics.audit_ledgers += 1
                yield ledger

        await for_each_at_once(counted(), look, at_once_max=self._settings.publishes_at_once_max)
        return published

    async def check_replicas(self) -> None:
        """Compare every bookie's list of entries with the schedule, for closed ledgers that have no
        item yet.

        Raises:
            MetadataError, LedgerLayoutError: incomplete.
        """
        marked = set(await self._items.ids())

        async def lists(metadata: LedgerMetadata, is_second: bool) -> Missing:
            found = await self._checker.check(metadata, {})
            if found.unclear:
                raise UndecidedError("; ".join(found.unclear[:5]))
            return found.missing()

        await self._check(
            "replicas",
            lists,
            is_wanted=lambda metadata: (
                metadata.state is LedgerState.CLOSED and metadata.ledger_id not in marked
            ),
        )

    async def check_all_ledgers(self) -> None:
        """Read the first and the last entry that each bookie should hold of each fragment.

        Raises:
            MetadataError, LedgerLayoutError: incomplete.
        """
        await self._check("all_ledgers", self._sample, is_wanted=lambda metadata: True)

    async def check_placement(
        self, bookies: Mapping[str, BookieInfo], *, racks_min: int, zones_min: int
    ) -> None:
        """Count the fragments of closed ledgers that lie in too few racks or zones.

        Raises:
            MetadataError, LedgerLayoutError: incomplete.
        """
        counts = dict.fromkeys(Adherence, 0)
        async for ledger in self._scan():
            metadata = ledger.metadata
            if metadata.state is not LedgerState.CLOSED:
                continue
            self._count("placement", metadata)
            for fragment in metadata.ensembles:
                found = adherence_of(
                    fragment,
                    bookies,
                    write_quorum=metadata.write_quorum,
                    racks_min=racks_min,
                    zones_min=zones_min,
                )
                counts[found] += 1
        failed, soft = counts[Adherence.FAILED], counts[Adherence.SOFT]
        self._metrics.concentrated_fragments = failed
        self._metrics.misplaced_fragments = failed + soft
        if failed or soft:
            _log.warning("placement_not_kept", fragments=failed + soft, in_one_domain=failed)

    async def _scan(self) -> AsyncIterator[VersionedLedger]:
        """Yield the metadata of every ledger, and show how many ledgers cannot be read.

        Raises:
            MetadataError, LedgerLayoutError
        """
        async for ledger in scan_ledgers(self.reads):
            yield ledger
        self._metrics.unreadable_ledgers = len(self.reads.unreadable)

    # Checks of the bookies' entries

    async def _check(
        self, name: str, look: Look, *, is_wanted: Callable[[LedgerMetadata], bool]
    ) -> None:
        """Check every ledger that is wanted, and check undecided ones once more."""
        undecided: list[int] = []
        pace = Pace(self._settings.check_ledgers_per_s_max)

        async def first_look(ledger: VersionedLedger) -> None:
            if not is_wanted(ledger.metadata):
                return
            if wait_s := pace.take(1, self._clock.monotonic_s()):
                await asyncio.sleep(wait_s)
            self._count(name, ledger.metadata)
            try:
                await self._look_and_publish(name, ledger, look, is_second=False)
            except UndecidedError as error:
                if len(undecided) < self._settings.second_looks_max:
                    undecided.append(ledger.metadata.ledger_id)
                else:
                    self._give_up(name, ledger.metadata.ledger_id, error)

        async def second_look(ledger: VersionedLedger) -> None:
            try:
                await self._look_and_publish(name, ledger, look, is_second=True)
            except UndecidedError as error:
                self._give_up(name, ledger.metadata.ledger_id, error)

        at_once_max = self._settings.check_ledgers_at_once_max
        await for_each_at_once(self._scan(), first_look, at_once_max=at_once_max)
        if undecided:
            await asyncio.sleep(self._settings.second_look_delay_s)
            await for_each_at_once(
                self._read_again(undecided), second_look, at_once_max=at_once_max
            )

    async def _read_again(self, ledger_ids: list[int]) -> AsyncIterator[VersionedLedger]:
        step = self.reads.at_once_max
        for start in range(0, len(ledger_ids), step):
            for ledger in await self.reads.read_all(ledger_ids[start : start + step]):
                yield ledger

    async def _look_and_publish(
        self, name: str, ledger: VersionedLedger, look: Look, *, is_second: bool
    ) -> None:
        """Publish missing entries, if a look with fresh metadata confirms that some are missing.

        Raises:
            UndecidedError
        """
        missing = await self._look(ledger.metadata, look, is_second)
        if not missing:
            return
        try:
            await self._manager.catch_up()
            fresh = await self._manager.read(ledger.metadata.ledger_id)
        except NoSuchLedgerError:
            return  # Its bookies may rightly have dropped it.
        except InvalidLedgerMetadataError as error:
            raise UndecidedError(str(error)) from error
        missing = await self._look(fresh.metadata, look, is_second)
        if missing:
            await self._publish(fresh.metadata.ledger_id, missing, source=name)

    async def _look(self, metadata: LedgerMetadata, look: Look, is_second: bool) -> Missing:
        try:
            async with asyncio.timeout(self._settings.check_ledger_timeout_s):
                return await look(metadata, is_second)
        except TimeoutError as error:
            raise UndecidedError(
                f"ledger {metadata.ledger_id}: no result within "
                f"{self._settings.check_ledger_timeout_s} s"
            ) from error
        except (UndecidedError, MetadataError):
            raise
        except LedgerError as error:
            raise UndecidedError(f"ledger {metadata.ledger_id}: {error}") from error

    def _give_up(self, name: str, ledger_id: int, error: UndecidedError) -> None:
        _log.warning("check_undecided", check=name, ledger_id=ledger_id, error=str(error))
        _add(self._metrics.undecided_ledgers, name)

    def _count(self, name: str, metadata: LedgerMetadata) -> None:
        _add(self._metrics.checked_ledgers, name)
        _add(self._metrics.checked_fragments, name, len(metadata.ensembles))

    async def _sample(self, metadata: LedgerMetadata, is_second: bool) -> Missing:
        """Check one ledger for the all-ledgers check (a `Look`). Unregistered bookies are left to
        the audit.

        In the last fragment of a ledger that is not closed, only confirmed entries are certain to
        exist: an entry above the last add confirmed that all members lack was never written. Until
        the second look, a confirmed entry there may still be under way to a slow member.
        """
        spans = spans_of(metadata, last_add_confirmed=await self._confirmed_in_tail(metadata))
        missing: Missing = {}
        unknown: list[str] = []
        for span in spans:
            for index, bookie_id in enumerate(span.bookies):
                for entry_id in self._sampled(span, index, metadata.write_quorum):
                    state = await self._checker.has_entry(metadata, bookie_id, entry_id)
                    if state is MemberState.LACKS:
                        missing.setdefault(bookie_id, []).append((entry_id, entry_id))
                    elif state is MemberState.UNKNOWN:
                        unknown.append(bookie_id)
        if unknown and not missing:
            raise UndecidedError(
                f"ledger {metadata.ledger_id}: no clear answer of {', '.join(sorted(set(unknown)))}"
            )
        tail = spans[-1]
        if not tail.is_complete and not is_second and _reaches(missing, tail.first):
            raise UndecidedError(f"ledger {metadata.ledger_id} is being written")
        return missing

    def _sampled(self, span: Span, index: int, write_quorum: int) -> list[int]:
        """Choose the entries of a member to read: the first, the last, and a share of the
        others."""
        ranges = ranges_of_member(span, index, write_quorum)
        if not ranges:
            return []
        chosen = {ranges[0][0], ranges[-1][1]}
        if share := self._settings.all_ledgers_check_share:
            for first, last in ranges:
                count = round((last - first + 1) * share)
                chosen.update(self._random.sample(range(first, last + 1), count))
        return sorted(chosen)

    async def _confirmed_in_tail(self, metadata: LedgerMetadata) -> int:
        if metadata.state is LedgerState.CLOSED:
            return -1
        try:
            read = LacRead(self._channels, metadata, codec_for(metadata), enough_above=None)
            return await read.run()
        except BookieUnavailableError as error:
            raise UndecidedError(
                f"ledger {metadata.ledger_id} is open, and its last add confirmed cannot be read: "
                f"{error}"
            ) from error

    async def _publish(self, ledger_id: int, missing: Missing, *, source: str) -> bool:
        """Publish an item; return whether that changed anything.

        Raises:
            MetadataError
        """
        try:
            is_new = await self._items.publish(ledger_id, missing)
        except InvalidLedgerMetadataError as error:
            # Overwriting an unreadable item could drop entries that others noted.
            _log.error("item_not_published", ledger_id=ledger_id, error=str(error))
            return False
        if is_new:
            _add(self._metrics.items_published, source)
            _log.info("item_published", ledger_id=ledger_id, bookies=sorted(missing), source=source)
        return is_new


def _members(metadata: LedgerMetadata) -> list[str]:
    """Return all bookies that the ledger names."""
    return list(dict.fromkeys(name for each in metadata.ensembles for name in each.bookies))


def _reaches(missing: Missing, first: int) -> bool:
    return any(last >= first for ranges in missing.values() for _, last in ranges)


def _add(counts: dict[str, int], label: str, number: int = 1) -> None:
    counts[label] = counts.get(label, 0) + number


class Adherence(Enum):
    """How well a fragment keeps to the placement rules."""

    STRICT = "strict"
    """Every write set spans enough domains."""
    SOFT = "soft"
    """Some write set spans too few domains, but more than one."""
    FAILED = "failed"
    """Some write set lies in a single domain."""
    UNKNOWN = "unknown"
    """No write set has only registered members."""


def adherence_of(
    fragment: Fragment,
    bookies: Mapping[str, BookieInfo],
    *,
    write_quorum: int,
    racks_min: int,
    zones_min: int = 1,
) -> Adherence:
    """Return how well one fragment keeps to the minima, given the bookies registered now.

    Each write set of a fragment is judged by itself: with E > Qw it is not enough that the ensemble
    as a whole spans several racks. Bookies without a domain count as one domain of their own, and a
    minimum is never higher than the number of domains that exist. A write set with an unregistered
    member cannot be judged; it is left out.
    """
    worst = Adherence.UNKNOWN
    wanted = [
        (_zone, min(zones_min, write_quorum, len({_zone(each) for each in bookies.values()}))),
        (_rack, min(racks_min, write_quorum, len({_rack(each) for each in bookies.values()}))),
    ]
    for places in write_sets(len(fragment.bookies), write_quorum):
        members = [bookies.get(fragment.bookies[place]) for place in places]
        known = [member for member in members if member is not None]
        if len(known) < len(members):
            continue
        for domain, minimum in wanted:
            spanned = len({domain(member) for member in known})
            if spanned < minimum:
                if spanned == 1:
                    return Adherence.FAILED
                worst = Adherence.SOFT
        if worst is Adherence.UNKNOWN:
            worst = Adherence.STRICT
    return worst


def _zone(info: BookieInfo) -> tuple[str, ...]:
    return (info.zone,)


def _rack(info: BookieInfo) -> tuple[str, ...]:
    return (info.zone, info.rack)
