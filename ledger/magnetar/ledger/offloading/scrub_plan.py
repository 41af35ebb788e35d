"""The plan of a scrub: the objects of a log to be read back now, and the record of it. Pure.

A *pass* over a log reads each object that was copied before the pass began, from the oldest ledger
on. The next pass begins one period after the last one began, as soon as some object is that old. So
no object is unread for longer than a period and the time of a pass. The wall clock decides; a wrong
one makes a pass early or late, and does no other harm.

How far a pass has come, and which objects it could not find whole, is a property of the log. It
survives restarts and changes of the owner, and it tells of a topic that is not loaded whether a
pass is due. Writing it is one compare-and-set, which a former owner fails at.

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
"""Property of a log: a `ScrubMark`. Stored, never rename."""

FINDINGS_MAX = 100
"""Findings that a log remembers: they share the node with its ledgers. Further ones are logged and
counted only."""


class Verdict(StrEnum):
    """What reading an object back has shown. Stored, never rename."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    """Twice, bytes were not those that were written."""
    GONE = "gone"
    """Twice, the store was certain that there is none; the node, read again, names it."""
    UNREACHABLE = "unreachable"
    """Anything else. Nothing follows from it but another try (rule 18.1)."""


class Finding(NamedTuple):
    """An object that was not found whole when it was read the last time."""

    verdict: Verdict
    attempt: str
    """Names the object among those of the ledger: one that replaces it has another."""


@dataclass(frozen=True, slots=True)
class ScrubMark:
    """How far the scrub of a log has come."""

    began_ms: int = 0
    """When the last pass began, ms since 1970; 0: there was none."""
    through_id: int = -1
    """The pass has read the objects of ledgers up to this one."""
    findings: Mapping[int, Finding] = field(default_factory=dict)
    """By ledger."""

    def read_through(self, ledger_id: int) -> "ScrubMark":
        """With the pass advanced to a ledger."""
        return replace(self, through_id=max(self.through_id, ledger_id))

    def with_finding(self, ledger_id: int, finding: Finding | None) -> "ScrubMark":
        """With what was found of a ledger's object; None: it is whole, or not of the log."""
        findings = {each: found for each, found in self.findings.items() if each != ledger_id}
        if finding is not None and len(findings) < FINDINGS_MAX:
            findings[ledger_id] = finding
        return replace(self, findings=findings)

    def standing(self, ledgers: Sequence[LogLedger]) -> "ScrubMark":
        """Without findings whose ledger left the log, or has another object by now."""
        attempts = {each.ledger_id: each.object.attempt for each in ledgers if each.object}
        kept = {
            ledger_id: finding
            for ledger_id, finding in self.findings.items()
            if attempts.get(ledger_id) == finding.attempt
        }
        return replace(self, findings=kept)

    def to_property(self) -> str:
        """As it stands in the node."""
        value = {
            "began_ms": self.began_ms,
            "through": self.through_id,
            "findings": {str(each): [*found] for each, found in sorted(self.findings.items())},
        }
        return json.dumps(value, separators=(",", ":"))


def mark_in(properties: Mapping[str, str]) -> ScrubMark:
    """The mark among a log's properties. One that cannot be read counts as none: all that is lost
    is the reading that was done."""
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
    """The mark of the pass under way, or of one that begins now because it is due."""
    if to_read(ledgers, mark):
        return mark
    due_ms = now_ms - period_s * 1000
    is_due = mark.began_ms <= due_ms and any(
        each.object is not None and each.is_in_object and each.object.at_ms <= due_ms
        for each in ledgers
    )
    return replace(mark, began_ms=now_ms, through_id=-1) if is_due else mark


def to_read(ledgers: Sequence[LogLedger], mark: ScrubMark) -> list[LogLedger]:
    """The ledgers whose objects the pass has still to read, the oldest first."""
    return [
        each
        for each in ledgers
        if each.object is not None
        and each.is_in_object
        and each.ledger_id > mark.through_id
        and each.object.at_ms <= mark.began_ms
    ]


def to_read_again(ledgers: Sequence[LogLedger], mark: ScrubMark) -> list[LogLedger]:
    """The ledgers whose objects the pass has passed and not settled: first those not whole of which
    the bookies have the ledger, then those that could not be reached."""
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
    """Whether a pass over a log has something to read now. A period of 0: never."""
    if period_s <= 0:
        return False
    found = current_pass(ledgers, mark, period_s=period_s, now_ms=now_ms)
    return bool(to_read(ledgers, found))


def check_named(footer: ObjectFooter, ledger: LogLedger) -> None:
    """Check that an object's footer says what the log's node says.

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
