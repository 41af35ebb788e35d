"""The list of missing copies: which bookie lacks which entries, published for re-replication.

Two sources: entries that were acknowledged at Qa while a bookie never stored them (rule 4.5,
D22), and copies that failed their digest when they were read (rule 9.2). Each becomes, per ledger,
a work item in the metadata store, which survives this process:

`{root}/underreplication/ledgers/xxxx/xxxx/xxxx/xxxx/urL{ledger id}` (the id as 16 hex digits in
four groups), JSON: `{"format": 1, "ledger_id": 7, "missing": {"bookie-2": [[0, 99]]}, "since_ms":
...}`; ranges are inclusive. That a bookie is lost is said apart from what was noted of it, so that
bad copies are not forgotten when it comes back with them. An item that exists is merged with a
versioned write. Whoever copies the entries deletes it with the version it had (auto-recovery, rule
2.1).

Publishing runs in the background, `publish_delay_s` after the first note, and is tried again until
it succeeds; what waits is bounded: more than `ranges_max` ranges of one bookie are joined into one
that covers them all, which costs a needless look but hides nothing.
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
"""Between two tries, also where notes are published without a delay."""

_FIELDS = {"format", "ledger_id", "missing", "since_ms"}

ENTRY_ID_MAX = (1 << 63) - 1

Range = tuple[int, int]
"""First and last entry id, both included."""

EVERYTHING: Range = (0, ENTRY_ID_MAX)
"""What a bookie lacks that is lost: whatever belongs on it. Who comes back with its entries lacks
none of these, unlike those of the other ranges, which are read."""

Missing = dict[str, list[Range]]
"""Per bookie, inclusive ranges of entry ids in ascending order, apart from each other; behind them
`EVERYTHING` if it is lost."""


def item_path(root: str, ledger_id: int) -> str:
    """The node of a ledger's work item."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{root}/underreplication/ledgers/{groups}/urL{ledger_id}"


def merge_ranges(ranges: Iterable[tuple[int, int]], *, ranges_max: int) -> list[tuple[int, int]]:
    """Merge ranges of entries into ascending, separate ones; into one covering range if there are
    too many."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged if len(merged) <= ranges_max else [(merged[0][0], merged[-1][1])]


def merge_missing(one: Missing, other: Missing, *, ranges_max: int) -> Missing:
    """What either of them says is missing; of each bookie at most `ranges_max` ranges, and whether
    it is lost."""
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
    """The value of a work item's node."""
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
    """Missing ranges and since when (wall clock, ms).

    A field that is unknown, missing or of another type is refused: the item is merged with what is
    noted here, and writing it back would drop or change that.

    Raises:
        InvalidLedgerMetadataError: not ours, or of a future format.
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
    """Missing copies on their way to the metadata store. One per client."""

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
        """Notes taken since the start (`ADD_ENTRY_UR` and bad replicas)."""
        self.on_noted: list[Callable[[int, int, int, str, str], None]] = []

    def note(self, ledger_id: int, first: int, last: int, bookie_id: str, reason: str) -> None:
        """Entries `first` to `last` of the ledger lack a good copy on the bookie."""
        self.noted += 1
        # A bookie whose index of a ledger is damaged knows no end. `EVERYTHING` would call it lost.
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
        """Publish what waits, within bounds, and stop."""
        self._closing.set()
        if self._waiting and not self._is_publishing:
            self._start()
        if (publisher := self._publisher) is not None:
            await asyncio.wait([publisher], timeout=timeout_s)
            publisher.cancel()
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
                # Overwriting what cannot be read could drop what others noted; trying again
                # changes nothing. It takes somebody who looks at the node.
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
        """A bookie that is down misses many entries: they make one update, not one each."""
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
    """Create the work item, or merge into the one that is there; whether that changed anything.

    Args:
        renews: while the ledger is in work, write the item though it says all of it already: who
            works on it may have looked before this was found out, and must not delete the item.

    An unknown outcome needs no care: merging the same ranges again changes nothing.

    Raises:
        InvalidLedgerMetadataError: what is there is no work item that this version reads.
        UnknownOutcomeError, MetadataUnavailableError: publish again.
    """
    path = item_path(root, ledger_id)
    # The lock is asked for before the item is read. A worker that locks the ledger later also
    # checks it later. A worker that held the lock before has deleted the item by now, or leaves it.
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
