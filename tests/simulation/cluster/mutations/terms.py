"""The rules of ownership: terms, leases, and topics that are loaded or lost meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.broker.ownership.cluster_ownership import ClusterOwnership
from magnetar.broker.ownership.leases import Leases
from magnetar.broker.ownership.session_guard import SessionGuard
from magnetar.broker.ownership.unloading import Unloading
from magnetar.broker.topics.ending import TopicEnds
from tests.simulation.mutations.mutation import Mutation, edited

_GUARD = "tests/unit/broker/ownership/test_session_guard.py::"


@contextmanager
def _terms_go_on() -> Iterator[None]:
    with edited(
        SessionGuard,
        "_end_term",
        ("    self._term += 1\n", ""),
        ("        loop.call_soon(callback, reason)", "        pass"),
    ):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="terms_do_not_count",
        rule="10, self-fencing",
        defects=("M13",),
        invariants=("C8",),
        description="what was allowed in a term that ended is allowed in the next one",
        tests=(f"{_GUARD}test_a_term_that_ended_never_holds_again",),
        apply=lambda: edited(
            SessionGuard,
            "holds",
            ("if term != self._term or self._is_out:", "if self._is_out:"),
        ),
    ),
    Mutation(
        name="topics_are_kept_over_the_end_of_a_term",
        rule="10, self-fencing",
        defects=("M13",),
        invariants=("C8",),
        description="a broker that is back in time's eyes goes on with the topics that it had",
        tests=(f"{_GUARD}test_a_term_that_ended_never_holds_again",),
        apply=_terms_go_on,
    ),
    Mutation(
        name="proofs_from_before_the_end_count",
        rule="10, self-fencing",
        defects=("M13",),
        description="an answer to a question from before the end of a term begins the next one",
        tests=(f"{_GUARD}test_an_answer_to_a_question_from_before_the_pause_proves_nothing",),
        apply=lambda: edited(
            SessionGuard,
            "_proven",
            ("if self._is_out and sent_s < self._out_since_s:", "if False:"),
        ),
    ),
    Mutation(
        name="leases_given_up_before_the_topics",
        rule="10.4",
        defects=(),
        invariants=("C8", "C17"),
        description="a bundle's lease is deleted, and then its topics are handed over",
        apply=lambda: edited(
            Unloading,
            "_unload",
            (
                "        await self._holder().hand_over(",
                "        await self._give_up(bundle)\n        await self._holder().hand_over(",
            ),
        ),
    ),
    Mutation(
        name="lost_leases_keep_their_topics",
        rule="10.2",
        defects=("C8",),
        description="a broker whose lease was deleted in the store goes on with its topics",
        apply=lambda: edited(
            ClusterOwnership,
            "_on_lease_lost",
            ('self._holder.drop(names, f"the lease of {bundle} is gone")', "pass"),
        ),
    ),
    Mutation(
        name="leases_are_held_unread",
        rule="10.2",
        defects=("M15",),
        invariants=("C8",),
        description="a lease that somebody else has created counts as taken",
        apply=lambda: edited(
            Leases,
            "_take",
            (
                "await self._catch_up(bundle)\n                continue",
                "self._hold(bundle, term, 0)\n                return record",
            ),
        ),
    ),
    Mutation(
        name="topics_lost_while_they_load_are_served",
        rule="10.1",
        defects=("M20",),
        invariants=("C8",),
        description="a topic that was lost while it was loaded is served all the same",
        apply=lambda: edited(
            TopicEnds,
            "check_wanted",
            ("if topic.is_closed:", "if False:"),
            ("if topic.name in self._table.unwanted or not topic.tenure.holds():", "if False:"),
        ),
    ),
]
