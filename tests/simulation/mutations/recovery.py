"""The rules of recovery: fencing, reading, writing back, closing."""

from magnetar.ledger.recovering.recovery_reads import RecoveryReads
from magnetar.ledger.recovering.write_back import WriteBack
from magnetar.ledger.recovery import LedgerRecovery
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="recovery_reads_without_fence",
        rule="8.5",
        defects=("D1",),
        invariants=("I1", "I9", "I15"),
        description="recovery reads do not fence the bookies that deny the entry",
        apply=lambda: edited(
            RecoveryReads,
            "_read_one",
            ("flags=Flag.FENCE,", "flags=0,"),
            ("if not frame.flags & Flag.FENCED:", "if False:"),
        ),
    ),
    Mutation(
        name="recovery_from_below_the_last_fragment",
        rule="8.1 step 4",
        defects=("D2",),
        invariants=("I11", "I18"),
        description="recovery begins at the LAC that was heard, even below the last fragment",
        apply=lambda: edited(
            LedgerRecovery,
            "run",
            (
                "max(\n        await self._fence(snapshot), "
                "snapshot.last_fragment.first_entry_id - 1\n    )",
                "await self._fence(snapshot)",
            ),
        ),
    ),
    Mutation(
        name="recovery_commits_its_ensembles_early",
        rule="8.1 step 7",
        defects=("D3",),
        invariants=("I1", "I11"),
        description="a replacement during recovery is written to the metadata at once",
        apply=lambda: edited(
            WriteBack,
            "_keep_ensemble",
            (
                "    self._fragments = ",
                "    from dataclasses import replace\n"
                "    ledger = await self._parts.manager.read(self._ledger_id)\n"
                "    ensembles = merge_fragment(\n"
                "        ledger.metadata.ensembles, Fragment(first_entry_id, bookies)\n"
                "    )\n"
                "    await self._parts.manager.write(\n"
                "        replace(ledger.metadata, ensembles=ensembles), version=ledger.version\n"
                "    )\n"
                "    self._fragments = ",
            ),
        ),
    ),
    Mutation(
        name="recovery_reads_from_its_replacements",
        rule="8.1 step 5",
        defects=("D4",),
        invariants=("I1",),
        description="recovery reads go to the bookies that the recovery brought in",
        apply=lambda: edited(
            LedgerRecovery,
            "_recover_tail",
            (
                "            write_back.send(entries)\n",
                "            write_back.send(entries)\n"
                "            reads._ensemble = write_back._pipeline.ensemble\n",
            ),
        ),
    ),
    Mutation(
        name="an_error_confirms_the_fence",
        rule="7.2",
        defects=("D5",),
        invariants=("I1", "I9"),
        description="any answer to a fence request counts, an error and a silence too",
        apply=lambda: edited(
            LedgerRecovery,
            "_fence",
            ("failures.append(str(error))", "coverage.confirm(index)"),
        ),
    ),
    Mutation(
        name="a_silence_denies_the_entry",
        rule="8.2",
        defects=("D5", "D15"),
        invariants=("I1",),
        description="a bookie that cannot be heard, or not answer, counts as not having the entry",
        apply=lambda: edited(
            RecoveryReads,
            "_read",
            ("unknowns.append(str(error))", "negatives += 1"),
        ),
    ),
    Mutation(
        name="a_bad_replica_denies_the_entry",
        rule="8.2",
        defects=("D15",),
        invariants=("I1", "I20"),
        description="a replica that fails its digest counts as not there",
        apply=lambda: edited(
            RecoveryReads,
            "_read",
            (
                "(NoSuchEntryError, NoSuchLedgerOnBookieError)",
                "(NoSuchEntryError, NoSuchLedgerOnBookieError, DigestMismatchError)",
            ),
        ),
    ),
    Mutation(
        name="the_first_lac_is_taken",
        rule="9.5",
        defects=("D5",),
        invariants=("W11",),
        description="recovery takes the last LAC that was heard instead of the highest",
        apply=lambda: edited(
            LedgerRecovery,
            "_fence",
            ("max(last_add_confirmed, heard)", "heard"),
        ),
    ),
    Mutation(
        name="a_negative_does_not_confirm_the_fence",
        rule="7.2",
        defects=("D5",),
        invariants=("I18",),
        description="a bookie that is fenced and knows nothing of the ledger does not count",
        apply=lambda: edited(
            LedgerRecovery,
            "_fence_one",
            (
                "    return self._heard_lac(frame.body)\n",
                "    heard = self._heard_lac(frame.body)\n"
                "    if heard < 0:\n"
                '        raise BookieUnavailableError("it knows nothing of the ledger")\n'
                "    return heard\n",
            ),
        ),
    ),
    Mutation(
        name="every_member_must_deny_the_entry",
        rule="8.1 step 5",
        defects=("D5", "D6"),
        invariants=("I18",),
        description="the end of the ledger needs a negative from every member of the write set",
        apply=lambda: edited(
            RecoveryReads,
            "_read",
            ("while negatives < self._negatives_needed:", "while negatives < len(members):"),
        ),
    ),
    Mutation(
        name="the_fence_waits_for_everybody",
        rule="7.2",
        defects=("D5", "D6"),
        invariants=("I18",),
        description="recovery goes on only when every member of the ensemble has confirmed",
        apply=lambda: edited(
            LedgerRecovery,
            "_fence",
            (
                "while not coverage.is_covered:",
                "while len(coverage.confirmed) < len(ensemble):",
            ),
        ),
    ),
]
