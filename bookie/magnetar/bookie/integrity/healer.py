"""Healing: damaged entries are fetched from another replica and stored again.

Reads and the scrubber report damage; it is queued by ledger. A heal first checks that the damage
exists: an error may have been transient, or is already healed. It fetches the entries that belong
on this bookie, stores them through the journal, flushes, and checks them on the disk. The new
copies overlay the damaged ones in the index. A failed heal is retried with growing delays. After
several attempts, or when no other bookie has the entry, it is also listed for repair. Damage is
never healed by forgetting: until it is healed, reads of it are I/O errors.

The queue is bounded. The scrubber finds dropped damage again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import StorageError
from magnetar.bookie.integrity.own_entries import own_ranges
from magnetar.bookie.integrity.own_requests import OwnRequests
from magnetar.bookie.integrity.peers import Peers
from magnetar.bookie.integrity.restoring import restore
from magnetar.bookie.metrics import IntegrityMetrics
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.ports import Clock
from magnetar.ledger.under_replication import Range, merge_ranges

_log = structlog.get_logger(__name__)

_LEDGER_RANGES_MAX = 1000
"""Maximum number of damaged ranges per ledger; more are joined into one that covers them all."""
_BATCH_LEDGERS_MAX = 64
"""Ledgers healed with one flush."""
RETRY_S_MAX = 600.0

CheckRange = Callable[[int, int, int], Awaitable[list[Damage]]]
"""Returns the present damage on the disk for a ledger id, a first and a last entry id.

