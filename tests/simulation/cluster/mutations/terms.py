"""The rules of ownership: terms, leases, and topics that are loaded or lost meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.broker.cluster.ownership.cluster_ownership import ClusterOwnership
from magnetar.broker.cluster.ownership.leases import Leases
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from tests.simulation.mutations.mutation import Mutation, edited

_GUARD = "tests/unit/broker/ownership/test_session_guard.py::"
_LEASES = "tests/unit/broker/ownership/test_leases.py::"


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
        description="when proofs come again, a term that ran out goes on, with its topics",
        tests=(f"{_GUARD}test_a_term_that_ended_never_holds_again",),
        apply=_terms_go_on,
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
        name="proofs_count_from_their_answers",
        rule="10, self-fencing",
        defects=(),
        description="a proof is good from its answer on, not from the moment when it was asked for",
        tests=(f"{_GUARD}test_the_time_counts_from_the_request_not_from_the_answer",),
        apply=lambda: edited(
            SessionGuard,
            "_run",
            ("self._proven(sent_s)", "self._proven(self._clock.boot_s())"),
        ),
    ),
    Mutation(
        name="losses_that_a_lookup_meets_are_not_told",
        rule="10.2",
        defects=(),
        description="a lease that is found to be gone is forgotten, and its topics are not dropped",
        tests=(
            f"{_LEASES}test_a_lease_whose_node_is_gone_is_lost",
            f"{_LEASES}test_a_loss_that_a_lookup_meets_before_the_event_is_dealt_with_is_told",
        ),
        apply=lambda: edited(Leases, "_lose", ("    self._on_lost(bundle)", "    pass")),
    ),
    Mutation(
        name="leases_of_split_bundles_are_kept",
        rule="10.2",
        defects=(),
        description="a lease is kept although its bundle was split while it was taken",
        tests=(
            f"{_LEASES}test_a_lease_whose_reply_is_lost_is_not_kept_either_if_the_bundle_was_split",
        ),
        apply=lambda: edited(
            Leases,
            "_take",
            (
                "if is_listed and bundle.bundle not in await self._layouts.verified("
                "bundle.namespace):",
                "if False:",
            ),
        ),
    ),
]
