"""The rules of the writer: add path, ensemble change, close."""

from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.writing.add_pipeline import AddPipeline, PendingAdds
from magnetar.ledger.writing.writer_metadata import WriterMetadata
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="ensemble_used_before_its_commit",
        rule="5.1",
        defects=("D7",),
        invariants=("I1", "I2", "I16"),
        description="a new ensemble is installed while its metadata write is under way",
        apply=lambda: edited(
            AddPipeline,
            "_replace",
            (
                "await self._commit(self._pending.first_unreleased, ensemble)",
                "asyncio.ensure_future(\n"
                "        self._commit(self._pending.first_unreleased, ensemble)\n"
                "    )",
            ),
        ),
    ),
    Mutation(
        name="release_before_all_acks_are_revoked",
        rule="section 5 step 7",
        defects=("D8",),
        invariants=("I1", "I2", "I16"),
        description="adds are released while the queue is still being judged anew",
        apply=lambda: edited(
            AddPipeline,
            "_replace",
            (
                "    self._pending.revoke(replaced)\n",
                "    self._pending.is_frozen = False\n"
                "    self._release()\n"
                "    self._pending.is_frozen = True\n"
                "    self._pending.revoke(replaced)\n",
            ),
        ),
    ),
    Mutation(
        name="acks_of_replaced_members_stay",
        rule="4.2",
        defects=("D8", "D9"),
        invariants=("I1", "I2", "I16"),
        description="an ensemble change takes back no acknowledgement of the replaced member",
        apply=lambda: edited(PendingAdds, "revoke", ("add.acked &= mask", "pass")),
    ),
    Mutation(
        name="release_during_a_change",
        rule="section 5 step 1",
        defects=("D8", "D9"),
        invariants=("I1", "I2", "I16", "I17"),
        description="adds are released although the start of the new fragment is chosen",
        apply=lambda: edited(PendingAdds, "release", ("if self.is_frozen:", "if False:")),
    ),
    Mutation(
        name="acks_of_former_members_count",
        rule="4.2 step 5",
        defects=("D10",),
        invariants=("I2", "I16"),
        description="a late OK of a replaced member is credited to the one in its place",
        apply=lambda: edited(
            AddPipeline,
            "_on_stored",
            (
                "if self._is_lost or self._ensemble[index] != bookie_id:",
                "if self._is_lost:",
            ),
        ),
    ),
    Mutation(
        name="failures_of_former_members_count",
        rule="4.2 step 5",
        defects=("D10",),
        invariants=(),
        description="a late failure of a replaced member is held against the one in its place",
        apply=lambda: edited(
            AddPipeline,
            "_on_failure",
            (
                "if self._is_lost or self._ensemble[index] != bookie_id:",
                "if self._is_lost:",
            ),
        ),
    ),
    Mutation(
        name="no_release_after_a_change",
        rule="section 5 step 8",
        defects=("D11",),
        invariants=("W9",),
        description="what was acknowledged during a change waits for another reply",
        apply=lambda: edited(
            AddPipeline,
            "_change",
            ("    else:\n        self._release()\n", "    else:\n        pass\n"),
        ),
    ),
    Mutation(
        name="two_changes_at_a_time",
        rule="section 5 step 1",
        defects=("D12",),
        invariants=("I17",),
        description="a second failure starts a change of its own beside the one under way",
        apply=lambda: edited(
            AddPipeline,
            "_on_failure",
            (
                "if not pending.is_frozen and (is_wanted or is_lost):",
                "if is_wanted or is_lost:",
            ),
        ),
    ),
    Mutation(
        name="conflict_retried_with_the_stale_value",
        rule="2.1",
        defects=("D12",),
        invariants=("I11", "I21"),
        description="after a conflict the value computed from the old metadata is written again",
        apply=lambda: edited(
            WriterMetadata,
            "commit_ensemble",
            (
                "ledger.metadata.with_ensemble(first_entry_id, bookies)",
                "self._ledger.metadata.with_ensemble(first_entry_id, bookies)",
            ),
        ),
    ),
    Mutation(
        name="metadata_written_blindly",
        rule="2.1",
        defects=("D12",),
        invariants=("I3", "I4", "I11", "I12"),
        description="metadata is written whatever version it has by now",
        apply=lambda: edited(
            LedgerManager,
            "write",
            (
                "    try:\n"
                "        new_version = await self._store.set("
                "path, metadata.to_json(), version=version)\n",
                "    from magnetar.ledger.errors import BadVersionError\n"
                "    try:\n"
                "        while True:\n"
                "            try:\n"
                "                new_version = await self._store.set(\n"
                "                    path, metadata.to_json(), version=version\n"
                "                )\n"
                "                break\n"
                "            except BadVersionError:\n"
                "                version = (await self._store.get(path)).version\n",
            ),
        ),
    ),
    Mutation(
        name="release_out_of_order",
        rule="4.1",
        defects=(),
        invariants=("I1", "I8"),
        description="an add is released as soon as it has its ack quorum, whatever is before it",
        apply=lambda: edited(
            PendingAdds,
            "release",
            (
                "    while queue and queue[0].acked.bit_count() >= self._ack_quorum:\n"
                "        add = queue.popleft()\n",
                "    for add in [each for each in queue if self.is_done(each)]:\n"
                "        queue.remove(add)\n",
            ),
        ),
    ),
]
