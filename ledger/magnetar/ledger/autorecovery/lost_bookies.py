"""Decide which bookies are lost, and when to audit the ledgers that they held. Pure.

A bookie is *known* when it has a cookie, or was seen registered: a new auditor starts from the
cookies, so that it finds those that were lost while there was none (defect A10). Registered is
registered, read-only or not (A9). What is known and not registered is *away*, and *open* until an
audit has published items for it.

An audit is due
- `gather_s` after the first open bookie went away, and not before `settled_s`, the time from which
  on this auditor believes what it sees;
- with exactly one open bookie: when it has been away for the recovery delay. If it comes back
  before, that audit is cancelled (section 3);
- in a *mass loss*, when more than a share of the bookies went away within a window: after a wait
  since it was last so (rule 3.2, defect A11). The wait holds as well for the few that are still
  away when most are back: those came back one by one, too;
- at once when an operator asks for it.

Times are seconds of one monotonic clock. Source: auto-recovery, section 3.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRules:
    """Bounds of the decisions; see `AuditorSettings`."""

    gather_s: float
    mass_loss_share: float
    mass_loss_bookies_min: int
    mass_loss_window_s: float
    mass_loss_wait_s: float


class DueAudit(NamedTuple):
    """An audit, and from when on."""

    at_s: float
    reason: str
    """`asked`, `delayed`, `lost` or `mass_loss`: few values, for a metric's label."""


class LostBookies:
    """What one auditor knows of the bookies, from the begin of its term on."""

    def __init__(self, rules: LossRules, *, settled_s: float, delay_s: float) -> None:
        self._rules = rules
        self._delay_s = delay_s
        self._cookies: frozenset[str] = frozenset()
        self._registered: frozenset[str] = frozenset()
        self._seen: set[str] = set()
        self._away_since: dict[str, float] = {}
        self._audited: set[str] = set()
        self._asked_s: float | None = None
        self._suspicious_until_s = settled_s
        """Nothing is believed before: the auditor is new, or there was a mass loss just now."""
        self._delayed: str | None = None
        """The single bookie whose delay is running."""
        self.delayed_scheduled = 0
        self.delayed_cancelled = 0

    @property
    def registered(self) -> frozenset[str]:
        return self._registered

    @property
    def away(self) -> Mapping[str, float]:
        """The known bookies that are not registered, and since when."""
        return self._away_since

    @property
    def open(self) -> frozenset[str]:
        """Bookies that are away and that no audit has dealt with."""
        return frozenset(self._away_since.keys() - self._audited)

    @property
    def is_delayed(self) -> bool:
        """Whether the audit for a single bookie waits for its delay: checks skip their run."""
        return self._delayed is not None

    def on_cookies(self, bookie_ids: Collection[str], *, now_s: float) -> None:
        """The bookies that have a cookie now; one that is decommissioned has none any more."""
        gone = self._cookies - set(bookie_ids)
        self._cookies = frozenset(bookie_ids)
        self._seen -= gone
        self._update(now_s)

    def on_registered(self, bookie_ids: Collection[str], *, now_s: float) -> None:
        """The bookies that are registered now, in either list."""
        self._registered = frozenset(bookie_ids)
        self._seen |= self._registered
        self._update(now_s)

    def on_delay(self, delay_s: float, *, now_s: float) -> None:
        """The recovery delay was written. The same value again asks for an audit."""
        if delay_s == self._delay_s:
            self.on_asked(now_s=now_s)
            return
        self._delay_s = delay_s
        self._update(now_s)

    def on_asked(self, *, now_s: float) -> None:
        """An operator, or a decommission, wants an audit at once."""
        self._asked_s = now_s

    def begin_audit(self) -> dict[str, float]:
        """An audit begins; the result goes to `on_audited` at its end. Whoever asks from now on
        asks for another one."""
        self._asked_s = None
        return dict(self._away_since)

    def on_audited(self, covered: Mapping[str, float]) -> None:
        """An audit that began with `covered` has published an item for each ledger of theirs.

        A bookie that was back meanwhile, and went away once more, is not covered.
        """
        self._audited |= {
            bookie_id
            for bookie_id, since_s in covered.items()
            if self._away_since.get(bookie_id) == since_s
        }
        if self._delayed in self._audited:
            self._delayed = None
        self._update_delayed()

    def is_mass_loss(self, now_s: float) -> bool:
        """Whether so many went away within the window that something else is to be suspected."""
        lately = sum(
            now_s - since_s <= self._rules.mass_loss_window_s
            for since_s in self._away_since.values()
        )
        whole = len(self._registered) + lately
        return (
            lately >= self._rules.mass_loss_bookies_min
            and lately > self._rules.mass_loss_share * whole
        )

    def due(self, now_s: float) -> DueAudit | None:
        """The next audit; None if there is no reason for one. May lie in the past."""
        open_ = self.open
        if self._asked_s is not None:
            return DueAudit(self._asked_s, "asked")
        if not open_:
            return None
        first_s = min(self._away_since[bookie_id] for bookie_id in open_)
        if self._delayed is not None:
            at_s, reason = first_s + self._delay_s, "delayed"
        else:
            at_s = first_s + self._rules.gather_s
            reason = "mass_loss" if self.is_mass_loss(now_s) else "lost"
        return DueAudit(max(at_s, self._suspicious_until_s), reason)

    def _update(self, now_s: float) -> None:
        away = (self._cookies | self._seen) - self._registered
        if away == self._away_since.keys():
            self._update_delayed()
            return
        was_mass_loss = self.is_mass_loss(now_s)
        for bookie_id in self._away_since.keys() - away:
            del self._away_since[bookie_id]
            self._audited.discard(bookie_id)
        for bookie_id in away:
            self._away_since.setdefault(bookie_id, now_s)
        if was_mass_loss or self.is_mass_loss(now_s):
            self._suspicious_until_s = max(
                self._suspicious_until_s, now_s + self._rules.mass_loss_wait_s
            )
        self._update_delayed()

    def _update_delayed(self) -> None:
        open_ = self.open
        wanted = min(open_) if len(open_) == 1 and self._delay_s > 0 else None
        if wanted == self._delayed:
            return
        if self._delayed is not None and self._delayed not in open_:
            self.delayed_cancelled += 1
        if wanted is not None:
            self.delayed_scheduled += 1
        self._delayed = wanted
