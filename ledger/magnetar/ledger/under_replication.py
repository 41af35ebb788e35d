"""The list of missing copies: which bookie lacks which entries, published for re-replication.

There are two sources: entries that were acknowledged at Qa while a bookie never stored them (rule
4.5, D22), and copies that failed their digest in a read (rule 9.2). They become one work item per
ledger in the metadata store, so they survive this process:

`{root}/underreplication/ledgers/xxxx/xxxx/xxxx/xxxx/urL{ledger id}` (the id as 16 hex digits in
four groups), JSON: `{"format": 1, "ledger_id": 7, "missing": {"bookie-2": [[0, 99]]}, "since_ms":
...}`; ranges are inclusive. An item records the loss of a bookie apart from its noted ranges: if
the bookie comes back with its entries, its bad copies are not forgotten. An existing item is merged
with a versioned write. The worker that copies the entries deletes the item with the version that it
read (auto-recovery, rule 2.1).

Publishing runs in the background, `publish_delay_s` after the first note, and is retried until it
succeeds. The waiting notes are bounded: more than `ranges_max` ranges of one bookie are joined into
one that covers them all. That costs a needless check but hides nothing.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping

import structlog

from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    LedgerError,
)
from magnetar.ledger.metadata.cell import Cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.replication_lock import lock_path

_log = structlog.get_logger(__name__)

FORMAT_VERSION = 1

_RETRY_DELAY_S_MIN = 0.05
"""Shortest pause between two attempts, in seconds, even if `publish_delay_s` is 0."""

_FIELDS = {"format", "ledger_id", "missing", "since_ms"}

ENTRY_ID_MAX = (1 << 63) - 1

Range = tuple[int, int]
"""First and last entry id, both inclusive."""

EVERYTHING: Range = (0, ENTRY_ID_MAX)
"""Range of a lost bookie: it lacks all entries that belong on it. If it comes back with its
entries, nothing of this range is missing. The copies in other ranges, in contrast, are read and
checked."""

Missing = dict[str, list[Range]]
"""Per bookie, inclusive ranges of entry ids, ascending and separate. If the bookie is lost,
`EVERYTHING` follows as the last one."""


def item_path(root: str, ledger_id: int) -> str:
    """Return the path of a ledger's work item."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{root}/underreplication/ledgers/{groups}/urL{ledger_id}"


