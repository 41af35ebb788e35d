"""The rules of a bookie's fence: when it may be seen, and what it forbids."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.bookie.journaling.replay import StorageReplay
from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.request_handler import AddRequests
from tests.simulation.mutations.mutation import Mutation, edited


@contextmanager
def _fence_is_seen_early(*changes: tuple[str, str]) -> Iterator[None]:
    """Replies say that the ledger is fenced as soon as it is so in memory."""
    with (
        edited(
            LedgerTable,
            "is_durably_fenced",
            ("descriptor.fence is FenceState.DURABLE", "descriptor.fence is not FenceState.OPEN"),
        ),
        edited(FenceRequests, "after_fence", *changes),
    ):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="fenced_reads_do_not_wait_for_the_fence",
        rule="7",
        defects=("D18",),
        invariants=("I1", "I9", "I13"),
        description="a fenced read is answered while its fence is on the way to the journal",
        apply=lambda: _fence_is_seen_early(("if ledger.fence is FenceState.DURABLE:", "if True:")),
    ),
    Mutation(
        name="second_fence_does_not_wait",
        rule="7",
        defects=("D20",),
        invariants=("I1", "I9", "I13"),
        description="a second fence is answered while the first is on the way to the journal",
        apply=lambda: _fence_is_seen_early(
            ("if ledger.request_fence():", "is_first = ledger.request_fence()\n    if is_first:"),
            (
                "if ledger.fence is FenceState.DURABLE:",
                "if ledger.fence is FenceState.DURABLE or not is_first:",
            ),
        ),
    ),
    Mutation(
        name="waiting_adds_slip_past_the_fence",
        rule="7",
        defects=("D19",),
        invariants=("I1", "I9", "I13", "I15"),
        description="an add that waited for room is not checked against the fence again",
        apply=lambda: edited(
            AddRequests,
            "_add",
            (
                "if ledger.fence is not FenceState.OPEN and not is_recovery:",
                "if (\n"
                "        ledger.fence is not FenceState.OPEN\n"
                "        and not is_recovery\n"
                "        and connection not in self._stalled\n"
                "    ):",
            ),
        ),
    ),
    Mutation(
        name="fence_forbids_nothing",
        rule="7",
        defects=("D19",),
        invariants=("I1", "I9", "I13", "I15"),
        description="ordinary adds to a fenced ledger are taken",
        apply=lambda: edited(
            AddRequests,
            "_add",
            (
                "if ledger.fence is not FenceState.OPEN and not is_recovery:",
                "if False:",
            ),
        ),
    ),
    Mutation(
        name="fence_refuses_recovery_adds",
        rule="7",
        defects=("D24",),
        invariants=("I18",),
        description="recovery adds to a fenced ledger are refused like ordinary ones",
        apply=lambda: edited(
            AddRequests,
            "_add",
            (
                "if ledger.fence is not FenceState.OPEN and not is_recovery:",
                "if ledger.fence is not FenceState.OPEN:",
            ),
        ),
    ),
    Mutation(
        name="unknown_ledgers_are_not_fenced",
        rule="7",
        defects=(),
        invariants=("I18",),
        description="a bookie that never saw the ledger ignores the fence",
        apply=lambda: edited(
            FenceRequests,
            "after_fence",
            (
                "    ledger = self.admit(connection, frame, key)\n",
                "    if self._ledgers.find(ledger_id) is None:\n"
                "        proceed()\n"
                "        return\n"
                "    ledger = self.admit(connection, frame, key)\n",
            ),
        ),
    ),
    Mutation(
        name="replay_forgets_fences",
        rule="7",
        defects=("D13", "D17"),
        invariants=("I1", "I9", "I13"),
        description="replay after a crash skips the fences in the journal",
        apply=lambda: edited(
            StorageReplay, "_fence", ("    state = self._storage.state(ledger_id)", "    return")
        ),
    ),
    Mutation(
        name="master_key_is_not_journalled",
        rule="section 12",
        defects=(),
        invariants=("I1", "I14"),
        description="the ledger's key is not written ahead of its first entry; replay skips both",
        apply=lambda: edited(AddRequests, "_add", ("journal_key(ledger, batch)", "pass")),
    ),
]
