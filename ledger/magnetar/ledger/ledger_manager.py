"""The ledger manager: ledger metadata as nodes of the metadata store.

The layout decides the path of a ledger's node and the source of ids (`ledger_layout.py`). Every
write is a compare-and-set on the version that the change was computed from (rule 2.1). The writer
and the recoverer have the loops that decide what to do after a conflict. Creating is
create-if-absent with a random token (rule 3.1).

Layout: docs/formats/ledger-metadata.md. Source: ledger protocol, section 3.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from operator import lt
from typing import Self

from magnetar.ledger.errors import (
    BadVersionError,
    ContendedError,
    InvalidLedgerMetadataError,
    InvariantError,
    LedgerIdsExhaustedError,
    LedgerLayoutError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NotEmptyError,
    SessionExpiredError,
    UnknownOutcomeError,
)
from magnetar.ledger.layouts.ledger_layout import (
    LayoutName,
    LayoutRecord,
    LedgerLayout,
    LedgerRange,
    check_layout,
    claim_layout,
    layout_name_of,
)
from magnetar.ledger.layouts.ledger_layout_flat import FlatLayout
from magnetar.ledger.layouts.ledger_layout_hierarchical import HierarchicalLayout
from magnetar.ledger.ledger_metadata import LEDGER_ID_MAX, LedgerMetadata
from magnetar.ledger.metadata.cell import Cell, Changed, Stored
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchCallback, parent_path
from magnetar.ledger.ports import Clock

CREATE_ATTEMPTS_MAX = 100
"""Ids in use and lost replies in a row before a creation fails."""
LAYOUT_LOOK_S = 10.0
"""Seconds between two checks, at ledger creation, whether the root's ledgers have passwords now."""
_IDS_AT_ONCE = 32
"""Ids requested in parallel when many are to be skipped."""


@dataclass(frozen=True, slots=True)
class VersionedLedger:
    """Metadata of a ledger, and the version of its node for the next write."""

    metadata: LedgerMetadata
    version: int
    stored_ms: int | None = field(default=None, compare=False)
    """Creation time of the node by the clock of the metadata store; None if it was not read, or the
    store keeps no times. The metadata has the time by the creator's clock."""


