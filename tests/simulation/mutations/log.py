"""The rules of the managed log: taking it over, and changing its ledgers."""

from magnetar.ledger.managed_log import log_takeover
from magnetar.ledger.managed_log.log_changes import LedgerChanges
from magnetar.ledger.managed_log.log_list import LogList
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="takeover_trusts_the_list",
        rule="managed ledger, section 2",
        defects=(),
        invariants=("L1",),
        description="a takeover recovers only the last ledger; the one before it may be written to",
        apply=lambda: edited(
            log_takeover,
            "_recover",
            (
                "is_old = ledger.is_closed and at < len(listed) - OPEN_LEDGERS_MAX",
                "is_old = at < len(listed) - 1",
            ),
        ),
    ),
    Mutation(
        name="takeover_does_not_fence",
        rule="managed ledger, section 2",
        defects=(),
        invariants=("L1", "L2"),
        description="a takeover opens the ledgers of the list without recovering them",
        apply=lambda: edited(
            log_takeover,
            "_recover",
            ("client.open_and_recover(ledger.ledger_id", "client.open(ledger.ledger_id"),
        ),
    ),
    Mutation(
        name="list_written_blindly",
        rule="managed ledger, section 2",
        defects=(),
        invariants=("L1", "L2"),
        description="the list is written whatever version it has by now",
        apply=lambda: edited(
            LogList,
            "_try_set",
            ("version=self._version)", "version=(await self._store.get(self._path)).version)"),
        ),
    ),
    Mutation(
        name="ledger_used_before_it_is_listed",
        rule="managed ledger, 2.2",
        defects=("M1",),
        invariants=("L1",),
        description="a log goes on in its next ledger before the list names it",
        apply=lambda: edited(
            LedgerChanges,
            "_rotate",
            (
                "        await self._update(lambda metadata: metadata.with_next(new.ledger_id))\n",
                "        self._appender.switch_to(new)\n"
                "        await self._update(lambda metadata: metadata.with_next(new.ledger_id))\n",
            ),
            (
                "        self._ledgers.spare_listed()\n        self._appender.switch_to(new)\n",
                "        self._ledgers.spare_listed()\n",
            ),
        ),
    ),
]
