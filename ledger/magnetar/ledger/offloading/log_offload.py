"""Performs the due steps for one log: copies its ledgers to the object store, deletes copied ones.

The owner of the log calls `look` periodically, and on request. A ledger that cannot be copied is
skipped for a pause that doubles, and delays no other ledger. Bookies delete ledgers in the order of
the log only: one whose object cannot be read back delays those after it, which the bookies keep
meanwhile.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from magnetar.ledger.backoff import backoff
from magnetar.ledger.errors import LedgerError, LedgersLeftError, LogClosedError, LogFencedError
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import ObjectBase
from magnetar.ledger.offloading.offload_choice import (
    OffloadRules,
    newest_in_object_only,
    to_copy,
    to_forget,
)
from magnetar.ledger.offloading.offloader import OffloadedLog, Offloader
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

FAILURES_IN_A_ROW_MAX = 3
"""Failed ledgers in a row that count as a failure of the store or the bookies, and not of these
ledgers: the look then ends."""


_NAMED_MAX = 3
"""Most ledgers whose errors one error quotes."""


@dataclass(slots=True)
class _Held:
    """A ledger that failed."""

    failures: int = 0
    retry_at_s: float = 0.0


@dataclass(slots=True)
class _Left:
    """The ledgers that failed in one look."""

    path: str
    in_a_row: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        """Whether so many failed that the look does not try the others."""
        return self.in_a_row >= FAILURES_IN_A_ROW_MAX

    def check(self) -> None:
        """Raise an error if ledgers failed.

        Raises:
            LedgersLeftError: some failed.
        """
        if self.texts:
            more = len(self.texts) - _NAMED_MAX
            texts = [*self.texts[:_NAMED_MAX], *([f"and {more} more"] if more > 0 else [])]
            text = f"{self.path}: " + "; ".join(texts)
            raise LedgersLeftError(text, is_ended=self.is_ended)


class LogOffload:
    """The objects of one log, as its owner manages them."""

    def __init__(
        self,
        owned: OffloadedLog,
        offloader: Offloader,
        clock: Clock,
        *,
        retry_s: float = 1.0,
        retry_s_max: float = 300.0,
    ) -> None:
        """Manage the objects of one log. `retry_s` is the first pause after a ledger failed; it
        doubles up to `retry_s_max`."""
        self._owned = owned
        self._offloader = offloader
        self._clock = clock
        self._retry_s = retry_s
        self._retry_s_max = retry_s_max
        self._held: dict[int, _Held] = {}
        self._forgotten_id = -1
        """The newest ledger that is known to be both marked and deleted; -1 if unknown. An earlier
        owner may have marked a ledger without deleting it."""
        self._replacing = asyncio.Lock()
        """Held so that no object is replaced while its ledger is being marked for deletion: the
        attempt that is named then could be neither written nor taken back."""

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a marked ledger that may not have been deleted yet."""
        newest = newest_in_object_only(self._owned.objects.ledgers)
        return newest is not None and newest.ledger_id != self._forgotten_id

    def is_due(self, ledgers: Sequence[LogLedger], rules: OffloadRules) -> bool:
        """Return whether a look would do something now.

        Args:
            ledgers: the list, with the current counters of open ledgers.
        """
        now_ms = self._clock.wall_ms()
        return (
            self.is_unfinished
            or bool(self._in_order(to_forget(ledgers, rules, now_ms=now_ms)))
            or not all(map(self._is_held, to_copy(ledgers, rules, now_ms=now_ms)))
        )

    async def look(
        self,
        ledgers: Sequence[LogLedger],
        rules: OffloadRules,
        base: ObjectBase,
        *,
        before: Position | None = None,
    ) -> None:
        """Perform the due steps: first deletions from bookies, then copies.

        Args:
            ledgers: the list, with the current counters of open ledgers.
            base: where new objects go.
            before: copy all ledgers that end before it on request, even those that failed recently.

        Raises:
            LogFencedError, LogClosedError: this handle no longer owns the log.
            LedgersLeftError: names the failed ledgers and their errors. All others are done, unless
                it says that the look was ended.
        """
        left = _Left(self._owned.path)
        listed = {each.ledger_id for each in ledgers}
        self._held = {each: held for each, held in self._held.items() if each in listed}
        await self._forget(ledgers, rules, left)
        due = to_copy(ledgers, rules, now_ms=self._clock.wall_ms(), before=before)
        # Ledgers that never failed come first, so that failing ones delay no other.
        due.sort(key=self._failures)
        wanted = (each for each in due if before is not None or not self._is_held(each))
        lanes = [
            asyncio.ensure_future(self._copy_each(wanted, base, left))
            for _ in range(min(self._offloader.copies_at_once, len(due)))
        ]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        left.check()

    async def _copy_each(self, wanted: Iterator[LogLedger], base: ObjectBase, left: _Left) -> None:
        """Copy the wanted ledgers; concurrent lanes take from the same iterator."""
        for ledger in wanted:
            try:
                await self._offloader.copy(self._owned, ledger.ledger_id, base)
            except (LogFencedError, LogClosedError):
                raise
            except LedgerError as error:
                self._hold(ledger, error, left)
            else:
                self._held.pop(ledger.ledger_id, None)
                left.in_a_row = 0
            if left.is_ended:
                return

    def retry_now(self) -> None:
        """Retry failed ledgers at the next look, without the rest of their pauses."""
        self._held.clear()

    async def heal(self, ledger_id: int, attempt: str) -> bool:
        """Replace the object of an attempt, see `Offloader.heal`."""
        async with self._replacing:
            return await self._offloader.heal(self._owned, ledger_id, attempt)

    # Deletion from the bookies

    async def _forget(self, ledgers: Sequence[LogLedger], rules: OffloadRules, left: _Left) -> None:
        """Mark and delete copied ledgers one at a time: of two that are marked and not deleted, the
        next owner would find only the newer one."""
        if not await self._finish():
            return
        for ledger in self._in_order(to_forget(ledgers, rules, now_ms=self._clock.wall_ms())):
            try:
                async with self._replacing:
                    await self._offloader.forget(self._owned, ledger.ledger_id)
            except (LogFencedError, LogClosedError):
                raise
            except LedgerError as error:
                self._hold(ledger, error, left)
                return
            self._held.pop(ledger.ledger_id, None)
            kept = [each for each in self._owned.objects.ledgers if not each.is_in_object_only]
            was_damaged = any(each.ledger_id == ledger.ledger_id for each in kept)
            if was_damaged or not await self._finish():
                return

    async def _finish(self) -> bool:
        """Delete the newest marked ledger, unless that is known to be done; return whether it is
        done."""
        newest = newest_in_object_only(self._owned.objects.ledgers)
        if newest is None or not self.is_unfinished:
            return True
        if not await self._owned.objects.forget(newest.ledger_id):
            return False
        self._forgotten_id = newest.ledger_id
        return True

    # Ledgers that failed

    def _hold(self, ledger: LogLedger, error: LedgerError, left: _Left) -> None:
        held = self._held.setdefault(ledger.ledger_id, _Held())
        held.failures += 1
        pause_s = backoff(self._retry_s, held.failures, self._retry_s_max)
        held.retry_at_s = self._clock.monotonic_s() + pause_s
        left.in_a_row += 1
        left.texts.append(f"ledger {ledger.ledger_id} (again in {pause_s:g} s): {error}")

    def _is_held(self, ledger: LogLedger) -> bool:
        held = self._held.get(ledger.ledger_id)
        return held is not None and self._clock.monotonic_s() < held.retry_at_s

    def _failures(self, ledger: LogLedger) -> int:
        held = self._held.get(ledger.ledger_id)
        return held.failures if held is not None else 0

    def _in_order(self, ledgers: Sequence[LogLedger]) -> list[LogLedger]:
        """Return the ledgers up to the first one that failed recently."""
        return list(takewhile(lambda each: not self._is_held(each), ledgers))
