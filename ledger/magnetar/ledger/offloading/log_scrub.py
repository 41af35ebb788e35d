"""The scrub of one log: its owner reads the objects of its ledgers back, and heals what it can.

The owner does it, and not a leader for all logs, because only the owner may heal: each change of an
object is a change of the log's node, by which any other process would take the log away from it
(rule 16.3). The owner can also read the node again, which the verdict *gone* requires. And the
reading is spread over the brokers, each of which is bounded.

An object that is damaged or gone is replaced from the ledger while the bookies have that. If they
may have deleted it, the ledger stays in the log's list, and reads of its whole parts continue. The
finding is kept in the log's node and shown (`scrub_plan.py`).

Source: tiered storage, section 18.
"""

from collections.abc import Mapping
from typing import Protocol

import structlog

from magnetar.ledger.errors import LedgerError, LogClosedError, LogFencedError
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import ObjectState
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.object_scrubber import Checked, ObjectScrubber
from magnetar.ledger.offloading.offloader import OffloadedLog
from magnetar.ledger.offloading.scrub_plan import (
    PROPERTY,
    Finding,
    ScrubMark,
    Verdict,
    current_pass,
    is_scrub_due,
    mark_in,
    to_read,
    to_read_again,
)
from magnetar.ledger.ports import Clock

log = structlog.get_logger()

UNREACHABLE_IN_A_ROW_MAX = 3
"""Unreachable objects in a row after which a store counts as away: the pass stops before them.
Fewer of them are skipped, and read again later."""

TURN_S = 60.0
"""Time, in seconds, after which a turn begins no further object: other logs wait, and a topic that
was loaded only for its scrub should be closed."""


class ScrubbedLog(OffloadedLog, Protocol):
    """The owner's handle of the log, as far as the scrub needs it."""

    @property
    def properties(self) -> dict[str, str]: ...

    async def update_properties(self, changes: Mapping[str, str | None], /) -> None: ...


