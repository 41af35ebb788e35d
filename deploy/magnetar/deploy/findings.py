"""Findings of `magnetar doctor`, from what it measured. Pure."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

CLOCK_APART_WARN_S = 5.0
"""Clock difference that brings a warning. Clients and brokers compare times for delays, TTLs and
latencies. HTTP dates have whole seconds."""
CLOCK_APART_MAX_S = 60.0
"""Clock difference that fails the check: tokens are refused, and delayed messages come at wrong
times."""
TOKEN_ENDS_SOON_S = 86_400
_TIME_S_MAX = 10**12
"""Times beyond this, in seconds since 1970, count as this: 30,000 years from now."""
DISK_FREE_WARN_SHARE = 0.10
DISK_FREE_MIN_SHARE = 0.05


class State(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    state: State
    text: str
    """What was seen; then, unless all is well, what to do."""
    status: int = 0
    """Exit status of the command, if this check failed."""

    def line(self) -> str:
        """Return the finding as a line for people."""
        return f"{self.state.value:<8} {self.check:<12} {self.text}"


def token_finding(token: str, *, now_s: float) -> Finding:
    """Check the form and the validity period of a token. Only brokers can check its signature."""
    claims = _claims_of(token)
    if claims is None:
        text = "the token is no JSON web token: only a broker can say whether it is good"
        return Finding("token", State.WARNING, text)
    subject = f"for {claims['sub']!r}" if isinstance(claims.get("sub"), str) else "for no role"
    starts, ends = _time_in(claims, "nbf"), _time_in(claims, "exp")
    if ends is not None and ends <= now_s:
        text = f"{subject}, expired {_ago(now_s - ends)} ago: get a new one"
        return Finding("token", State.FAILED, text, 15)
    if starts is not None and starts > now_s:
        text = f"{subject}, valid only in {_ago(starts - now_s)}: is the clock here right?"
        return Finding("token", State.FAILED, text, 15)
    if ends is None:
        return Finding("token", State.OK, f"{subject}, without an end")
    soon = ends - now_s < TOKEN_ENDS_SOON_S
    text = f"{subject}, expires in {_ago(ends - now_s)}"
    return Finding("token", State.WARNING if soon else State.OK, text)


def clock_finding(date: str, *, before_s: float, after_s: float) -> Finding | None:
    """Compare the `Date` of an answer with the local clock before and after the request. None if
    the answer has no date."""
    try:
        there_s = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    # The date is truncated to seconds: the answer was made up to a second later.
    apart_s = max(there_s - after_s, before_s - (there_s + 1), 0.0)
    if apart_s < CLOCK_APART_WARN_S:
        return Finding("clock", State.OK, "this clock and the broker's agree to the second")
    text = f"this clock and the broker's are {apart_s:.0f} s apart: run NTP on both"
    if apart_s > CLOCK_APART_MAX_S:
        return Finding("clock", State.FAILED, text, 1)
    return Finding("clock", State.WARNING, text)


def bookies_finding(storage: Mapping[str, Any]) -> list[Finding]:
    """Judge the broker's report of bookies, their disks, and missing copies."""
    states: dict[str, list[str]] = {}
    for each in storage["bookies"]:
        states.setdefault(each["state"], []).append(each["id"])
    found = []
    writable = states.get("writable", [])
    if not writable:
        text = "no bookie is writable: nothing can be stored"
        found.append(Finding("bookies", State.FAILED, text, 1))
    else:
        found.append(Finding("bookies", State.OK, f"{len(writable)} writable"))
    if states.get("readonly"):
        names = ", ".join(states["readonly"])
        text = f"read-only: {names}: is the disk full? See its /health"
        found.append(Finding("bookies", State.WARNING, text))
    if states.get("lost"):
        text = f"lost: {', '.join(states['lost'])}: start them, or `magnetar admin bookies recover`"
        found.append(Finding("bookies", State.WARNING, text))
    recovery = storage["recovery"]
    if recovery["ledgers_lost"]:
        text = f"{recovery['ledgers_lost']} ledgers have entries that no bookie has"
        found.append(Finding("recovery", State.FAILED, f"{text}: `magnetar admin recovery`", 1))
    elif recovery["ledgers_waiting"]:
        text = f"{recovery['ledgers_waiting']} ledgers wait for copies"
        found.append(Finding("recovery", State.WARNING, f"{text}: `magnetar admin recovery`"))
    return found


def disk_finding(path: str, *, free: int, total: int) -> Finding:
    """Check whether the disk of a data directory has room."""
    share = free / total if total else 0.0
    text = f"{path}: {free / (1 << 30):,.1f} GiB free, {share:.0%}"
    if share < DISK_FREE_MIN_SHARE:
        return Finding("disk", State.FAILED, f"{text}: a bookie becomes read-only", 7)
    return Finding("disk", State.WARNING if share < DISK_FREE_WARN_SHARE else State.OK, text)


def _claims_of(token: str) -> dict[str, Any] | None:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims = json.loads(base64.urlsafe_b64decode(padded))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _time_in(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if not isinstance(value, int | float):
        return None
    # JSON numbers have no limit, and an int of 400 digits cannot become a float.
    return float(max(-_TIME_S_MAX, min(value, _TIME_S_MAX)))


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
