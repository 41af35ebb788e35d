"""The sweep of manifests: keeps the newest one of each log, and none of a log that is gone.

As with objects, the keys are listed first and the node is read after that. Superfluous manifests
are deleted in a later pass, when readers that use an older list are done. The node tells which
manifests belong to its own log: one that is ahead of the node is of an earlier log with that name.

In any doubt a manifest stays: if a node cannot be read or understood, if a key is no manifest's, if
the sweeper may no longer be the only one.

Source: tiered storage, section 17.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import structlog

from magnetar.ledger.errors import InvalidPathError, LedgerError, NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.log_manifest import (
    ManifestKey,
    manifest_through,
    parse_manifest_key,
    read_manifest,
)
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.orphans import times_of_lost_logs
from magnetar.ledger.ports import Clock

log = structlog.get_logger()

_LOGS_AT_ONCE = 100
"""Logs whose nodes are read after one catch-up with the metadata store."""

_GONE = (-1, -1)
"""Position of a log that does not exist: every manifest is ahead of it."""


@dataclass(slots=True)
class ManifestSweepCounts:
    """Results of one pass."""

    manifests: int = 0
    old: int = 0
    """Manifests that are not needed, including those that were deleted."""
    deleted: int = 0
    undecided: int = 0
    """Manifests whose logs could not be read, or which may be of a log that the metadata lost."""
    put_off: int = 0
    """Old manifests beyond the number that a sweep remembers: a later pass begins with them."""


@dataclass(frozen=True, slots=True)
class _OfLog:
    """The manifests of one log, in the order of their keys."""

    keys: tuple[tuple[str, ManifestKey], ...]


class ManifestSweep:
    """Sweeps the manifests of one cluster in one store. Remembers which ones it saw unneeded."""

    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        prefix: str,
        *,
        clock: Clock,
        grace_s: float,
        remembered_max: int = 100_000,
    ) -> None:
        """Make the sweep of one store; reads nothing.

        Args:
            prefix: the beginning of the keys of the cluster's manifests (`manifests_prefix`).
            grace_s: how long this sweep sees a manifest as unneeded before it deletes it.
            remembered_max: keys that are remembered until then, about 400 bytes each. If there are
                more, they are deleted that many at a time.
        """
        self._objects = objects
        self._store = store
        self._prefix = prefix
        self._clock = clock
        self._grace_s = grace_s
        self._remembered_max = remembered_max
        self._old_since_s: dict[str, float] = {}

    async def sweep(self, *, may_delete: Callable[[], bool]) -> ManifestSweepCounts:
        """Check all keys once; delete the manifests whose grace is over.

        `may_delete` is called right before each deletion; it returns False when another process may
        sweep.

        Raises:
            ObjectError: the keys cannot be listed, or not be deleted. Finished work remains.
        """
        counts = ManifestSweepCounts()
        seen: dict[str, float] = {}
        logs: list[_OfLog] = []
        try:
            async for found in self._logs():
                logs.append(found)
                if len(logs) >= _LOGS_AT_ONCE:
                    await self._sweep_logs(logs, counts, seen, may_delete)
                    logs.clear()
            await self._sweep_logs(logs, counts, seen, may_delete)
        except BaseException:
            # Keys that this pass did not reach keep their time.
            self._old_since_s |= seen
            raise
        self._old_since_s = seen
        return counts

    async def _logs(self) -> AsyncIterator[_OfLog]:
        """Yield the manifests by log, in the order of the list."""
        keys: list[tuple[str, ManifestKey]] = []
        async for page in self._objects.list(self._prefix):
            for each in page:
                parsed = parse_manifest_key(each.key)
                if parsed is None:
                    continue
                if keys and keys[-1][1].directory != parsed.directory:
                    yield _OfLog(tuple(keys))
                    keys.clear()
                keys.append((each.key, parsed))
            await asyncio.sleep(0)
        if keys:
            yield _OfLog(tuple(keys))

    async def _sweep_logs(
        self,
        logs: Sequence[_OfLog],
        counts: ManifestSweepCounts,
        seen: dict[str, float],
        may_delete: Callable[[], bool],
    ) -> None:
        if not logs:
            return
        # No node is read in a state older than the list of keys, whichever server answers.
        await self._store.catch_up()
        due: list[str] = []
        for each in logs:
            counts.manifests += len(each.keys)
            found = await self._reached(each)
            if found is None:
                counts.undecided += len(each.keys)
                continue
            reached, lost = found
            keys = [pair for pair in each.keys if pair[1].written_ms not in lost]
            counts.undecided += len(each.keys) - len(keys)
            for key in _old_in(keys, reached):
                counts.old += 1
                now_s = self._clock.monotonic_s()
                since_s = self._old_since_s.pop(key, None)
                is_full = len(seen) + len(self._old_since_s) >= self._remembered_max
                if since_s is None and is_full:
                    counts.put_off += 1
                    continue
                seen[key] = now_s if since_s is None else since_s
                if since_s is not None and now_s - since_s >= self._grace_s:
                    due.append(key)
        if due and may_delete():
            await self._objects.delete(due)
            for key in due:
                log.debug("manifest_deleted", key=key)
                seen.pop(key)
            counts.deleted += len(due)

    async def _reached(self, found: _OfLog) -> tuple[tuple[int, int], range] | None:
        """Return the log's position, as keys of manifests state it, and the times of lost logs of
        this path; None if they cannot be determined."""
        key, parsed = found.keys[-1]
        reached = _GONE
        metadata: LogMetadata | None = None
        try:
            path = parsed.log if parsed.log is not None else await self._ask(key)
            try:
                node = await self._store.get(path)
                metadata = LogMetadata.from_json(node.value, path=path)
                reached = manifest_through(metadata), node.version
            except NoNodeError:
                # A store of one file can lose a node; the manifest may then restore it.
                if not await self._store.is_gone(path):
                    raise
            return reached, await times_of_lost_logs(self._store, path, metadata)
        except (LedgerError, InvalidPathError) as error:
            log.warning("manifest_undecided", key=key, error=str(error))
            return None

    async def _ask(self, key: str) -> str:
        """Return the path of a log whose name is too long for a key, from the manifest itself."""
        return (await read_manifest(self._objects, key)).log


def _old_in(found: Sequence[tuple[str, ManifestKey]], reached: tuple[int, int]) -> list[str]:
    """Return the keys of all manifests but the newest one that is not ahead of the log."""
    own = [key for key, parsed in found if (parsed.through, parsed.version) <= reached]
    kept = max(own, default=None)
    return [key for key, _ in found if key != kept]
