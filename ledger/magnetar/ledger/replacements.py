"""Who takes the place of a failed ensemble member, and when a failure is worth a change.

Shared by all writers and recoveries of a client: it joins the registered bookies, the placement
rules and the quarantine. Source: ledger protocol, section 5, step 4 and options.
"""

from collections.abc import Mapping

from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.errors import LedgerWriteError, NotEnoughBookiesError
from magnetar.ledger.placement import Placement
from magnetar.ledger.registration import BookieRegistry


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
    ) -> None:
        self._registry = registry
        self._placement = placement
        self._health = health
        self._write_quorum = write_quorum
        self._ack_quorum = ack_quorum
        self.is_delayed = is_delayed
        """Change only when an entry could not reach its ack quorum, or the bookie is read-only."""
        self._changes_max = changes_max

    @property
    def generation(self) -> int:
        """Changes with the registered bookies: then a replacement may be found after all."""
        return self._registry.generation

    def on_failed(self, bookie_id: str) -> None:
        self._health.on_error(bookie_id)

    def choose(self, ensemble: tuple[str, ...], failed: Mapping[int, str]) -> tuple[str, ...]:
        """The ensemble with the failed members replaced, as far as there are bookies for it.

        A replacement takes the index of the member it replaces. A failed member for which there is
        none stays.
        """
        chosen = list(ensemble)
        for index in sorted(failed):
            try:
                chosen[index] = self._placement.choose_replacement(
                    self._registry.writable(),
                    ensemble=chosen,
                    index=index,
                    write_quorum=self._write_quorum,
                    ack_quorum=self._ack_quorum,
                    excluded={*ensemble, *chosen, *failed.values()},
                    avoided=self._health.quarantined(),
                )
            except NotEnoughBookiesError:
                continue
        return tuple(chosen)

    def check_changes(self, changes: int, ledger_id: int) -> None:
        """
        Raises:
            LedgerWriteError: one change more than a ledger may have.
        """
        if self._changes_max and changes > self._changes_max:
            raise LedgerWriteError(
                f"ledger {ledger_id}: ensemble_changes_max of {self._changes_max} is reached; "
                f"go on in a new ledger"
            )
