"""The work items of re-replication: published, listed, read, taken, and deleted with a version.

An item says which bookies lack which entries of one ledger (`under_replication.py` defines the
bytes). A worker holds the ledger's lock and remembers the version that the item had before the
worker checked the ledger. At the end it deletes the item with that version. If another bookie was
added meanwhile, the version has changed, and the item stays (rule 2.1, defect A1).

Layout: docs/formats/under-replication.md. Source: auto-recovery, section 2.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.ledger.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import MetadataStore, parent_path
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import ReplicationLock, UnreleasedLocks
from magnetar.ledger.under_replication import (
    Missing,
    Range,
    decode_item,
    item_path,
    publish_item,
)

GROUPS = 4
"""Number of directory levels above an item, each named by four hex digits of the ledger's id."""


def items_path(root: str) -> str:
    """Return the path below which the items lie."""
    return f"{root}/underreplication/ledgers"


def locks_path(root: str) -> str:
    """Return the path below which the locks lie."""
    return f"{root}/underreplication/locks"


def disable_path(root: str) -> str:
    """Return the path of the switch: while this node exists, workers finish their work and take no
    new items."""
    return f"{root}/underreplication/disable"


def lost_path(root: str, ledger_id: int) -> str:
    """Return the path of the record of the entries of a ledger that no bookie has."""
    return f"{root}/underreplication/lost/urL{ledger_id}"


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A ledger that lacks copies."""

    ledger_id: int
    missing: Missing
    since_ms: int
    """Wall clock time of the first report, in ms since 1970."""
    version: int
    """Version of the node when it was read."""

    @property
    def bookies(self) -> frozenset[str]:
        return frozenset(self.missing)

    def ranges_of(self, bookie_id: str) -> list[Range]:
        """Return the entries that the bookie is reported to lack."""
        return self.missing.get(bookie_id, [])


class WorkItems:
    """The items of one cluster."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        clock: Clock,
        random: random.Random,
        root: str = "/ledgers",
        ranges_max: int = 1000,
    ) -> None:
        """Make the items below one root; reads nothing.

        Args:
            ranges_max: ranges of one bookie in one item; more are joined into one that covers all.
        """
        self._store = store
        self._clock = clock
        self._random = random
        self._root = root
        self._ranges_max = ranges_max

    async def publish(self, ledger_id: int, missing: Missing) -> bool:
        """Create the item, or merge into the existing one; return whether anything changed.

        A lost bookie lacks `[EVERYTHING]` (`under_replication.py`). Idempotent. A worker that works
        on the ledger checks it again, even if the item contained all of it already.

        Raises:
            InvalidLedgerMetadataError: the node holds no item that this version can read.
            UnknownOutcomeError, MetadataUnavailableError: publish again.
        """
        return await publish_item(
            self._store,
            ledger_id,
            missing,
            root=self._root,
            now_ms=self._clock.wall_ms(),
            ranges_max=self._ranges_max,
            renews=True,
        )

    async def read(self, ledger_id: int) -> WorkItem | None:
        """Return the item of a ledger; None if there is none.

        Raises:
            InvalidLedgerMetadataError, MetadataUnavailableError
        """
        path = item_path(self._root, ledger_id)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            return None
        missing, since_ms = decode_item(node.value, path=path)
        return WorkItem(ledger_id, missing, since_ms, node.version)

    async def ids(self) -> list[int]:
        """Return the ledgers that (may) have an item, ascending. An empty directory that an
        interrupted deletion left counts as one; `read` tells the difference.

        Raises:
            MetadataUnavailableError
        """
        return [ledger_id for _, ids in await self.directories() for ledger_id in ids]

    async def directories(self) -> list[tuple[str, list[int]]]:
        """Return all directories of the tree but the lowest, each with the ledgers directly below
        it.

        Raises:
            MetadataUnavailableError
        """
        found: list[tuple[str, list[int]]] = []
        pending = [(items_path(self._root), "")]
        while pending:
            path, digits = pending.pop(0)
            groups = sorted(filter(_is_group, await self._children_if_any(path)))
            if len(digits) == 4 * (GROUPS - 1):
                found.append((path, [int(digits + group, 16) for group in groups]))
            else:
                found.append((path, []))
                pending += [(f"{path}/{group}", digits + group) for group in groups]
        return found

    async def locked_ids(self) -> set[int]:
        """Return the ledgers whose lock is held.

        Raises:
            MetadataUnavailableError
        """
        names = await self._children_if_any(locks_path(self._root))
        return set(_ids_of(names))

    async def take_lock(
        self, ledger_id: int, holder: str, *, unclear: UnreleasedLocks
    ) -> ReplicationLock | None:
        """Take the ledger's lock; return None if it is held. See `ReplicationLock.try_take`.

        Raises:
            MetadataUnavailableError
        """
        return await ReplicationLock.try_take(
            self._store,
            ledger_id,
            holder=holder,
            random=self._random,
            unclear=unclear,
            root=self._root,
        )

    async def delete(self, item: WorkItem) -> bool:
        """Delete the item if it is as it was read; return False if it has changed, and stays.

        Raises:
            UnknownOutcomeError: read again; the item is gone, or must be judged anew.
            MetadataUnavailableError
        """
        try:
            await self._store.delete(item_path(self._root, item.ledger_id), version=item.version)
        except NoNodeError:
            pass  # an earlier attempt deleted it, and its answer was lost
        except BadVersionError:
            return False
        await self.remove_directories(item.ledger_id)
        return True

    async def remove_directories(self, ledger_id: int) -> bool:
        """Remove the empty directories above a deleted item; return False if an item exists.

        Raises:
            Nothing: an empty directory that stays does no harm.
        """
        directory = parent_path(item_path(self._root, ledger_id))
        for depth in range(GROUPS):
            try:
                # Version 0: a directory that was ever written to has a meaning for its writer.
                await self._store.delete(directory, version=0)
            except NotEmptyError:
                return depth > 0
            except NoNodeError:
                pass
            except (BadVersionError, UnknownOutcomeError, MetadataUnavailableError):
                return True
            directory = parent_path(directory)
        return True

    async def note_lost(self, ledger_id: int, ranges: Sequence[Range]) -> None:
        """Record the entries that no bookie has, for operators; an empty list removes the record.

        Raises:
            UnknownOutcomeError, MetadataUnavailableError: call again.
        """
        path = lost_path(self._root, ledger_id)
        try:
            await self._store.delete(path)
        except NoNodeError:
            pass
        if ranges:
            value = {"format": 1, "ledger_id": ledger_id, "ranges": list(ranges)}
            try:
                await self._store.create(path, json.dumps(value, separators=(",", ":")).encode())
            except NodeExistsError:
                pass  # two workers, one after the other without a session in between

    async def is_lost(self, ledger_id: int) -> bool:
        """Return whether entries of the ledger are recorded as lost.

        Raises:
            MetadataUnavailableError
        """
        return await self._store.exists(lost_path(self._root, ledger_id)) is not None

    async def lost_ids(self) -> list[int]:
        """Return the ledgers with entries recorded as lost.

        Raises:
            MetadataUnavailableError
        """
        return _ids_of(await self._children_if_any(parent_path(lost_path(self._root, 0))))

    async def lost(self) -> tuple[dict[int, list[Range]], list[str]]:
        """Return the entries that are recorded as lost, by ledger, and why records cannot be read.
        A ledger whose record cannot be read has no ranges.

        Raises:
            MetadataUnavailableError
        """
        found: dict[int, list[Range]] = {}
        problems: list[str] = []
        for ledger_id in await self.lost_ids():
            path = lost_path(self._root, ledger_id)
            try:
                value = (await self._store.get(path)).value
            except NoNodeError:
                continue
            try:
                record = json.loads(value)
                if record["format"] != 1:
                    raise ValueError(f"format {record['format']!r}")
                found[ledger_id] = [(int(first), int(last)) for first, last in record["ranges"]]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                found[ledger_id] = []
                problems.append(
                    f"{path}: no record of lost entries: {error!r}. Nothing was changed: delete "
                    f"the node; a worker writes it again if entries are lost"
                )
        return found, problems

    async def is_disabled(self) -> bool:
        """Return whether an operator switched auto-recovery off.

        Raises:
            MetadataUnavailableError
        """
        return await self._store.exists(disable_path(self._root)) is not None

    async def _children_if_any(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []


def _ids_of(names: Iterable[str]) -> list[int]:
    return [int(name[3:]) for name in names if name.startswith("urL") and name[3:].isdecimal()]


def _is_group(name: str) -> bool:
    return len(name) == 4 and all(character in "0123456789abcdef" for character in name)