Raises StorageError.
"""


@dataclass(slots=True)
class _Wound:
    """The damage of one ledger."""

    ranges: list[Range] = field(default_factory=list)
    attempts: int = 0
    not_before_s: float = 0.0
    is_listed: bool = False
    """Whether the ledger was listed for repair in the metadata store."""


@dataclass(slots=True)
class _Healed:
    """What one attempt did for one ledger."""

    stored: list[Range] = field(default_factory=list)
    entries: int = 0
    bytes: int = 0
    left: list[Range] = field(default_factory=list)
    lost: list[Range] = field(default_factory=list)
    reason: str = ""


class Healer:
    """The damage of one bookie, and its repair. Owned by the event loop."""

    def __init__(
        self,
        bookie_id: str,
        *,
        peers: Peers,
        requests: OwnRequests,
        check: CheckRange,
        flush: Callable[[], Awaitable[None]],
        clock: Clock,
        metrics: IntegrityMetrics,
        settings: BookieSettings,
    ) -> None:
        self._bookie_id = bookie_id
        self._peers = peers
        self._requests = requests
        self._check = check
        self._flush = flush
        self._clock = clock
        self._metrics = metrics
        self._settings = settings
        self._wounds: dict[int, _Wound] = {}
        self._in_work: set[int] = set()
        self._news = asyncio.Event()

    def on_damage(self, damage: Damage) -> None:
        """Queue damage. Cheap, since every read of a damaged place reports it again."""
        wound = self._wounds.get(damage.ledger_id)
        if wound is None:
            if damage.ledger_id in self._in_work:
                return  # if the attempt does not heal it, it is reported again
            if len(self._wounds) >= self._settings.heal_ledgers_max:
                self._metrics.damages_dropped += 1
                return
            wound = self._wounds[damage.ledger_id] = _Wound()
        if any(first <= damage.first and damage.last <= last for first, last in wound.ranges):
            return
        wound.ranges = merge_ranges(
            [*wound.ranges, (damage.first, damage.last)], ranges_max=_LEDGER_RANGES_MAX
        )
        self._metrics.damages += 1
        self._metrics.heals_waiting = len(self._wounds) + len(self._in_work)
        _log.error("damage_found", bookie=self._bookie_id, **damage._asdict())
        self._news.set()

    async def run(self) -> None:
        """Heal queued damage, for ever."""
        while True:
            self._news.clear()
            now_s = self._clock.monotonic_s()
            due = [each for each, wound in self._wounds.items() if wound.not_before_s <= now_s]
            if due:
                await self._heal(due[:_BATCH_LEDGERS_MAX])
                continue
            try:
                async with asyncio.timeout(self._next_delay_s(now_s)):
                    await self._news.wait()
            except TimeoutError:
                pass  # a retry is due

    def _next_delay_s(self, now_s: float) -> float | None:
        times = [wound.not_before_s for wound in self._wounds.values()]
        return max(0.0, min(times) - now_s) if times else None

    async def _heal(self, ledger_ids: list[int]) -> None:
        """Make one attempt for some ledgers, with one flush for all of them."""
        wounds = {each: self._wounds.pop(each) for each in ledger_ids}
        self._in_work = set(wounds)
        try:
            results: dict[int, _Healed] = {}
            for ledger_id, wound in wounds.items():
                self._metrics.heal_attempts += 1
                results[ledger_id] = await self._restore(ledger_id, wound.ranges)
            await self._verify(results)
        finally:
            self._in_work = set()
        for ledger_id, result in results.items():
            await self._conclude(ledger_id, wounds[ledger_id], result)
        self._metrics.heals_waiting = len(self._wounds)
        self._metrics.heals_failing = sum(wound.is_listed for wound in self._wounds.values())

    async def _restore(self, ledger_id: int, ranges: list[Range]) -> _Healed:
        """Fetch and store the damaged entries of a ledger."""
        result = _Healed()
        try:
            damaged = [
                (damage.first, damage.last)
                for first, last in ranges
                for damage in await self._check(ledger_id, first, last)
            ]
            if not damaged:
                return result
            metadata = await self._peers.metadata(ledger_id)
        except NoSuchLedgerError:
            return result  # garbage collection deletes it
        except (LedgerError, StorageError) as error:
            result.left, result.reason = ranges, str(error)
            return result
        for first, last in merge_ranges(damaged, ranges_max=_LEDGER_RANGES_MAX):
            await self._restore_range(metadata, first, last, result)
        return result

    async def _restore_range(
        self, metadata: LedgerMetadata, first: int, last: int, result: _Healed
    ) -> None:
        for wanted in own_ranges(metadata, self._bookie_id, first=first, last=last):
            restored = await restore(metadata, wanted, self._peers, self._requests)
            result.stored += restored.stored
            result.entries += restored.entries
            result.bytes += restored.bytes
            result.left += restored.missing
            result.lost += restored.lost
            result.reason = result.reason or restored.reason
            if restored.is_interrupted:
                # No bookie answers, or nothing can be stored: the rest is for the next attempt.
                result.left.append((wanted[1] + 1, last))
                break
            if restored.has_ended:
                break
        result.left = [(low, high) for low, high in result.left if low <= high]

    async def _verify(self, results: dict[int, _Healed]) -> None:
        """Flush the stored entries, and check them on the disk."""
        stored = [result for result in results.values() if result.stored]
        if not stored:
            return
        try:
            await self._flush()
        except StorageError as error:
            for result in stored:
                result.left, result.reason = result.left + result.stored, str(error)
            return
        for ledger_id, result in results.items():
            for first, last in merge_ranges(result.stored, ranges_max=_LEDGER_RANGES_MAX):
                try:
                    damages = await self._check(ledger_id, first, last)
                except StorageError as error:
                    result.left.append((first, last))
                    result.reason = str(error)
                else:
                    result.left += [(damage.first, damage.last) for damage in damages]
                    result.reason = result.reason or "; ".join(map(str, damages[:1]))

    async def _conclude(self, ledger_id: int, wound: _Wound, result: _Healed) -> None:
        self._metrics.healed_entries += result.entries
        self._metrics.healed_bytes += result.bytes
        if result.stored:
            _log.warning(
                "damage_healed",
                bookie=self._bookie_id,
                ledger_id=ledger_id,
                entries=result.entries,
                ranges=merge_ranges(result.stored, ranges_max=10),
            )
        left = result.left + result.lost
        if not left:
            return
        wound.ranges = merge_ranges(left, ranges_max=_LEDGER_RANGES_MAX)
        wound.attempts += 1
        settings = self._settings
        delay_s = backoff(settings.heal_retry_s, wound.attempts, RETRY_S_MAX)
        wound.not_before_s = self._clock.monotonic_s() + delay_s
        if not wound.is_listed and (result.lost or wound.attempts >= settings.heal_attempts_max):
            await self._list_for_repair(ledger_id, wound, result)
        newer = self._wounds.get(ledger_id)
        if newer is not None:
            wound.ranges = merge_ranges(wound.ranges + newer.ranges, ranges_max=_LEDGER_RANGES_MAX)
        self._wounds[ledger_id] = wound

    async def _list_for_repair(self, ledger_id: int, wound: _Wound, result: _Healed) -> None:
        _log.error(
            "damage_not_healed",
            bookie=self._bookie_id,
            ledger_id=ledger_id,
            ranges=wound.ranges,
            lost=result.lost,
            attempts=wound.attempts,
            reason=result.reason,
        )
        try:
            for first, last in wound.ranges:
                await self._peers.list_for_repair(ledger_id, first, last, result.reason)
        except LedgerError:
            return  # retried with the next attempt
        wound.is_listed = True
