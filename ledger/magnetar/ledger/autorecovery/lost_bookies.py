"""Decide which bookies are lost, and when to audit the ledgers that they held. Pure.

A bookie is *known* when it has a cookie, or was seen registered. A new auditor starts from the
cookies, so it finds bookies that were lost while there was no auditor (defect A10). A read-only
bookie counts as registered (A9). A known bookie that is not registered is *away*, and *open* until
an audit has published items for it.

An audit is due

- `gather_s` after the first open bookie went away, and not before `settled_s`, the time from which
  on this auditor trusts the registrations;
- with exactly one open bookie: when it has been away for the recovery delay. If it comes back
  before, that audit is cancelled (section 3);
- in a *mass loss*, when more than a share of the bookies went away within a window: after a wait
  since that last held (rule 3.2, defect A11). The wait also holds for the few bookies that are
  still away when most are back, since bookies come back one by one. The mass loss itself, which
  slows down publishing, lasts until enough of its bookies are back or decommissioned. A new auditor
  cannot know whether the bookies that it finds away went together, perhaps with the last auditor,
  or one by one over months. So these count for some hours only (`UNSEEN_S`);
- at once when an operator requests it.

Times are seconds of one monotonic clock. Source: auto-recovery, section 3.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

UNSEEN_S = 6 * 3600.0
"""How long bookies that this auditor never saw registered count towards a mass loss. Long enough
for operators to act, and not for good: they may have gone one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRules:
    """Bounds of the decisions; see `AuditorSettings`."""

    gather_s: float
    mass_loss_share: float
    mass_loss_bookies_min: int
    mass_loss_window_s: float
    mass_loss_wait_s: float


class DueAudit(NamedTuple):
    """An audit, and the time from which it is due."""

    at_s: float
    reason: str
    """Reason for the audit: `asked`, `delayed`, `lost` or `mass_loss`; few values, for a metric's
    label."""


class LostBookies:
    """State of the bookies as one auditor knows it, since the start of its term."""

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
        """No loss is believed before this time: the auditor is new, or there was a mass loss
        recently."""
        self._mass_lost: set[str] = set()
        """Bookies that went in a mass loss, or may have, and that are still away."""
        self._calm_since_s: float | None = None
        """Time since which so few of them are away that the mass loss counts as over."""
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
        """Bookies that are away and not covered by an audit yet."""
        return frozenset(self._away_since.keys() - self._audited)

    @property
    def is_delayed(self) -> bool:
        """Whether the audit for a single bookie waits for its delay: checks skip their run."""
        return self._delayed is not None

    def on_cookies(self, bookie_ids: Collection[str], *, now_s: float) -> None:
        """Set the bookies that have a cookie now; a decommissioned bookie has none any more."""
        gone = self._cookies - set(bookie_ids)
        self._cookies = frozenset(bookie_ids)
        self._seen -= gone
        self._update(now_s)

    def on_registered(self, bookie_ids: Collection[str], *, now_s: float) -> None:
        """Set the bookies that are registered now, in either list."""
        self._registered = frozenset(bookie_ids)
        self._seen |= self._registered
        self._update(now_s)

    def on_delay(self, delay_s: float, *, now_s: float) -> None:
        """Set the recovery delay that an operator wrote. The same value again requests an audit."""
        if delay_s == self._delay_s:
            self.on_asked(now_s=now_s)
            return
        self._delay_s = delay_s
        self._update(now_s)

    def on_asked(self, *, now_s: float) -> None:
        """Request an audit at once, for an operator or a decommission."""
        self._asked_s = now_s

    def begin_audit(self) -> dict[str, float]:
        """Begin an audit; pass the result to `on_audited` at its end. A request after this call
        leads to another audit."""
        self._asked_s = None
        return dict(self._away_since)

    def on_audited(self, covered: Mapping[str, float]) -> None:
        """Note that the audit that began with `covered` has published an item for each ledger of
        these bookies.

        A bookie that came back meanwhile, and left once more, is not covered.
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
        """Return whether so many bookies left within the window that another cause is suspected.

        A bookie that went in a mass loss counts until it is back or decommissioned: time that
        passes does not show what the cause was. One that this auditor never saw registered counts
        for `UNSEEN_S`. Once a mass loss has been over for the window, its
        last bookies do not count any more.
        """
        return self._is_suspicious(len(self._gone_lately(now_s) | self._gone_together(now_s)))

    def _gone_lately(self, now_s: float) -> set[str]:
        window_s = self._rules.mass_loss_window_s
        return {each for each, since_s in self._away_since.items() if now_s - since_s <= window_s}

    def _gone_together(self, now_s: float) -> set[str]:
        """Return the bookies of a mass loss that count now."""
        return {
            each
            for each in self._mass_lost
            if each in self._seen or now_s - self._away_since[each] <= UNSEEN_S
        }

    def _is_suspicious(self, gone: int) -> bool:
        whole = len(self._registered) + gone
        return gone >= self._rules.mass_loss_bookies_min and (
            gone > self._rules.mass_loss_share * whole
        )

    def due(self, now_s: float) -> DueAudit | None:
        """Return the next audit; None if there is no reason for one. Its time may lie in the
        past."""
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
        self._forget_past_mass_loss(now_s)
        if away != self._away_since.keys():
            self._update_away(away, now_s)
        if self._is_suspicious(len(self._gone_together(now_s))):
            self._calm_since_s = None
        elif self._calm_since_s is None:
            self._calm_since_s = now_s
        self._update_delayed()

    def _update_away(self, away: frozenset[str], now_s: float) -> None:
        was_sudden = self._is_suspicious(len(self._gone_lately(now_s)))
        for bookie_id in self._away_since.keys() - away:
            del self._away_since[bookie_id]
            self._audited.discard(bookie_id)
        for bookie_id in away:
            self._away_since.setdefault(bookie_id, now_s)
        self._mass_lost &= away
        lately = self._gone_lately(now_s)
        if self._is_suspicious(len(lately | self._gone_together(now_s))):
            self._mass_lost |= lately
        # Only for bookies that went lately: in a mass loss that lasts, a single one that comes and
        # goes would put the audit off for ever.
        if was_sudden or self._is_suspicious(len(lately)):
            self._suspicious_until_s = max(
                self._suspicious_until_s, now_s + self._rules.mass_loss_wait_s
            )

    def _forget_past_mass_loss(self, now_s: float) -> None:
        """Forget the bookies of a mass loss that has been over for the window: another one that
        goes later is not part of it. Not at once, so that a bookie that comes and goes does not end
        it."""
        since_s, window_s = self._calm_since_s, self._rules.mass_loss_window_s
        if since_s is not None and now_s - since_s > window_s:
            self._mass_lost.clear()

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
