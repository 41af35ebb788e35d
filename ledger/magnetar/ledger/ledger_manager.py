"""The hierarchical ledger manager: ledger ids, and ledger metadata as nodes of the metadata store.

Layout: docs/formats/ledger-metadata.md. A ledger id comes from a sequential node below
`{root}/idgen`; the ten digits of the id split 2-4-4 name the node, `{root}/00/0000/L0001` for id 1.
Every write is a compare-and-set on the version that the change was computed from (rule 2.1); the
loops that decide what to do after a conflict belong to the writer and the recoverer.

Source: ledger protocol, section 3.
"""

import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidLedgerMetadataError,
    LedgerIdsExhaustedError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
    NotEmptyError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import (
    SEQUENCE_DIGITS,
    MetadataStore,
    Watch,
    WatchCallback,
    join_path,
    parent_path,
)
from magnetar.ledger.ports import Clock

LEDGER_ID_LIMIT = (1 << 31) - 1
"""Ids from the generator are below this: ZooKeeper's counter is a signed 32-bit number."""

CREATE_ATTEMPTS_MAX = 100
"""Foreign ids and lost replies in a row before a creation gives up."""

_DIRECTORY = re.compile(r"[0-9]{2}")
_SUBDIRECTORY = re.compile(r"[0-9]{4}")
_LEAF = re.compile(r"L[0-9]{4}")


@dataclass(frozen=True, slots=True)
class VersionedLedger:
    """Metadata and the node version to base the next write on."""

    metadata: LedgerMetadata
    version: int


