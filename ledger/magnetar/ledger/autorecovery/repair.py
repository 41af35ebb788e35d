"""Brings one ledger back to its write quorum: check, copy, swap, check again.

Copy first, metadata last (rule 5.1): a lost member stays in the ensemble until its replacement has
confirmed every entry as durable. Then one compare-and-set puts the new member into the old one's
place, and changes nothing else (5.2). It is based on a fresh read, and written only while the
ledger's lock is held. On a conflict the change is judged anew, and dropped if the fragment is no
longer what it was (5.4). A member on which no entry of a short fragment falls is replaced, too,
without a copy (5.3, defect A5). A registered bookie that lacks entries, or has bad copies of them,
gets them again where they belong: that needs no other bookie (defect A6).

The tail of a ledger that is not closed is never touched (rule 6.1, defect A3). When a member of it
is lost, its writer has some time to notice by itself; then the ledger is fenced and closed, and
repaired as a closed one. The writer rolls to a new ledger (6.2). So an open ledger is left to its
writer while there are too few bookies for a new ledger, or none to replace a lost one. Closing it
would stop publishing that works without a spare bookie, and would yield no copy.

Source: auto-recovery, sections 5 and 6.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import Enum

import structlog

from magnetar.ledger.autorecovery.checker import Checker
from magnetar.ledger.autorecovery.copier import Copier
from magnetar.ledger.autorecovery.fragments import (
    LedgerCheck,
    MemberState,
    SpanCheck,
    pieces_of,
    ranges_of_member,
    subtract,
    with_replaced,
)
from magnetar.ledger.autorecovery.worker_metrics import WorkerMetrics
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    ContendedError,
    InvalidLedgerMetadataError,
    LedgerError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReplicationLockLostError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.under_replication import Missing, Range, merge_ranges

_log = structlog.get_logger(__name__)

_LOST_RANGES_MAX = 1000

HoldsLock = Callable[[], Awaitable[bool]]


class RepairState(Enum):
    """Outcome of an attempt."""

    WHOLE = "whole"
    """All bookies that the metadata names were asked, and none is known to lack an entry that
    belongs on it."""
    DELETED = "deleted"
    """The ledger no longer exists."""
    OPEN = "open"
    """The remaining trouble lies in the tail of a ledger that is not closed."""
    FAILED = "failed"
    """Copies are still missing; `reason` says why."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of an attempt."""

    state: RepairState
    reason: str = ""
    error: str = ""
    """Kind of the first trouble, for counting."""
    lost: tuple[Range, ...] = ()
    """Entries that no bookie has: data loss (rule 5.6)."""
    is_unreachable: bool = False
    """Whether some entries are only on bookies that did not answer."""
    is_broken_off: bool = False
    """Whether an error ended the attempt early: nothing is known of losses."""


@dataclass(slots=True)
class _Left:
    """What an attempt could not do."""

    reasons: list[str]
    lost: list[Range]
    error: str = ""
    is_unreachable: bool = False

    def note(self, error: str, reason: str) -> None:
        self.error = self.error or error
        self.reasons.append(reason)


