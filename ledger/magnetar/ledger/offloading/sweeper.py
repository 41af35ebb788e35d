"""The sweep of an object store: deletes the objects that no log names. Only the sweep deletes
objects.

The keys are listed first, and the nodes of the logs are read after that. A node names an attempt
before its object has a byte, and never names it again once it was dropped. So an object that was
listed, and that its log's node does not name when read later, will never be used again. It is
nevertheless deleted in a later pass: readers that use an older list may still need it.

Objects that a backup names stay (`backup_pins.py`). A restore may make a node name such an object
again, so the node is read once more after the backups.

In any doubt an object stays: if a node cannot be read or understood, if a key is no ledger's, if
the sweeper may no longer be the only one.

Source: tiered storage, section 17 (invariants O3, O9 and OL2).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import structlog

from magnetar.ledger.errors import InvalidPathError, LedgerError, NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.backup_pins import BackupPins
from magnetar.ledger.offloading.object_format import ObjectName
from magnetar.ledger.offloading.object_keys import ObjectKey, parse_key
from magnetar.ledger.offloading.object_store import ObjectStore, StoredObject
from magnetar.ledger.offloading.offloader import read_footer
from magnetar.ledger.orphans import times_of_lost_logs
from magnetar.ledger.ports import Clock

log = structlog.get_logger()

_DELETED_AT_ONCE = 1_000


@dataclass(slots=True)
class SweepCounts:
    """Results of one pass."""

    objects: int = 0
    """Objects of ledgers that were listed."""
    unnamed: int = 0
    """Objects that no log names, including those that were deleted."""
    deleted: int = 0
    pinned: int = 0
    """Objects that a backup names but no log does, and whose grace is over."""
    undecided: int = 0
    """Objects whose logs could not be read, or which may be of a log that the metadata lost."""
    foreign: int = 0
    """Keys that belong to no ledger."""
    put_off: int = 0
    """Unnamed objects beyond the number that a sweeper remembers: a later pass begins with them."""


class _Names(NamedTuple):
    """The objects that a log names."""

    attempts: set[tuple[int, str]]
    """By ledger."""
    lost: range
    """When there may have been a log of the same path that the metadata store lost, ms since
    1970."""


class Sweeper:
    """Sweeps one store of one cluster. Remembers the objects that it saw unnamed."""

    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        prefix: str,
        *,
        clock: Clock,
        grace_s: float,
        pins: BackupPins | None = None,
        unnamed_max: int = 100_000,
    ) -> None:
        """Make the sweeper of one store; reads nothing.

        Args:
            prefix: the beginning of the keys of the cluster's ledgers (`ledgers_prefix`).
            grace_s: how long this sweeper sees an object as unnamed before it deletes it.
            pins: the cluster's backups; None if it has none.
            unnamed_max: keys of unnamed objects that are remembered until then, about 400 bytes
                each. If there are more, they are deleted that many at a time. Not less than the
                keys of one page of a list: else objects of backups may keep others for ever.
        """
        self._objects = objects
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._grace_s = grace_s
        self._pins = pins
        self._unnamed_max = unnamed_max
        self._unnamed_since_s: dict[str, float] = {}

    @property
    def remembered(self) -> int:
        """Number of keys of unnamed objects that it remembers."""
        return len(self._unnamed_since_s)

    async def sweep(self, *, may_delete: Callable[[], bool]) -> SweepCounts:
        """Check all keys once; delete the objects whose grace is over.

        `may_delete` is called right before each deletion; it returns False when another process may
        sweep.

        Raises:
            ObjectError: the keys cannot be listed, or not be deleted. Finished work remains.
        """
        counts = SweepCounts()
        seen: dict[str, float] = {}
        try:
            async for page in self._objects.list(self._prefix):
                await self._sweep_page(page, counts, seen, may_delete)
                await asyncio.sleep(0)
        except BaseException:
            # Keys that this pass did not reach keep their time.
            self._unnamed_since_s |= seen
            raise
        self._unnamed_since_s = seen
        return counts

    async def _sweep_page(
        self,
        page: Sequence[StoredObject],
        counts: SweepCounts,
        seen: dict[str, float],
        may_delete: Callable[[], bool],
    ) -> None:
        written_ms = {each.key: each.written_ms for each in page}
        parsed = [(each.key, parse_key(each.key)) for each in page]
        counts.foreign += sum(1 for _, found in parsed if found is None)
        ours = [(key, found) for key, found in parsed if found is not None]
        counts.objects += len(ours)
        # No node is read in a state older than the list of keys, whichever server answers.
        await self._store.catch_up()
        due: list[str] = []
        for _, group in groupby(ours, key=lambda each: each[1].directory):
            of_log = list(group)
            names = await self._names(*of_log[0])
            if names is None:
                counts.undecided += len(of_log)
                continue
            for key, found in of_log:
                if (found.ledger_id, found.attempt) in names.attempts:
                    continue
                if written_ms[key] in names.lost:
                    counts.undecided += 1
                    continue
                counts.unnamed += 1
                now_s = self._clock.monotonic_s()
                since_s = self._unnamed_since_s.pop(key, None)
                if since_s is None and self._is_full(seen):
                    counts.put_off += 1
                    continue
                seen[key] = now_s if since_s is None else since_s
                if since_s is not None and now_s - since_s >= self._grace_s:
                    due.append(key)
        due = due[:_DELETED_AT_ONCE]
        if due and self._pins is not None:
            unpinned = await self._without_pinned(due, self._pins, counts)
            if self._is_full(seen):
                # Objects of backups must not prevent others from being remembered.
                for key in set(due).difference(unpinned):
                    seen.pop(key)
            due = unpinned
        if due and may_delete():
            await self._objects.delete(due)
            for key in due:
                log.info("object_deleted", key=key)
                seen.pop(key)
                counts.deleted += 1

    def _is_full(self, seen: Mapping[str, float]) -> bool:
        """Return whether no further key can be remembered. Keys of the last pass that this one has
        not reached are not in `seen`."""
        return len(self._unnamed_since_s) + len(seen) >= self._unnamed_max

    async def _without_pinned(
        self, due: Sequence[str], pins: BackupPins, counts: SweepCounts
    ) -> list[str]:
        """Return the keys that no backup names, and that no log names after that either."""
        pinned = await pins.pinned(due)
        counts.pinned += len(pinned)
        await self._store.catch_up()
        left: list[str] = []
        parsed = [(key, found) for key in due if key not in pinned and (found := parse_key(key))]
        for _, group in groupby(parsed, key=lambda each: each[1].directory):
            of_log = list(group)
            names = await self._names(*of_log[0])
            if names is not None:
                left += [
                    key for key, it in of_log if (it.ledger_id, it.attempt) not in names.attempts
                ]
        return left

    async def _names(self, key: str, found: ObjectKey) -> _Names | None:
        """Return what the log of a key names now; None if that cannot be determined."""
        metadata: LogMetadata | None = None
        try:
            path = found.log if found.log is not None else await self._ask(key, found)
            try:
                metadata = LogMetadata.from_json((await self._store.get(path)).value, path=path)
            except NoNodeError:
                # A store of one file can lose a node; these objects may then be the only copies.
                if not await self._store.is_gone(path):
                    raise
            lost = await times_of_lost_logs(self._store, path, metadata)
        except (LedgerError, InvalidPathError) as error:
            log.warning("object_undecided", key=key, error=str(error))
            return None
        attempts = {
            (ledger.ledger_id, attempt)
            for ledger in (metadata.ledgers if metadata is not None else ())
            if ledger.object is not None
            for attempt in (ledger.object.attempt, ledger.object.next)
        }
        return _Names(attempts, lost)

    async def _ask(self, key: str, found: ObjectKey) -> str:
        """Return the path of a log whose name is too long for a key, from the object itself."""
        name = ObjectName(found.ledger_id, bytes.fromhex(found.attempt))
        return (await read_footer(self._objects, key, name)).description.log