class LedgerManager:
    """Creates, reads, writes, lists and deletes ledger metadata."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        random: random.Random,
        clock: Clock,
        root: str = "/ledgers",
        create_timeout_s: float = 30.0,
    ) -> None:
        self._store = store
        self._random = random
        self._clock = clock
        self._root = root
        self._create_timeout_s = create_timeout_s

    async def create(self, make: Callable[[int, int], LedgerMetadata]) -> VersionedLedger:
        """Create a ledger under a new id.

        Args:
            make: gets the ledger id and the creation token and makes the first value. It is called
                again for each id that turns out to be taken.

        Raises:
            MetadataUnavailableError: nothing was created, or what was created has no owner and
                holds nothing.
            LedgerIdsExhaustedError
        """
        deadline_s = self._clock.monotonic_s() + self._create_timeout_s
        for _ in range(CREATE_ATTEMPTS_MAX):
            if self._clock.monotonic_s() > deadline_s:
                break
            try:
                ledger_id = await self._generate_id()
                metadata = make(ledger_id, self._random.getrandbits(63))
                assert metadata.ledger_id == ledger_id, (metadata.ledger_id, ledger_id)
                created = await self._create_with_id(metadata)
            except UnknownOutcomeError:
                continue  # Gaps between ids are normal: what it left behind has no owner.
            if created is not None:
                return created
        raise MetadataUnavailableError(
            f"could not create a ledger in {self._create_timeout_s} s or {CREATE_ATTEMPTS_MAX} "
            "attempts"
        )

    async def read(self, ledger_id: int) -> VersionedLedger:
        """
        Raises:
            NoSuchLedgerError, InvalidLedgerMetadataError, MetadataUnavailableError
        """
        path = ledger_path(self._root, ledger_id)
        try:
            node = await self._store.get(path)
        except NoNodeError as exc:
            raise NoSuchLedgerError(f"ledger {ledger_id} has no metadata at {path}") from exc
        metadata = LedgerMetadata.from_json(node.value)
        if metadata.ledger_id != ledger_id:
            raise InvalidLedgerMetadataError(
                f"{path} holds the metadata of ledger {metadata.ledger_id}"
            )
        return VersionedLedger(metadata, node.version)

    async def write(self, metadata: LedgerMetadata, *, version: int) -> VersionedLedger:
        """Replace the metadata if its node still has `version`.

        Raises:
            BadVersionError: somebody else wrote first; read again.
            UnknownOutcomeError: read again and compare before deciding (rule 2.3).
            NoSuchLedgerError: the ledger was deleted.
            MetadataUnavailableError: nothing was changed.
        """
        path = ledger_path(self._root, metadata.ledger_id)
        try:
            new_version = await self._store.set(path, metadata.to_json(), version=version)
        except NoNodeError as exc:
            raise NoSuchLedgerError(f"ledger {metadata.ledger_id} was deleted") from exc
        return VersionedLedger(metadata, new_version)

    async def delete(self, ledger_id: int) -> None:
        """Delete the metadata; the bookies notice when they collect garbage (rule 3.3).

        Raises:
            NoSuchLedgerError, UnknownOutcomeError, MetadataUnavailableError
        """
        path = ledger_path(self._root, ledger_id)
        try:
            await self._store.delete(path)
        except NoNodeError as exc:
            raise NoSuchLedgerError(f"ledger {ledger_id} has no metadata at {path}") from exc
        subdirectory = parent_path(path)
        for directory in (subdirectory, parent_path(subdirectory)):
            try:
                # Version 0: whoever ever wrote to a directory meant something by it.
                await self._store.delete(directory, version=0)
            except (NotEmptyError, NoNodeError, BadVersionError):
                return
            except (UnknownOutcomeError, MetadataUnavailableError):
                return  # An empty directory that stays does no harm.

    async def ledger_ids(self) -> AsyncIterator[int]:
        """All ledger ids, in numeric order.

        The iterator ends normally only when the listing is complete: every error is raised, and
        directories that are empty or vanish meanwhile are passed over (rule 3.2). Ledgers created
        or deleted during the listing may or may not be in it.

        Raises:
            NoNodeError: there is no root node. That is no empty cluster but none, or the wrong
                path: a garbage collector must not take it for "no ledgers".
            MetadataUnavailableError
        """
        for high in await self._store.children(self._root):
            if _DIRECTORY.fullmatch(high) is None:
                continue
            high_path = join_path(self._root, high)
            for middle in await self._children_if_any(high_path):
                if _SUBDIRECTORY.fullmatch(middle) is None:
                    continue
                for leaf in await self._children_if_any(join_path(high_path, middle)):
                    if _LEAF.fullmatch(leaf) is not None:
                        yield int(high + middle + leaf[1:])

    def watch(self, ledger_id: int, callback: WatchCallback) -> Watch:
        """Call back when the ledger's metadata changes; see `MetadataStore.watch`."""
        return self._store.watch(ledger_path(self._root, ledger_id), callback)

    async def _children_if_any(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []  # Its last ledger was deleted a moment ago.

    async def _generate_id(self) -> int:
        """A ledger id that nobody else gets. The parent node is never deleted, so no id repeats.

        Raises:
            LedgerIdsExhaustedError, UnknownOutcomeError, MetadataUnavailableError
        """
        path = await self._store.create(f"{self._root}/idgen/ID-", ephemeral=True, sequential=True)
        ledger_id = parse_generated_id(path)
        try:
            await self._store.delete(path)
        except MetadataError:
            pass  # The node is ephemeral, and only its name was wanted.
        return ledger_id

    async def _create_with_id(self, metadata: LedgerMetadata) -> VersionedLedger | None:
        """Create the node (rule 3.1); None means that the id belongs to somebody else.

        Raises:
            UnknownOutcomeError: the reply was lost and the node cannot be read just now.
            MetadataUnavailableError
        """
        path = ledger_path(self._root, metadata.ledger_id)
        try:
            await self._store.create(path, metadata.to_json())
        except (NodeExistsError, UnknownOutcomeError):
            return await self._find_own(metadata)
        return VersionedLedger(metadata, 0)

    async def _find_own(self, metadata: LedgerMetadata) -> VersionedLedger | None:
        """The ledger if it is there and carries our token: only the reply was lost."""
        try:
            found = await self.read(metadata.ledger_id)
        except (NoSuchLedgerError, InvalidLedgerMetadataError):
            # Not there, or not ours. A lost create could still turn up where nothing was found,
            # therefore the id is given up rather than tried again.
            return None
        return found if found.metadata.creation_token == metadata.creation_token else None


def ledger_path(root: str, ledger_id: int) -> str:
    """The node of a ledger: ten digits split 2-4-4, so no directory has over 10 000 children."""
    if not 0 <= ledger_id < LEDGER_ID_LIMIT:
        raise NoSuchLedgerError(f"ledger ids are from 0 to {LEDGER_ID_LIMIT - 1}, not {ledger_id}")
    digits = f"{ledger_id:010d}"
    return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def parse_generated_id(path: str) -> int:
    """The id in the name of a generator node: the counter that the store appended.

    Raises:
        LedgerIdsExhaustedError: the counter has left the range; ZooKeeper's turns negative.
    """
    text = path.rpartition("/ID-")[2]
    if len(text) != SEQUENCE_DIGITS or not text.isdecimal() or int(text) >= LEDGER_ID_LIMIT:
        raise LedgerIdsExhaustedError(f"no ledger id below {LEDGER_ID_LIMIT} in {path!r}")
    return int(text)
