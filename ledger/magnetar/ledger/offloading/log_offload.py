"""What is due for one log: copies of its ledgers to the object store, and what bookies may forget.

The owner of the log calls `look` now and then, and when somebody asks for it. One call at a time
does its work to the end or to the first failure; the next one goes on from there.
"""

from collections.abc import Sequence

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


class LogOffload:
    """The objects of one log, as its owner sees to them."""

    def __init__(self, owned: OffloadedLog, offloader: Offloader, clock: Clock) -> None:
        self._owned = owned
        self._offloader = offloader
        self._clock = clock
        self._forgotten_id = -1
        """The newest ledger of which it is known that the bookies may forget it, and that it was
        deleted. An owner before us may have got as far as the first, and no further."""

    @property
    def is_unfinished(self) -> bool:
        """Whether a ledger is marked that may not have been deleted."""
        newest = newest_in_object_only(self._owned.objects.ledgers)
        return newest is not None and newest.ledger_id != self._forgotten_id

    async def look(
        self,
        ledgers: Sequence[LogLedger],
        rules: OffloadRules,
        base: ObjectBase,
        *,
        before: Position | None = None,
    ) -> None:
        """Do what is due: first what bookies may forget, then copies.

        Args:
            ledgers: the list, with the counters of open ledgers as they are now.
            base: where new objects go.
            before: somebody asked for all ledgers that end before it.

        Raises:
            As `Offloader.copy`.
        """
        await self._forget(ledgers, rules)
        for ledger in to_copy(ledgers, rules, now_ms=self._clock.wall_ms(), before=before):
            await self._offloader.copy(self._owned, ledger.ledger_id, base)

    async def _forget(self, ledgers: Sequence[LogLedger], rules: OffloadRules) -> None:
        """One after the other: of two that are marked and not deleted, the next owner would find
        only the newer one."""
        if not await self._finish():
            return
        for ledger in to_forget(ledgers, rules, now_ms=self._clock.wall_ms()):
            await self._offloader.forget(self._owned, ledger.ledger_id)
            left = [each for each in self._owned.objects.ledgers if not each.is_in_object_only]
            was_damaged = any(each.ledger_id == ledger.ledger_id for each in left)
            if was_damaged or not await self._finish():
                return

    async def _finish(self) -> bool:
        """Delete the newest ledger that is marked, if that is not known to be done."""
        newest = newest_in_object_only(self._owned.objects.ledgers)
        if newest is None or not self.is_unfinished:
            return True
        if not await self._owned.objects.forget(newest.ledger_id):
            return False
        self._forgotten_id = newest.ledger_id
        return True
