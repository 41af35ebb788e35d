"""The rules of auto-recovery."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from magnetar.ledger.autorecovery import repair
from magnetar.ledger.autorecovery.checker import Checker
from magnetar.ledger.autorecovery.copier import Copier, _Runs
from magnetar.ledger.autorecovery.fragments import LedgerCheck
from magnetar.ledger.autorecovery.lost_bookies import LostBookies
from magnetar.ledger.autorecovery.postponed import PostponedItems
from magnetar.ledger.autorecovery.repair import LedgerRepair
from magnetar.ledger.autorecovery.term import AuditorTerm
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.autorecovery.worker import Worker
from tests.simulation.mutations.mutation import Mutation, edited


@contextmanager
def _open_tails_are_moved() -> Iterator[None]:
    """The rule is looked at twice: when fragments are chosen, and before the write."""
    with ExitStack() as both:
        both.enter_context(
            edited(
                LedgerCheck,
                "complete_spans",
                ("[check for check in self.spans if check.span.is_complete]", "list(self.spans)"),
            )
        )
        both.enter_context(
            edited(
                repair,
                "with_replaced",
                ("if is_last and metadata.state is not LedgerState.CLOSED:", "if False:"),
            )
        )
        yield


@contextmanager
def _locks_outlive_the_session() -> Iterator[None]:
    """A session that ends cancels what is under way, and the lock is looked at before the write."""
    with ExitStack() as both:
        both.enter_context(
            edited(Worker, "_on_session_change", ("if state is SessionState.EXPIRED:", "if False:"))
        )
        both.enter_context(
            edited(LedgerRepair, "_swap", ("if not await holds_lock():", "if False:"))
        )
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="members_swapped_before_the_copies",
        rule="5.1",
        defects=("A7",),
        invariants=("R1",),
        description="a new member is named whether or not its copies are complete",
        apply=lambda: edited(
            LedgerRepair,
            "_repair_span",
            ("if replaced and result.is_complete:", "if replaced:"),
        ),
    ),
    Mutation(
        name="nothing_is_copied",
        rule="5.1",
        defects=("A13",),
        invariants=("R1",),
        description="members are replaced, and their entries are not copied",
        apply=lambda: edited(
            LedgerRepair, "_repair_span", ("pieces_of(wanted))", "pieces_of({}))")
        ),
    ),
    Mutation(
        name="last_entries_are_not_copied",
        rule="5, step 4c",
        defects=(),
        invariants=("R8",),
        description="the last entry of each stretch is not copied",
        apply=lambda: edited(
            _Runs,
            "__next__",
            ("end = min(last, first", "end = min(max(first, last - 1), first"),
            ("if end == last:", "if end >= last - 1:"),
        ),
    ),
    Mutation(
        name="refused_copies_count",
        rule="5, step 4c",
        defects=("R8",),
        invariants=("R8",),
        description="a copy that a bookie refused counts as made",
        apply=lambda: edited(Copier, "_write", ("    if failures:\n", "    if False:\n")),
    ),
    Mutation(
        name="items_deleted_whatever_they_say_by_now",
        rule="2.1",
        defects=("A1",),
        invariants=("R4",),
        description="an item is deleted although somebody has added to it since it was read",
        apply=lambda: edited(
            WorkItems,
            "delete",
            (
                "item.ledger_id), version=item.version)",
                "item.ledger_id), version=None)",
            ),
        ),
    ),
    Mutation(
        name="copies_by_ordinary_adds",
        rule="5, step 4c",
        defects=("A2",),
        invariants=("R6", "R2"),
        description="copies are written without the recovery flag",
        apply=lambda: edited(Copier, "_add", ("flags=Flag.RECOVERY,", "flags=0,")),
    ),
    Mutation(
        name="open_tails_are_moved",
        rule="6.1",
        defects=("A3",),
        invariants=("I21", "R7", "C1"),
        description="the fragment that is written to is repaired like any other",
        apply=_open_tails_are_moved,
    ),
    Mutation(
        name="open_ledgers_are_never_closed",
        rule="6",
        defects=("A3", "A4"),
        invariants=("R6",),
        description="the grace for the writer of an open ledger never ends",
        apply=lambda: edited(
            LedgerRepair,
            "_attempt",
            (
                "if check.is_tail_in_trouble and may_close and self._may_fence(check, left):",
                "if False:",
            ),
        ),
    ),
    Mutation(
        name="rotten_replicas_are_copied",
        rule="5, step 4c",
        defects=("A13",),
        invariants=("I1", "I10", "C1"),
        description="what is read for a copy is not compared with its digest",
        apply=lambda: edited(
            Copier,
            "_good_part",
            (
                "payloads, error = copy.codec.open_payloads(block, first, last - first + 1)",
                "payloads, error = block.packets(), None",
            ),
        ),
    ),
    Mutation(
        name="locks_outlive_the_session",
        rule="5.4",
        defects=("R5",),
        invariants=("R5",),
        description="a worker whose session ended goes on, and changes the metadata all the same",
        apply=_locks_outlive_the_session,
    ),
    Mutation(
        name="a_silence_counts_as_whole",
        rule="5.5",
        defects=("R4",),
        invariants=("R4",),
        description="a bookie that does not answer counts as having everything",
        apply=lambda: edited(
            Checker,
            "_check_bookie",
            ("MemberState.UNKNOWN, (), str(error))", "MemberState.WHOLE)"),
        ),
    ),
    Mutation(
        name="empty_members_are_skipped",
        rule="5.3",
        defects=("A5",),
        invariants=("R6",),
        description="a lost member on which no entry falls stays in the ensemble",
        apply=lambda: edited(
            Checker,
            "_check_bookie",
            (
                "MemberCheck(index, bookie_id, state, tuple(ranges), reason)",
                "MemberCheck(\n"
                "index, bookie_id, state if ranges else MemberState.WHOLE, tuple(ranges))",
            ),
        ),
    ),
    Mutation(
        name="failed_items_are_tried_at_once",
        rule="5, step 6",
        defects=("A6", "A7"),
        invariants=(),
        description="a ledger that could not be repaired is tried again without a pause",
        apply=lambda: edited(
            PostponedItems,
            "_delay_s",
            ("    settings = self._settings\n", "    return 0.01\n    settings = self._settings\n"),
        ),
    ),
    Mutation(
        name="read_only_counts_as_lost",
        rule="3",
        defects=("A9",),
        invariants=(),
        description="the auditor looks at the writable bookies alone",
        apply=lambda: edited(
            AuditorTerm,
            "_load_alone",
            ('} - {"readonly"}', '} - {"readonly"} - {*await self._names("available/readonly")}'),
        ),
    ),
    Mutation(
        name="bookies_of_the_gap_are_forgotten",
        rule="3, baseline",
        defects=("A10",),
        invariants=("R6",),
        description="an auditor knows of no bookie that died before its term",
        apply=lambda: edited(
            LostBookies,
            "_update",
            ("(self._cookies | self._seen) - self._registered", "self._seen - self._registered"),
        ),
    ),
    Mutation(
        name="mass_losses_are_believed",
        rule="3.2",
        defects=("A11",),
        invariants=(),
        description="however many bookies vanish at once, they are lost",
        apply=lambda: edited(
            LostBookies,
            "_is_suspicious",
            ("    whole = len(", "    return False\n    whole = len("),
        ),
    ),
    Mutation(
        name="items_taken_without_a_bound",
        rule="A12",
        defects=("A12",),
        invariants=(),
        description="work items are taken as fast as they can be",
        apply=lambda: edited(
            Worker,
            "_start",
            ("wait_s = self._pace.take(1, self._clock.monotonic_s())", "wait_s = 0.0"),
        ),
    ),
    Mutation(
        name="deleted_ledgers_are_tried_again",
        rule="5, step 2",
        defects=("A14",),
        invariants=("R6",),
        description="the item of a ledger that is gone counts as a failure",
        apply=lambda: edited(
            LedgerRepair,
            "repair",
            (
                "return Repaired(RepairState.DELETED)",
                'return Repaired(RepairState.FAILED, "it is gone", "NoSuchLedgerError")',
            ),
        ),
    ),
    Mutation(
        name="items_go_whatever_the_repair_left",
        rule="5, step 6",
        defects=("A6", "A7"),
        description="an item goes after one attempt, whether or not anything was repaired",
        apply=lambda: edited(
            Worker,
            "_work_locked",
            ("if repaired.state in (RepairState.WHOLE, RepairState.DELETED):", "if True:"),
        ),
    ),
    Mutation(
        name="holes_count_as_whole",
        rule="5.5",
        defects=("A6",),
        invariants=("R2", "R4"),
        description="a bookie that lists less than belongs on it counts as having everything",
        apply=lambda: edited(
            Checker,
            "_check_bookie",
            (
                "MemberState.LACKS if lacking else MemberState.WHOLE",
                "MemberState.WHOLE",
            ),
        ),
    ),
]