class LogScrub:
    """The scrub of one log, on behalf of its owner."""

    def __init__(
        self,
        owned: ScrubbedLog,
        scrubber: ObjectScrubber,
        offload: LogOffload,
        *,
        period_s: float,
        clock: Clock,
    ) -> None:
        """Load the mark of the log.

        Args:
            offload: the other service that works on the objects of the log.
            period_s: each object is read once in this time; 0: never.
        """
        self._owned = owned
        self._scrubber = scrubber
        self._offload = offload
        self._period_s = period_s
        self._clock = clock
        self._mark = mark_in(owned.properties)
        self._noted = self._mark
        self._show_lost()

    @property
    def is_due(self) -> bool:
        """Whether there is something to read now."""
        if self._period_s <= 0:
            return False
        ledgers, now_ms = self._owned.objects.ledgers, self._clock.wall_ms()
        return bool(to_read_again(ledgers, self._mark)) or is_scrub_due(
            ledgers, self._mark, period_s=self._period_s, now_ms=now_ms
        )

    @property
    def findings(self) -> Mapping[int, Finding]:
        """Objects that were not whole at their last read, by ledger."""
        return self._mark.standing(self._owned.objects.ledgers).findings

    async def run(self) -> None:
        """Read objects for one turn: those of the pass, then those that it could not settle.

        Raises:
            LogFencedError, LogClosedError: this handle no longer owns the log.
            LedgerError: the first object that could not be reached, or healed. The progress is
                recorded; call again.
        """
        end_s = self._clock.monotonic_s() + TURN_S
        ledgers = self._owned.objects.ledgers
        self._mark = current_pass(
            ledgers, self._mark, period_s=self._period_s, now_ms=self._clock.wall_ms()
        ).standing(ledgers)
        turn = _Turn(self._mark)
        for ledger in (*to_read(ledgers, self._mark), *to_read_again(ledgers, self._mark)):
            turn.add(ledger, *await self._settle(ledger))
            is_news = turn.mark.findings != self._mark.findings
            self._mark = turn.mark
            if is_news:
                self._show_lost()
            if turn.is_store_away or self._clock.monotonic_s() >= end_s:
                break
        else:
            self._mark = turn.pass_over()
        await self._note()
        if turn.error is not None:
            raise turn.error

    def close(self) -> None:
        """Forget the log, which this process closes."""
        self._scrubber.lost.pop(self._owned.path, None)

    async def _settle(self, ledger: LogLedger) -> tuple[Finding | None, LedgerError | None]:
        """Read an object and heal it; return the finding that remains, and why it does."""
        checked = await self._scrubber.check(self._owned, ledger)
        found = ledger.object
        assert found is not None
        if checked is None or checked.verdict is Verdict.WHOLE:
            return None, None
        finding = Finding(checked.verdict, found.attempt)
        self._tell(ledger, checked)
        if checked.verdict is Verdict.UNREACHABLE:
            return finding, checked.why
        if found.state is not ObjectState.COPIED:
            return finding, None
        try:
            is_healed = await self._offload.heal(ledger.ledger_id, found.attempt)
        except (LogFencedError, LogClosedError):
            raise
        except LedgerError as error:
            return finding, error
        if is_healed:
            log.info("object_healed", path=self._owned.path, ledger_id=ledger.ledger_id)
        return (None if is_healed else finding), None

    def _tell(self, ledger: LogLedger, checked: Checked) -> None:
        assert ledger.object is not None
        fields = {
            "verdict": checked.verdict.value,
            "path": self._owned.path,
            "ledger_id": ledger.ledger_id,
            "key": self._owned.objects.key(ledger.ledger_id, ledger.object, ledger.object.attempt),
            "error": str(checked.why),
        }
        if checked.verdict is not Verdict.UNREACHABLE and ledger.is_in_object_only:
            log.error("object_lost", **fields)
        else:
            log.warning("object_not_whole", **fields)

    async def _note(self) -> None:
        """Write the mark to the log's node, if it has changed.

        Raises:
            LogFencedError, LogClosedError
            MetadataError: the mark may not be written; the next turn writes it again.
        """
        self._mark = self._mark.standing(self._owned.objects.ledgers)
        self._show_lost()
        if self._mark != self._noted:
            await self._owned.update_properties({PROPERTY: self._mark.to_property()})
            self._noted = self._mark

    def _show_lost(self) -> None:
        only = {each.ledger_id for each in self._owned.objects.ledgers if each.is_in_object_only}
        lost = [
            ledger_id
            for ledger_id, finding in self.findings.items()
            if finding.verdict in (Verdict.DAMAGED, Verdict.GONE) and ledger_id in only
        ]
        if lost:
            self._scrubber.lost[self._owned.path] = len(lost)
        else:
            self._scrubber.lost.pop(self._owned.path, None)


class _Turn:
    """Progress of one turn. An unreachable object is skipped only when a later one was reached;
    otherwise a pass would run through while the store is away."""

    def __init__(self, mark: ScrubMark) -> None:
        self.mark = mark
        self.error: LedgerError | None = None
        self._row: list[tuple[int, Finding]] = []

    @property
    def is_store_away(self) -> bool:
        return len(self._row) >= UNREACHABLE_IN_A_ROW_MAX

    def add(self, ledger: LogLedger, finding: Finding | None, error: LedgerError | None) -> None:
        """Record the result of reading the object of a ledger."""
        self.error = self.error or error
        if finding is not None and finding.verdict is Verdict.UNREACHABLE:
            self._row.append((ledger.ledger_id, finding))
            return
        self.pass_over()
        mark = self.mark.with_finding(ledger.ledger_id, finding)
        self.mark = mark.read_through(ledger.ledger_id)

    def pass_over(self) -> ScrubMark:
        """Record the unreachable objects, and continue after them."""
        for ledger_id, finding in self._row:
            mark = self.mark.with_finding(ledger_id, finding)
            self.mark = mark.read_through(ledger_id)
        self._row.clear()
        return self.mark