class LedgerManager:
    """Creates, reads, writes, lists and deletes ledger metadata."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        random: random.Random,
        clock: Clock,
        root: str = "/ledgers",
        layout: LayoutName = "hierarchical",
        follows_root: bool = False,
        create_timeout_s: float = 30.0,
    ) -> None:
        """`follows_root`: use the layout that the root names, if it differs from `layout`."""
        self._store = store
        self._random = random
        self._clock = clock
        self._root = root
        self._create_timeout_s = create_timeout_s
        self._layout = _layout_named(layout, store, root)
        self._follows_root = follows_root
        self._record: LayoutRecord | None = None
        """The root's layout record; None if it was not read, or the root has none yet."""
        self._look_again_s = 0.0

    @classmethod
    async def of_root(
        cls, store: MetadataStore, *, random: random.Random, clock: Clock, root: str = "/ledgers"
    ) -> Self:
        """Return a manager with the layout that the root names, for callers that do not choose one.

        Call it again each time: the first ledger of a cluster decides on the layout.

        Raises:
            LedgerLayoutError: the root's layout record cannot be understood.
            MetadataUnavailableError
        """
        layout = await layout_name_of(store, root)
        return cls(store, random=random, clock=clock, root=root, layout=layout, follows_root=True)

    async def create(self, make: Callable[[int, int], LedgerMetadata]) -> VersionedLedger:
        """Create a ledger under a new id.

        Args:
            make: builds the first value from the ledger id and the creation token. It is called
                again for each id that turns out to be taken.

        Raises:
            MetadataUnavailableError: nothing was created, or the created ledger has no owner and is
                empty.
            LedgerIdsExhaustedError
            LedgerLayoutError: the root belongs to another ledger manager.
        """
        deadline_s = self._clock.monotonic_s() + self._create_timeout_s
        for _ in range(CREATE_ATTEMPTS_MAX):
            if self._clock.monotonic_s() > deadline_s:
                break
            try:
                await self._claim_layout()
                ledger_id = await self._layout.next_id()
                metadata = make(ledger_id, self._random.getrandbits(63))
                if metadata.ledger_id != ledger_id:
                    raise InvariantError(
                        f"ledger {ledger_id} cannot be created: its metadata names ledger "
                        f"{metadata.ledger_id}"
                    )
                created = await self._create_with_id(metadata)
            except (ContendedError, UnknownOutcomeError, SessionExpiredError):
                continue  # Gaps between ids are normal: a ledger left behind has no owner.
            if created is not None:
                return created
        raise MetadataUnavailableError(
            f"could not create a ledger in {self._create_timeout_s} s or {CREATE_ATTEMPTS_MAX} "
            "attempts"
        )

    async def pass_ids(
        self, ledger_ids: Sequence[int], *, ids_max: int, on_behind: Callable[[int], None]
    ) -> None:
        """Ensure that none of these ids, which were given out once, is given out again.

        A repetition is possible only after a restore of the metadata from a backup that is older
        than the ids, since that resets the counter. Ids are then used up until the counter is past
        them. An id more than `ids_max` ahead of the counter was never given out, and is ignored.
        `on_behind` gets the number of ids to use up, before that begins: each takes about a
        millisecond.

        Raises:
            MetadataUnavailableError
            LedgerLayoutError: see `create`.
        """
        await self._check_layout()
        # The newest ledger exists, so the counter is at least as new.
        if not ledger_ids or await self._exists(max(ledger_ids)):
            return
        try:
            passed = await self._used_up()
            highest = max((each for each in ledger_ids if each <= passed + ids_max), default=-1)
            if passed < highest:
                on_behind(highest - passed)
            while passed < highest:
                count = min(_IDS_AT_ONCE, highest - passed)
                passed = max(await asyncio.gather(*(self._used_up() for _ in range(count))))
        except LedgerIdsExhaustedError:
            pass  # No ledger is created any more.

    async def ids_to_pass(self, ledger_id: int) -> int:
        """Return how many ids must be used up until an id is not given out again; uses up one.

        Raises:
            MetadataUnavailableError
            LedgerLayoutError: as `create`.
        """
        await self._check_layout()
        if await self._exists(ledger_id):
            return 0
        try:
            return max(0, ledger_id - await self._used_up())
        except LedgerIdsExhaustedError:
            return 0  # No ledger is created any more.

    async def _used_up(self) -> int:
        """Take a new id and discard it; return it.

        Raises:
            LedgerIdsExhaustedError, MetadataUnavailableError
        """
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                return await self._layout.next_id()
            except (UnknownOutcomeError, SessionExpiredError):
                continue
        raise MetadataUnavailableError(f"no ledger id was given in {CREATE_ATTEMPTS_MAX} attempts")

    async def _exists(self, ledger_id: int) -> bool:
        try:
            path = self._layout.path(ledger_id)
        except NoSuchLedgerError:
            return False
        return await self._store.exists(path) is not None

    async def read(self, ledger_id: int) -> VersionedLedger:
        """Read the metadata of a ledger.

        Raises:
            NoSuchLedgerError, InvalidLedgerMetadataError, MetadataUnavailableError
            LedgerLayoutError: see `create`.
        """
        await self._check_layout()
        path = self._layout.path(ledger_id)
        try:
            node = await self._store.get(path)
        except NoNodeError as exc:
            raise NoSuchLedgerError(f"ledger {ledger_id} has no metadata at {path}") from exc
        metadata = _decoded(node.value, path, ledger_id)
        return VersionedLedger(metadata, node.version, node.created_ms)

    @property
    def records_deletions(self) -> bool:
        """Whether the store can tell a deleted ledger from one that it lost."""
        return self._store.records_deletions

    async def is_deleted(self, ledger_id: int) -> bool:
        """Return whether the ledger was deleted. If the store records deletions, a ledger that is
        missing without a record was lost, and the result is False.

        Raises:
            MetadataUnavailableError
            LedgerLayoutError: see `create`.
        """
        await self._check_layout()
        return await self._store.is_gone(self._layout.path(ledger_id))

    async def write(self, metadata: LedgerMetadata, *, version: int) -> VersionedLedger:
        """Replace the metadata if its node still has `version`.

        Raises:
            BadVersionError: another client wrote first; read again.
            UnknownOutcomeError: read again and compare before deciding (rule 2.3).
            NoSuchLedgerError: the ledger was deleted.
            MetadataUnavailableError: nothing was changed.
        """
        path = self._layout.path(metadata.ledger_id)
        try:
            new_version = await self._store.set(path, metadata.to_json(), version=version)
        except NoNodeError as exc:
            raise NoSuchLedgerError(f"ledger {metadata.ledger_id} was deleted") from exc
        return VersionedLedger(metadata, new_version)

    async def change(
        self,
        ledger_id: int,
        change: Callable[[LedgerMetadata], Awaitable[LedgerMetadata | None]],
        *,
        tries_max: int,
        known: VersionedLedger | None = None,
    ) -> Changed[LedgerMetadata]:
        """Replace the metadata by the result of `change`; None leaves it unchanged.

        Args:
            known: a value that was read before, for the first attempt.

        Raises:
            ContendedError: other clients wrote first, `tries_max` times; nothing was changed.
            UnknownOutcomeError: the change may have been written (rule 2.3).
            NoSuchLedgerError: the ledger was deleted.
            InvalidLedgerMetadataError, MetadataUnavailableError: nothing was changed.
            LedgerLayoutError: see `create`.
        """
        await self._check_layout()
        path = self._layout.path(ledger_id)

        async def changed(metadata: LedgerMetadata | None) -> LedgerMetadata | None:
            if metadata is None:
                raise NoSuchLedgerError(f"ledger {ledger_id} has no metadata at {path}")
            return await change(metadata)

        cell = Cell(
            self._store,
            path,
            decode=lambda value: _decoded(value, path, ledger_id),
            encode=LedgerMetadata.to_json,
            tries_max=tries_max,
        )
        begin = None if known is None else Stored(known.metadata, known.version)
        return await cell.change_async(changed, known=begin, is_sure=False)

    async def delete(self, ledger_id: int, *, version: int | None = None) -> None:
        """Delete the metadata; the bookies notice when they collect garbage (rule 3.3).

        If a version is given, delete only if the node still has it.

        Raises:
            NoSuchLedgerError, BadVersionError, UnknownOutcomeError, MetadataUnavailableError
            LedgerLayoutError: see `create`.
        """
        await self._check_layout()
        path = self._layout.path(ledger_id)
        try:
            await self._store.delete(path, version=version)
        except NoNodeError as exc:
            raise NoSuchLedgerError(f"ledger {ledger_id} has no metadata at {path}") from exc
        directory = path
        while (directory := parent_path(directory)) != self._root:
            try:
                # Version 0 only: a directory that was ever written to was written on purpose.
                await self._store.delete(directory, version=0)
            except (NotEmptyError, NoNodeError, BadVersionError):
                return
            except (UnknownOutcomeError, MetadataUnavailableError):
                return  # A leftover empty directory does no harm.

    async def ledger_ids(self) -> AsyncIterator[int]:
        """Yield all ledger ids, in numeric order. Ends normally only when the listing is complete.

        Raises:
            LedgerError: see `ledger_ranges`.
        """
        async for found in self.ledger_ranges():
            for ledger_id in found.ledger_ids:
                yield ledger_id

    async def catch_up(self) -> None:
        """Wait until later reads see every ledger that was created before this call.

        Raises:
            MetadataError: see `MetadataStore`.
        """
        await self._store.catch_up()

    async def ledger_ranges(self) -> AsyncIterator[LedgerRange]:
        """Yield all ledgers as complete ranges (rule 3.2), which together cover all ids.

        A caller that deletes unlisted ledgers may conclude nothing about ids outside the ranges it
        got. Ledgers created or deleted during the listing may or may not be in it.

        Raises:
            NoNodeError: there is no root node. The cluster does not exist, or the path is wrong: a
                garbage collector must not take it for "no ledgers".
            LedgerLayoutError: see `create`; or a ledger lies where the layout has none.
            MetadataUnavailableError
        """
        await self._check_layout()
        next_id = 0
        async for found in self._layout.ranges():
            ids = found.ledger_ids
            if not found.first_id == next_id <= found.last_id:
                raise InvariantError(
                    f"ledgers {found.first_id} to {found.last_id} were listed where {next_id} is "
                    "the next one"
                )
            if not all(map(lt, ids, ids[1:])):
                raise InvariantError(
                    f"ledgers {found.first_id} to {found.last_id} are not in numeric order"
                )
            if ids and not found.first_id <= ids[0] <= ids[-1] <= found.last_id:
                raise InvariantError(
                    f"ledgers {ids[0]} to {ids[-1]} were listed as part of {found.first_id} to "
                    f"{found.last_id}"
                )
            yield found
            next_id = found.last_id + 1
        if next_id != LEDGER_ID_MAX + 1:
            raise InvariantError(f"the listing of ledgers ended before ledger {next_id}")

    def watch(self, ledger_id: int, callback: WatchCallback) -> Watch:
        """Run `callback` when the ledger's metadata changes; see `MetadataStore.watch`."""
        return self._store.watch(self._layout.path(ledger_id), callback)

    @property
    def has_ledger_passwords(self) -> bool:
        """Whether new ledgers of the root get a password. Known while one is created."""
        return self._record is not None and self._record.ledger_passwords

    async def _claim_layout(self) -> None:
        """Claim the root for this layout, and learn whether its ledgers have passwords by now. Once
        they have, they always will."""
        now_s = self._clock.monotonic_s()
        if self.has_ledger_passwords or (self._record and now_s < self._look_again_s):
            return
        self._record = await claim_layout(self._store, self._root, self._layout)
        self._look_again_s = now_s + LAYOUT_LOOK_S

    async def _check_layout(self) -> None:
        """Check the root's layout. A root without a record is assumed to have this layout; the
        first creation claims it."""
        if self._record is not None:
            return
        try:
            self._record = await check_layout(self._store, self._root, self._layout)
        except LedgerLayoutError:
            if not self._follows_root:
                raise
            # The root has named a layout since it was last read. It does so only once.
            layout = await layout_name_of(self._store, self._root)
            self._layout = _layout_named(layout, self._store, self._root)
            self._record = await check_layout(self._store, self._root, self._layout)

    async def _create_with_id(self, metadata: LedgerMetadata) -> VersionedLedger | None:
        """Create the node (rule 3.1); return None if the id belongs to another client.

        Raises:
            UnknownOutcomeError: the reply was lost and the node cannot be read just now.
            MetadataUnavailableError
        """
        path = self._layout.path(metadata.ledger_id)
        try:
            await self._store.create(path, metadata.to_json())
        except (NodeExistsError, UnknownOutcomeError):
            return await self._find_own(metadata)
        return VersionedLedger(metadata, 0)

    async def _find_own(self, metadata: LedgerMetadata) -> VersionedLedger | None:
        """Return the ledger if it exists and carries our token: then only the reply was lost."""
        try:
            found = await self.read(metadata.ledger_id)
        except (NoSuchLedgerError, InvalidLedgerMetadataError):
            # It does not exist, or is not ours. A lost create could still take effect where nothing
            # was found, so the id is abandoned rather than tried again.
            return None
        return found if found.metadata.creation_token == metadata.creation_token else None


def _decoded(value: bytes, path: str, ledger_id: int) -> LedgerMetadata:
    metadata = LedgerMetadata.from_json(value, where=path)
    if metadata.ledger_id != ledger_id:
        raise InvalidLedgerMetadataError(
            f"{path} holds the metadata of ledger {metadata.ledger_id}, not of {ledger_id}. "
            f"Nothing was changed: bring the value back from a backup of the metadata store"
        )
    return metadata


def _layout_named(name: LayoutName, store: MetadataStore, root: str) -> LedgerLayout:
    if name == "flat":
        return FlatLayout(store, root)
    return HierarchicalLayout(store, root, is_long=name == "longhierarchical")
