"""The rules of logs, dispatch and transactions at their owner."""

from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.topic.dispatch.accounted import AccountedDispatcher
from magnetar.broker.topic.dispatch.failover import FailoverDispatcher
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.ledger.managed_log import log_takeover
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="takeovers_believe_the_list",
        rule="section 2, step 2",
        defects=("M3",),
        invariants=("C1", "C3"),
        description="what the list says of a recovered ledger counts, not what is in it",
        apply=lambda: edited(
            log_takeover,
            "_recover",
            ("entries=reader.metadata.last_entry_id + 1,", "entries=ledger.entries,"),
        ),
    ),
    Mutation(
        name="removed_ledgers_are_not_remembered",
        rule="6.1",
        defects=(),
        invariants=("C1", "C3"),
        description="the list does not say up to which ledger it was trimmed",
        apply=lambda: edited(
            LogMetadata,
            "shrunk",
            (
                "removed_through = max(self.removed_through, self.ledgers[at - 1].ledger_id)",
                "removed_through = self.removed_through",
            ),
        ),
    ),
    Mutation(
        name="messages_of_consumers_that_went_are_forgotten",
        rule="12.1",
        defects=(),
        description="what a shared consumer had when it went is sent to nobody else",
        tests=(
            "tests/unit/broker/test_shared.py::"
            "test_what_a_lost_consumer_had_goes_to_the_others_uncounted",
        ),
        apply=lambda: edited(
            AccountedDispatcher,
            "_take_back_some",
            (
                "self._send_later(self.accounts.give_back(consumer, positions, is_counted=False))",
                "self.accounts.give_back(consumer, positions, is_counted=False)",
            ),
        ),
    ),
    Mutation(
        name="standbys_are_served",
        rule="12",
        defects=("C11",),
        invariants=("C11",),
        description="messages go to the failover consumer that came last, whoever is chosen",
        apply=lambda: edited(
            FailoverDispatcher,
            "_activate",
            ("self.active = self._chosen", "self.active = self.consumers[-1]"),
        ),
    ),
    Mutation(
        name="transactions_decided_before_that_is_durable",
        rule="transactions",
        defects=(),
        description="participants are told of a decision that is not in the log yet",
        tests=(
            "tests/unit/broker/transactions/test_coordinator.py::"
            "test_nothing_is_told_before_the_decision_is_durable",
        ),
        apply=lambda: edited(
            Coordinator,
            "_decide",
            (
                "await self._durable(self._write(",
                "done = (self._write(",
            ),
            (
                "    self._carry_out(found)\n",
                "    self._carry_out(found)\n    await self._durable(done)\n",
            ),
        ),
    ),
    Mutation(
        name="open_transactions_are_visible",
        rule="transactions",
        defects=(),
        description="readers go on to the end of the log, transactions that are open or not",
        tests=(
            "tests/unit/broker/transactions/test_buffer_state.py::"
            "test_a_run_is_seen_up_to_the_limit_and_without_what_is_aborted",
        ),
        apply=lambda: edited(
            Visibility,
            "last",
            ("return last if self.hidden is None else self.hidden.limit(last)", "return last"),
        ),
    ),
]
