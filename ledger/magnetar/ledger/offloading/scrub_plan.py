"""The plan of a scrub: the objects of a log to be read back now, and the record of it. Pure.

A *pass* over a log reads each object that was copied before the pass began, from the oldest ledger
on. The next pass begins one period after the last one began, as soon as some object is that old. So
no object stays unread for longer than a period plus the duration of a pass. The wall clock decides;
a wrong one makes a pass early or late, and does no other harm.

A property of the log records how far a pass has come, and which objects it did not find whole. It
survives restarts and changes of the owner, and shows for an unloaded topic whether a pass is due.
Writing it is one compare-and-set, which fails for a former owner.

Layout: docs/formats/managed-log.md. Source: tiered storage, section 18.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from magnetar.ledger.errors import ObjectDamagedError
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_objects import ObjectState
from magnetar.ledger.offloading.object_format import ObjectFooter

PROPERTY = "magnetar.object-scrub"
"""Name of the log's property that holds a `ScrubMark`. Stored, never rename."""

FINDINGS_MAX = 100
"""Most findings that a log remembers: they share the node with its ledgers. Further ones are only
logged and counted."""


class Verdict(StrEnum):
    """Result of reading an object back. Stored, never rename."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    """Twice, the bytes differed from those that were written."""
    GONE = "gone"
    """Twice, the store was certain that the object does not exist; the node, read again, names
    it."""
    UNREACHABLE = "unreachable"
    """Any other result. It leads to nothing but another try (rule 18.1)."""


class Finding(NamedTuple):
    """An object that was not whole at its last read."""

    verdict: Verdict
    attempt: str
    """Attempt that identifies the object among those of the ledger: a replacement has another
    one."""


@dataclass(frozen=True, slots=True)
class ScrubMark:
    """Progress of the scrub of a log."""

    began_ms: int = 0
    """When the last pass began, ms since 1970; 0 if there was none."""
    through_id: int = -1
    """The pass has read the objects of ledgers up to this one."""
    findings: Mapping[int, Finding] = field(default_factory=dict)
    """Findings by ledger id."""

    def read_through(self, ledger_id: int) -> "ScrubMark":
        """Return the mark with the pass advanced to a ledger."""
        return replace(self, through_id=max(self.through_id, ledger_id))

    def with_finding(self, ledger_id: int, finding: Finding | None) -> "ScrubMark":
        """Return the mark with the finding for a ledger's object; None if it is whole, or no longer
        of the log."""
        findings = {each: found for each, found in self.findings.items() if each != ledger_id}
        if finding is not None and len(findings) < FINDINGS_MAX:
            findings[ledger_id] = finding
        return replace(self, findings=findings)

    def standing(self, ledgers: Sequence[LogLedger]) -> "ScrubMark":
        """Return the mark without findings whose ledger left the log, or has another object by
        now."""
        attempts = {each.ledger_id: each.object.attempt for each in ledgers if each.object}
        kept = {
            ledger_id: finding
            for ledger_id, finding in self.findings.items()
            if attempts.get(ledger_id) == finding.attempt
        }
        return replace(self, findings=kept)

    def to_property(self) -> str:
        """Return the text stored in the log's node."""
        value = {
            "began_ms": self.began_ms,
            "through": self.through_id,
            "findings": {str(each): [*found] for each, found in sorted(self.findings.items())},
        }
        return json.dumps(value, separators=(",", ":"))


def mark_in(properties: Mapping[str, str]) -> ScrubMark:
    """Return the mark among a log's properties. An unreadable one counts as none: that loses only
    the record of finished reads."""
    try:
        value = json.loads(properties.get(PROPERTY, "{}"))
        return ScrubMark(
            int(value.get("began_ms", 0)),
            int(value.get("through", -1)),
            {
                int(ledger_id): Finding(Verdict(verdict), str(attempt))
                for ledger_id, (verdict, attempt) in value.get("findings", {}).items()
            },
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ScrubMark()


def current_pass(
    ledgers: Sequence[LogLedger], mark: ScrubMark, *, period_s: float, now_ms: int
) -> ScrubMark:
    """Return the mark of the pass under way, or of one that begins now because it is due."""
    if to_read(ledgers, mark):
        return mark
    due_ms = now_ms - period_s * 1000
    is_due = mark.began_ms <= due_ms and any(
        each.object is not None and each.is_in_object and each.object.at_ms <= due_ms
        for each in ledgers
    )
    return replace(mark, began_ms=now_ms, through_id=-1) if is_due else mark


def to_read(ledgers: Sequence[LogLedger], mark: ScrubMark) -> list[LogLedger]:
    """Return the ledgers whose objects the pass has still to read, the oldest first."""
    return [
        each
        for each in ledgers
        if each.object is not None
        and each.is_in_object
        and each.ledger_id > mark.through_id
        and each.object.at_ms <= mark.began_ms
    ]


def to_read_again(ledgers: Sequence[LogLedger], mark: ScrubMark) -> list[LogLedger]:
    """Return the ledgers whose objects the pass has read but not settled. Objects that are not
    whole, and whose ledgers the bookies have, come first; then unreachable ones."""
    left: list[tuple[bool, LogLedger]] = []
    for each in ledgers:
        finding = mark.findings.get(each.ledger_id)
        if finding is None or each.object is None or finding.attempt != each.object.attempt:
            continue
        is_unreached = finding.verdict is Verdict.UNREACHABLE
        can_settle = is_unreached or each.object.state is ObjectState.COPIED
        if can_settle and each.ledger_id <= mark.through_id:
            left.append((is_unreached, each))
    return [each for _, each in sorted(left, key=lambda item: item[0])]


def is_scrub_due(
    ledgers: Sequence[LogLedger], mark: ScrubMark, *, period_s: float, now_ms: int
) -> bool:
    """Return whether a pass over a log has something to read now. A period of 0 means never."""
    if period_s <= 0:
        return False
    found = current_pass(ledgers, mark, period_s=period_s, now_ms=now_ms)
    return bool(to_read(ledgers, found))


def check_named(footer: ObjectFooter, ledger: LogLedger) -> None:
    """Check that an object's footer agrees with the log's node.

    Raises:
        ObjectDamagedError
    """
    found = ledger.object
    assert found is not None
    has = (footer.size_bytes, footer.check, footer.entries)
    named = (found.bytes, found.check, ledger.entries)
    if has != named:
        raise ObjectDamagedError(
            f"{footer.name}: (bytes, check, entries) are {has}, the log's node has {named}"
        )