def merge_ranges(ranges: Iterable[tuple[int, int]], *, ranges_max: int) -> list[tuple[int, int]]:
    """Merge ranges of entries into ascending, separate ones; into a single one if too many."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged if len(merged) <= ranges_max else [(merged[0][0], merged[-1][1])]


def merge_missing(one: Missing, other: Missing, *, ranges_max: int) -> Missing:
    """Return the union of two items: per bookie its ranges, up to `ranges_max`, and its loss."""
    merged: Missing = {}
    for bookie_id in sorted({*one, *other}):
        ranges = [*one.get(bookie_id, []), *other.get(bookie_id, [])]
        noted = [each for each in ranges if each != EVERYTHING]
        merged[bookie_id] = merge_ranges(noted, ranges_max=ranges_max)
        if EVERYTHING in ranges:
            merged[bookie_id].append(EVERYTHING)
    return merged


def encode_item(
    ledger_id: int, missing: Mapping[str, list[tuple[int, int]]], since_ms: int
) -> bytes:
    """Encode a work item as the value of its node."""
    return json.dumps(
        {
            "format": FORMAT_VERSION,
            "ledger_id": ledger_id,
            "missing": {bookie_id: missing[bookie_id] for bookie_id in sorted(missing)},
            "since_ms": since_ms,
        },
        separators=(",", ":"),
    ).encode()


def decode_item(value: bytes, *, path: str) -> tuple[Missing, int]:
    """Decode a work item: the missing ranges, and since when (wall clock, ms).

    A field that is unknown, missing or of another type is refused. The item is merged with the
    notes of this process, and writing it back would drop or change that field.

    Raises:
        InvalidLedgerMetadataError: not a work item, or one of a future format.
    """
    try:
        data = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _refused(path, repr(error)) from error
    version = data.get("format") if isinstance(data, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise InvalidLedgerMetadataError(
            f"{path}: format {version!r}; this version reads format {FORMAT_VERSION}. Nothing was "
            f"changed: upgrade this release if a newer one wrote the item"
        )
    if data.keys() != _FIELDS:
        raise _refused(path, f"expected the fields {sorted(_FIELDS)}, got {sorted(data)}")
    if not _is_int64(data["ledger_id"]) or not _is_int64(data["since_ms"]):
        raise _refused(path, "ledger_id or since_ms is no int64 from 0")
    missing = data["missing"]
    if not isinstance(missing, dict) or not all(map(_are_ranges, missing.values())):
        raise _refused(path, "missing does not name ranges of entries")
    found = {
        bookie_id: [(first, last) for first, last in ranges]
        for bookie_id, ranges in missing.items()
    }
    return found, data["since_ms"]


def _is_int64(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 63


def _are_ranges(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list)
        and len(each) == 2
        and all(map(_is_int64, each))
        and each[0] <= each[1]
        for each in value
    )


def _refused(path: str, problem: str) -> InvalidLedgerMetadataError:
    return InvalidLedgerMetadataError(
        f"{path}: no work item: {problem}. Nothing was changed: delete the node, and have the "
        f"ledger checked for missing copies"
    )


class RepairQueue:
    """Missing copies that wait to be published in the metadata store. One per client."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        clock: Clock,
        root: str = "/ledgers",
        publish_delay_s: float,
        ranges_max: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._root = root
        self._publish_delay_s = publish_delay_s
        self._ranges_max = ranges_max
        self._waiting: dict[int, Missing] = {}
        self._publisher: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.noted = 0
        """Number of notes since the start (`ADD_ENTRY_UR` and bad replicas)."""
        self.on_noted: list[Callable[[int, int, int, str, str], None]] = []

    def note(self, ledger_id: int, first: int, last: int, bookie_id: str, reason: str) -> None:
        """Note that entries `first` to `last` of the ledger lack a good copy on the bookie."""
        self.noted += 1
        # A bookie with a damaged index of a ledger reports no end. `EVERYTHING` would call it lost.
        last = min(last, ENTRY_ID_MAX - 1)
        ranges = self._waiting.setdefault(ledger_id, {}).setdefault(bookie_id, [])
        is_new = not ranges
        ranges.append((first, last))
        if len(ranges) > 1:
            ranges[:] = merge_ranges(ranges, ranges_max=self._ranges_max)
        if is_new:
            _log.warning(
                "copies_missing", ledger_id=ledger_id, first=first, bookie=bookie_id, reason=reason
            )
        for callback in self.on_noted:
            callback(ledger_id, first, last, bookie_id, reason)
        if not self._is_publishing and not self._closing.is_set():
            self._start()

    @property
    def _is_publishing(self) -> bool:
        return self._publisher is not None and not self._publisher.done()

    def _start(self) -> None:
        self._publisher = asyncio.get_running_loop().create_task(
            self._publish_all(), name="publish-missing-copies"
        )

    async def close(self, *, timeout_s: float) -> None:
        """Publish the waiting notes, for up to `timeout_s`, and stop."""
        self._closing.set()
        if self._waiting and not self._is_publishing:
            self._start()
        if (publisher := self._publisher) is not None:
            await asyncio.wait([publisher], timeout=timeout_s)
            publisher.cancel()
            await asyncio.wait([publisher])  # it puts back what it was publishing
        if self._waiting:
            _log.error("missing_copies_not_published", ledgers=sorted(self._waiting))

    async def _publish_all(self) -> None:
        await self._collect()
        while self._waiting:
            ledger_id = next(iter(self._waiting))
            missing = self._waiting.pop(ledger_id)
            try:
                await self._publish(ledger_id, missing)
            except InvalidLedgerMetadataError as error:
                # Overwriting an unreadable item could drop notes of others, and a retry changes
                # nothing. An operator has to look at the node.
                _log.error(
                    "missing_copies_not_published",
                    ledger_id=ledger_id,
                    missing=missing,
                    error=str(error),
                )
            except LedgerError as error:
                _log.warning("publishing_missing_copies", ledger_id=ledger_id, error=str(error))
                self._put_back(ledger_id, missing)
                await asyncio.sleep(max(self._publish_delay_s, _RETRY_DELAY_S_MIN))
            except BaseException:
                self._put_back(ledger_id, missing)
                raise
        self._publisher = None

    async def _collect(self) -> None:
        """Wait, so that the many entries that a dead bookie misses become one update."""
        try:
            async with asyncio.timeout(self._publish_delay_s):
                await self._closing.wait()
        except TimeoutError:
            pass  # time to publish

    def _put_back(self, ledger_id: int, missing: Missing) -> None:
        waiting = self._waiting.setdefault(ledger_id, {})
        for bookie_id, ranges in missing.items():
            joined = [*waiting.get(bookie_id, []), *ranges]
            waiting[bookie_id] = merge_ranges(joined, ranges_max=self._ranges_max)

    async def _publish(self, ledger_id: int, missing: Missing) -> None:
        await publish_item(
            self._store,
            ledger_id,
            missing,
            root=self._root,
            now_ms=self._clock.wall_ms(),
            ranges_max=self._ranges_max,
        )


async def publish_item(
    store: MetadataStore,
    ledger_id: int,
    missing: Missing,
    *,
    root: str,
    now_ms: int,
    ranges_max: int,
    renews: bool = False,
) -> bool:
    """Create the work item, or merge into an existing one; return whether that changed it.

    After an unknown outcome, call again: merging the same ranges again changes nothing.

    Args:
        renews: while the ledger is in work, write the item even if it has all of the ranges. The
            worker may have checked before this was noted, and then must not delete the item.

    Raises:
        InvalidLedgerMetadataError: the node is not a work item that this version reads.
        UnknownOutcomeError, MetadataUnavailableError: publish again.
    """
    path = item_path(root, ledger_id)
    # Check the lock before the item is read. A worker that locks the ledger later also checks it
    # later. A worker that held the lock before has deleted the item by now, or leaves it.
    is_in_work = renews and await store.exists(lock_path(root, ledger_id)) is not None
    is_news = False

    def merge(item: tuple[Missing, int] | None) -> tuple[Missing, int] | None:
        nonlocal is_news
        if item is None:
            is_news = True
            return missing, now_ms
        known, since_ms = item
        merged = merge_missing(known, missing, ranges_max=ranges_max)
        is_news = merged != known
        return (merged, since_ms) if is_news or is_in_work else None

    cell = Cell(
        store,
        path,
        decode=lambda value: decode_item(value, path=path),
        encode=lambda item: encode_item(ledger_id, *item),
    )
    await cell.change(merge, is_sure=False)
    return is_news
