"""The orphan sweep: finds ledgers that no owner refers to any more, and deletes them on request.

A ledger is left behind when its owner dies, or loses a reply, at one of two moments: between
creating the ledger and naming it, or between unlisting it and deleting it. Its custom metadata says
which component made it, and for which owner. It is an *orphan* if that owner certainly does not
name it and it is older than a long grace period. Every doubt keeps it: unreadable metadata, an
owner that does not answer, an unknown component, clocks that disagree. A store of one file can lose
the node of an owner; without a record of the node's deletion, the owner counts as one that does not
answer. So does a log that was created after the ledger (`times_of_lost_logs`).

A clock that is ahead would make every ledger look old, even one that its owner is about to name. So
the metadata store is asked for the time, too, and nothing is judged unless the two agree
(`agreed_ms`). The creator's clock may have been behind, so a ledger is no older than its node, by
the store's clock. The embedded store keeps no times, and needs none: all its users are on one
machine.

An orphan that is still OPEN is not deleted but sealed: it becomes IN_RECOVERY, which makes its
writer withdraw if there still is one. The next sweep deletes it if it is still an orphan. An owner
that woke up late and named it meanwhile finds an empty ledger instead of a missing one.

Source: ledger protocol, section 2.1 (custom metadata), rule 3.3.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from magnetar.ledger.errors import (
    BadVersionError,
    ClocksApartError,
    InvalidLedgerMetadataError,
    LedgerError,
    MetadataError,
    NoNodeError,
    NoSuchLedgerError,
    OwnerUnclearError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock

GRACE_MS_MIN = 60 * 60 * 1000
"""Lower limit of the grace period, far above the time from a creation to the owner's write."""

GRACE_MS_DEFAULT = 72 * 60 * 60 * 1000
"""Long enough for an operator to look into a failure before its traces are deleted."""

_LATE_MS = GRACE_MS_MIN
"""After a deletion, a ledger or an object may be made that late for the log that was deleted: by a
slow owner, or by another clock."""

_EVER_MS = 1 << 63

CLOCKS_APART_MS_MAX = 5 * 60 * 1000
"""If the clocks are further apart, one is wrong. Much less than the shortest grace period."""

IsReferred = Callable[[LedgerMetadata], Awaitable[bool]]
"""Asks the owner in the ledger's custom metadata whether it names the ledger.

Raises:
    OwnerUnclearError, LedgerError: the owner cannot be asked, or its answer is not understood.
"""


class Verdict(Enum):
    """The sweep's verdict on a ledger. Printed by name, never rename."""

    IN_USE = "in_use"
    TOO_YOUNG = "too_young"
    """Not judged yet: its owner may be about to name it."""
    UNDECIDED = "undecided"
    """Kept because of a doubt, which `Finding.reason` gives."""
    ORPHAN = "orphan"
    SEALED = "sealed"
    """An OPEN orphan that is now IN_RECOVERY; the next sweep deletes it."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one ledger."""

    ledger_id: int
    verdict: Verdict
    reason: str
    custom_metadata: Mapping[str, str]


class OrphanSweep:
    """Checks all ledgers of a root."""

    def __init__(
        self,
        manager: LedgerManager,
        owners: Mapping[str, IsReferred],
        *,
        now_ms: int,
        grace_ms: int = GRACE_MS_DEFAULT,
    ) -> None:
        """Prepare a sweep.

        Args:
            owners: the check for each `component` of the ledgers' custom metadata.
            now_ms: wall clock; see `agreed_ms`.

        Raises:
            ValueError: the grace period is below `GRACE_MS_MIN`.
        """
        if grace_ms < GRACE_MS_MIN:
            raise ValueError(f"a grace of {grace_ms} ms; the least is {GRACE_MS_MIN}")
        self._manager = manager
        self._owners = owners
        self._now_ms = now_ms
        self._grace_ms = grace_ms

    async def run(self, *, delete: bool = False) -> AsyncIterator[Finding]:
        """Judge every ledger, in the order of their ids; delete orphans only if `delete` is set.

        Raises:
            MetadataError, LedgerLayoutError: the ledgers cannot be listed. Earlier findings remain
                valid.
        """
        async for ledger_id in self._manager.ledger_ids():
            try:
                ledger = await self._manager.read(ledger_id)
            except NoSuchLedgerError:
                continue  # Deleted since the listing.
            except (InvalidLedgerMetadataError, MetadataError) as error:
                yield Finding(ledger_id, Verdict.UNDECIDED, str(error), {})
                continue
            finding = await self._judge(ledger)
            if delete and finding.verdict is Verdict.ORPHAN:
                finding = await self._remove(ledger, finding)
            yield finding

    async def _judge(self, ledger: VersionedLedger) -> Finding:
        metadata = ledger.metadata

        def finding(verdict: Verdict, reason: str) -> Finding:
            return Finding(metadata.ledger_id, verdict, reason, metadata.custom_metadata)

        age_ms = self._now_ms - max(metadata.created_ms, ledger.stored_ms or 0)
        if age_ms < self._grace_ms:
            return finding(Verdict.TOO_YOUNG, f"{age_ms} ms old, the grace is {self._grace_ms} ms")
        component = metadata.custom_metadata.get("component")
        is_referred = self._owners.get(component) if component is not None else None
        if is_referred is None:
            return finding(Verdict.UNDECIDED, f"no known component created it: {component!r}")
        try:
            if await is_referred(metadata):
                return finding(Verdict.IN_USE, f"its {component} refers to it")
        except LedgerError as error:
            return finding(Verdict.UNDECIDED, f"cannot check its {component}: {error}")
        return finding(Verdict.ORPHAN, f"its {component} does not refer to it")

    async def _remove(self, ledger: VersionedLedger, finding: Finding) -> Finding:
        """Seal or delete an orphan, unless its metadata changed since it was judged."""
        metadata = ledger.metadata
        try:
            if metadata.state is LedgerState.OPEN:
                await self._manager.write(metadata.in_recovery(), version=ledger.version)
                return replace(finding, verdict=Verdict.SEALED)
            await self._manager.delete(metadata.ledger_id, version=ledger.version)
        except NoSuchLedgerError:
            pass  # Another client deleted it, which is the intended result.
        except BadVersionError:
            return replace(
                finding, verdict=Verdict.UNDECIDED, reason="its metadata changed meanwhile"
            )
        except UnknownOutcomeError as error:
            return replace(
                finding, verdict=Verdict.UNDECIDED, reason=f"the reply was lost: {error}"
            )
        return replace(finding, verdict=Verdict.DELETED)


