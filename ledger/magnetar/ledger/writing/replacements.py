"""The replacement of failed ensemble members, and the quarantine of bookies that failed lately.

All writers and recoveries of a client share it: it joins the registered bookies, the placement
rules and the quarantine. Source: ledger protocol, section 5, step 4 and options (quarantine after N
errors per interval).

A member that failed this ledger takes no other place in it for `rest_s`. Otherwise two dead bookies
would replace each other for ever. Neither the refusal of a dead bookie nor an ensemble change of
recovery takes time, so the event loop would do nothing else.

Quarantine (`BookieHealth`) keeps bookies that failed adds lately out of new ensembles. A hanging
bookie stays registered until its session ends, and would be chosen again as its own replacement's
replacement. So a bookie that reached `errors_max` failures within `interval_s` is avoided for
`quarantine_s`; it is used only if no other is left. One failure is one failed add request, and
counts once per ensemble change that it caused.
"""

from collections import deque
from collections.abc import Collection, Mapping

from magnetar.ledger.errors import LedgerWriteError, NotEnoughBookiesError
from magnetar.ledger.placement import Placement
from magnetar.ledger.ports import Clock
from magnetar.ledger.registration import BookieRegistry


class BookieHealth:
    """The failures of all writers of one client, by bookie."""

    def __init__(
        self, clock: Clock, *, errors_max: int, interval_s: float, quarantine_s: float
    ) -> None:
        self._clock = clock
        self._errors_max = errors_max
        self._interval_s = interval_s
        self._quarantine_s = quarantine_s
        self._errors: dict[str, deque[float]] = {}
        self._until_s: dict[str, float] = {}

    def on_error(self, bookie_id: str) -> None:
        """Record a failed add of the bookie that caused an ensemble change."""
        now_s = self._clock.monotonic_s()
        errors = self._errors.setdefault(bookie_id, deque(maxlen=self._errors_max))
        errors.append(now_s)
        if len(errors) == self._errors_max and now_s - errors[0] <= self._interval_s:
            self._until_s[bookie_id] = now_s + self._quarantine_s

    def quarantined(self) -> Collection[str]:
        """Return the bookies to avoid now, sorted."""
        now_s = self._clock.monotonic_s()
        for bookie_id in [each for each, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[bookie_id]
        return sorted(self._until_s)


class Replacements:
    """Chooses replacements for one ledger's quorums."""

    def __init__(
        self,
        registry: BookieRegistry,
        placement: Placement,
        health: BookieHealth,
        *,
        write_quorum: int,
        ack_quorum: int,
        is_delayed: bool,
        changes_max: int,
        clock: Clock,
        rest_s: float,
    ) -> None:
        self._registry = registry
        self._placement = placement
        self._health = health
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self.is_delayed = is_delayed
        """Whether to replace only for a missed ack quorum, or a read-only bookie."""
        self._changes_max = changes_max
        self._clock = clock
        self._rest_s = rest_s
        self._rests_until_s: dict[str, float] = {}

    @property
    def generation(self) -> tuple[int, tuple[str, ...]]:
        """A value that changes with the registered bookies and with the resting ones: after a
        change, a replacement may be found that was missing before."""
        return self._registry.generation, tuple(self._resting())

    def on_failed(self, bookie_id: str) -> None:
        self._health.on_error(bookie_id)
        self._rests_until_s[bookie_id] = self._clock.monotonic_s() + self._rest_s

    def _resting(self) -> list[str]:
        now_s = self._clock.monotonic_s()
        return [each for each, until_s in self._rests_until_s.items() if now_s < until_s]

    def choose(self, ensemble: tuple[str, ...], failed: Mapping[int, str]) -> tuple[str, ...]:
        """Return the ensemble with the failed members replaced, as far as there are bookies for it.

        A replacement takes the index of the member that it replaces. A failed member without a
        replacement stays.
        """
        chosen = list(ensemble)
        resting = self._resting()
        for index in sorted(failed):
            try:
                chosen[index] = self._placement.choose_replacement(
                    self._registry.writable(),
                    ensemble=chosen,
                    index=index,
                    write_quorum=self._write_quorum,
                    ack_quorum=self._ack_quorum,
                    excluded={*ensemble, *chosen, *failed.values(), *resting},
                    avoided=self._health.quarantined(),
                )
            except NotEnoughBookiesError:
                continue
        return tuple(chosen)

    def check_changes(self, changes: int, ledger_id: int) -> None:
        """Check the number of ensemble changes of a ledger.

        Raises:
            LedgerWriteError: `changes` exceeds the maximum of a ledger.
        """
        if self._changes_max and changes > self._changes_max:
            raise LedgerWriteError(
                f"ledger {ledger_id}: ensemble_changes_max of {self._changes_max} is reached; "
                f"go on in a new ledger"
            )