class LedgerRepair:
    """Repairs ledgers, one per call. The caller holds the ledger's lock."""

    def __init__(
        self,
        client: LedgerClient,
        checker: Checker,
        copier: Copier,
        *,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
    ) -> None:
        self._client = client
        self._checker = checker
        self._copier = copier
        self._settings = settings
        self._metrics = metrics

    async def repair(
        self, ledger_id: int, reported: Missing, *, may_close: bool, holds_lock: HoldsLock
    ) -> Repaired:
        """Make one attempt to repair a ledger.

        Args:
            reported: the entries that each bookie is reported to lack, as in a work item. A bookie
                counts as lost only if it lacks `EVERYTHING` and is not registered.
            may_close: fence and close the ledger if its tail is in trouble.

        Raises:
            ReplicationLockLostError: nothing was changed since the lock was lost.
            MetadataUnavailableError, UnknownOutcomeError: try again later.
        """
        try:
            return await self._attempt(ledger_id, reported, may_close, holds_lock)
        except NoSuchLedgerError:
            return Repaired(RepairState.DELETED)
        except (MetadataUnavailableError, UnknownOutcomeError, ReplicationLockLostError):
            raise
        except InvalidLedgerMetadataError as error:
            _log.error("ledger_not_repaired", ledger_id=ledger_id, error=str(error))
            return _broken_off(error)
        except LedgerError as error:
            return _broken_off(error)

    async def look(self, ledger_id: int, reported: Missing) -> LedgerCheck:
        """Return the missing copies of a ledger. Changes nothing.

        Raises:
            NoSuchLedgerError, LedgerError: its metadata cannot be read.
        """
        self._metrics.ledgers_checked += 1
        metadata = (await self._client.manager.read(ledger_id)).metadata
        return await self._checker.check(metadata, reported)

    async def _attempt(
        self, ledger_id: int, reported: Missing, may_close: bool, holds_lock: HoldsLock
    ) -> Repaired:
        check = await self.look(ledger_id, reported)
        left = _Left([], [])
        if check.is_tail_in_trouble and may_close and self._may_fence(check, left):
            if not await holds_lock():
                raise _lock_lost(ledger_id)
            _log.warning(
                "open_ledger_is_closed", ledger_id=ledger_id, reason="its tail lost a bookie"
            )
            await self._client.open_and_recover(ledger_id)
            self._metrics.ledgers_fenced += 1
            check = await self.look(ledger_id, reported)
        spans = [each for each in check.complete_spans if not each.is_whole]
        for span in spans:
            await self._repair_span(check, span, left, holds_lock)
        if spans:
            check = await self.look(ledger_id, reported)
        return self._conclude(check, left)

    def _may_fence(self, check: LedgerCheck, left: _Left) -> bool:
        """Return whether the writer could create a new ledger now, and the lost members be
        replaced."""
        metadata, tail = check.metadata, check.tail
        if tail is None or metadata.state is not LedgerState.OPEN:
            return True  # its writer has lost it already
        parts, bookies = self._client.parts, list(tail.span.bookies)
        try:
            parts.placement.choose_ensemble(
                parts.registry.writable(),
                ensemble_size=len(bookies),
                write_quorum=metadata.write_quorum,
                ack_quorum=metadata.ack_quorum,
                avoided=parts.health.quarantined(),
            )
            for member in tail.members:
                if member.state is MemberState.GONE:
                    bookies[member.index] = self._choose(metadata, bookies, member.index, ())
        except NotEnoughBookiesError as error:
            left.note("NotEnoughBookies", f"the open ledger is left to its writer: {error}")
            return False
        return True

    def _conclude(self, check: LedgerCheck, left: _Left) -> Repaired:
        lost = (
            merge_ranges(
                [*left.lost, *check.lost(check.metadata.write_quorum)], ranges_max=_LOST_RANGES_MAX
            )
            if left.lost or not check.is_whole
            else []
        )
        if check.is_whole and not left.reasons and not lost:
            return Repaired(RepairState.WHOLE)
        if check.is_tail_in_trouble:
            state = RepairState.OPEN
            left.note("OpenLedger", "the open fragment lacks copies")
        else:
            state = RepairState.FAILED
        for reason in check.unclear:
            left.note("Unclear", reason)
        if lost:
            left.note("DataLoss", f"no bookie has the entries {lost}")
        if not left.reasons:
            left.note("Incomplete", "copies were still missing after the repair")
        return Repaired(
            state,
            "; ".join(dict.fromkeys(left.reasons)),
            left.error,
            tuple(lost),
            left.is_unreachable,
        )

    # One fragment

    async def _repair_span(
        self,
        check: LedgerCheck,
        span_check: SpanCheck,
        left: _Left,
        holds_lock: HoldsLock,
    ) -> None:
        metadata, span = check.metadata, span_check.span
        lost = check.lost(metadata.write_quorum)
        replaced = self._replacements(metadata, span_check, left)
        wanted: dict[str, list[Range]] = {}
        for member in span_check.members:
            if (new := replaced.get(member.bookie_id)) is not None:
                wanted[new] = ranges_of_member(span, member.index, metadata.write_quorum)
            elif member.state is MemberState.LACKS:
                wanted[member.bookie_id] = subtract(member.missing, lost)
        if replaced and any(subtract(ranges, lost) != ranges for ranges in wanted.values()):
            # The old member must stay: it may be the only one that can ever return them.
            left.note("DataLoss", f"the fragment from entry {span.first} on has lost entries")
            wanted = {each: wanted[each] for each in wanted if each not in replaced.values()}
            replaced = {}
        result = await self._copier.copy(metadata, span, pieces_of(wanted))
        left.lost += result.lost
        left.is_unreachable |= result.is_unreachable
        for failure in result.failures:
            left.note("NotCopied", failure)
        if replaced and result.is_complete:
            await self._swap(metadata.ledger_id, span.first, replaced, left, holds_lock)

    def _replacements(
        self, metadata: LedgerMetadata, span_check: SpanCheck, left: _Left
    ) -> dict[str, str]:
        """Map each member to replace to its replacement: lost members, and read-only ones that lack
        entries."""
        parts = self._client.parts
        span = span_check.span
        bookies = list(span.bookies)
        replaced: dict[str, str] = {}
        for member in span_check.members:
            info = parts.registry.resolve(member.bookie_id)
            is_gone = member.state is MemberState.GONE
            # A bookie that left since the check may be restarting.
            takes_none = member.state is MemberState.LACKS and info is not None and info.readonly
            if not is_gone and not takes_none:
                continue
            try:
                new = self._choose(metadata, bookies, member.index, span.bookies)
            except NotEnoughBookiesError as error:
                if is_gone:
                    left.note("NotEnoughBookies", str(error))
                continue  # a read-only bookie may have room for recovery adds
            bookies[member.index] = replaced[member.bookie_id] = new
        return replaced

    def _choose(
        self, metadata: LedgerMetadata, bookies: list[str], index: int, excluded: Collection[str]
    ) -> str:
        """Return a bookie for a place of a fragment.

        Raises:
            NotEnoughBookiesError
        """
        parts = self._client.parts
        return parts.placement.choose_replacement(
            parts.registry.writable(),
            ensemble=bookies,
            index=index,
            write_quorum=metadata.write_quorum,
            ack_quorum=metadata.ack_quorum,
            excluded={*excluded, *bookies},
            avoided=parts.health.quarantined(),
        )

    async def _swap(
        self,
        ledger_id: int,
        first_entry_id: int,
        replaced: dict[str, str],
        left: _Left,
        holds_lock: HoldsLock,
    ) -> None:
        """Put the new members into their places by compare-and-set."""
        tries_max = self._settings.metadata_retries_max
        tries = 0

        async def swap(metadata: LedgerMetadata) -> LedgerMetadata | None:
            nonlocal tries
            self._metrics.swap_conflicts += tries > 0
            changed = with_replaced(metadata, first_entry_id, replaced)
            if changed is None:
                if not _is_swapped(metadata, first_entry_id, replaced):
                    left.note(
                        "Conflict",
                        f"the fragment from entry {first_entry_id} on was changed meanwhile",
                    )
                return None
            # As late as possible: without the lock, a bookie may drop the entries copied to it.
            if not await holds_lock():
                raise _lock_lost(ledger_id)
            tries += 1
            return changed

        try:
            swapped = await self._client.manager.change(ledger_id, swap, tries_max=tries_max)
        except ContendedError:
            self._metrics.swap_conflicts += 1
            left.note("Conflict", f"{tries_max} conflicts in a row")
            return
        if swapped.is_written:
            self._metrics.members_replaced += len(replaced)
            _log.info(
                "members_replaced", ledger_id=ledger_id, first=first_entry_id, replaced=replaced
            )


def _broken_off(error: LedgerError) -> Repaired:
    return Repaired(RepairState.FAILED, str(error), type(error).__name__, is_broken_off=True)


def _is_swapped(metadata: LedgerMetadata, first_entry_id: int, replaced: dict[str, str]) -> bool:
    """Return whether the change is made already, by an attempt whose outcome was unknown."""
    return any(
        fragment.first_entry_id == first_entry_id
        and set(replaced.values()) <= set(fragment.bookies)
        and not set(replaced) & set(fragment.bookies)
        for fragment in metadata.ensembles
    )


def _lock_lost(ledger_id: int) -> ReplicationLockLostError:
    return ReplicationLockLostError(
        f"ledger {ledger_id}: its replication lock was lost with the session; the worker that "
        f"holds it now continues"
    )