async def agreed_ms(store: MetadataStore, clock: Clock) -> int:
    """Return the time on which this machine and the metadata store agree: the earlier of the two.

    Raises:
        ClocksApartError: they do not agree. Retry after the wrong clock is set.
        MetadataError
    """
    asked_ms = clock.wall_ms()
    # Only a newly written node has the current time. It ends with the session at the latest.
    path = await store.create("/orphan-sweep-", ephemeral=True, sequential=True)
    store_ms = (await store.get(path)).created_ms
    with suppress(MetadataError):
        await store.delete(path)
    now_ms = clock.wall_ms()
    if store_ms is None:
        return now_ms
    if not asked_ms - CLOCKS_APART_MS_MAX <= store_ms <= now_ms + CLOCKS_APART_MS_MAX:
        raise ClocksApartError(
            f"the clock of this machine says {_time(now_ms)}, that of the metadata store "
            f"{_time(store_ms)}: the age of ledgers is unknown, and nothing was changed. Set the "
            "clock that is wrong, and run the command again"
        )
    return min(now_ms, store_ms)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


async def owner_value(store: MetadataStore, path: str) -> bytes | None:
    """Return the value of the node of an owner; None if the node was deleted.

    Raises:
        OwnerUnclearError: the node is missing, but was not deleted: a store of one file has lost
            it, or a crash came before its creation.
        MetadataError
    """
    try:
        return (await store.get(path)).value
    except NoNodeError as error:
        if await store.is_gone(path):
            return None
        raise OwnerUnclearError(
            f"{path} is missing without a record of its deletion: if the metadata store lost it, "
            "bring it back from a backup"
        ) from error


async def times_of_lost_logs(store: MetadataStore, path: str, log: LogMetadata | None) -> range:
    """Return when there may have been a log at this path that the metadata store lost, in ms since
    1970.

    That is the time between the last recorded deletion of the node and the creation of the log that
    is there now. A client that uses a lost topic creates it again; that log names nothing of the
    lost one. Ledgers and objects that were made in this time may be all that is left of it.

    Args:
        log: the log at the path now; None if there is none.

    Raises:
        MetadataError
    """
    if not store.records_deletions:
        return range(0)
    deleted_ms = await store.deleted_ms(path)
    begin_ms = 0 if deleted_ms is None else deleted_ms + _LATE_MS
    return range(begin_ms, _EVER_MS if log is None else log.created_ms)


def log_refers(store: MetadataStore) -> IsReferred:
    """Return a check that asks the managed log of the ledger (component "managed-log")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        path = metadata.custom_metadata.get("log")
        if path is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which log it is of")
        value = await owner_value(store, path)
        log = None if value is None else LogMetadata.from_json(value, path=path)
        for ledger in log.ledgers if log is not None else ():
            if ledger.ledger_id == metadata.ledger_id:
                # The log needs none that is in an object only: its deletion was interrupted.
                return not ledger.is_in_object_only
        if metadata.created_ms in await times_of_lost_logs(store, path, log):
            raise OwnerUnclearError(
                f"the ledger is older than the log at {path}, and no deletion of an earlier log is "
                "recorded: if the metadata store lost that log, bring it back from a backup; to "
                "give its entries up, delete the log"
            )
        return False

    return is_referred
