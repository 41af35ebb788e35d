"""The rules of compaction and of giving logs up (storage sheet, section 10)."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.bookie.engine.maintenance import LogMaintenance
from magnetar.bookie.gc import compactor, finish_compactions
from magnetar.bookie.gc.compaction_phases import STEPS, Step
from magnetar.bookie.gc.compactor import Compactor
from magnetar.bookie.gc.log_copier import LogCopier
from magnetar.bookie.indexes.rocks_index import RocksIndex
from tests.simulation.mutations.mutation import Mutation, edited, replaced


@contextmanager
def _sources_first() -> Iterator[None]:
    def order(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        if Step.MOVE_RUNS not in steps:
            return steps
        rest: list[Step] = [step for step in steps if step is not Step.REMOVE_SOURCES]
        rest.insert(rest.index(Step.MOVE_RUNS), Step.REMOVE_SOURCES)
        return tuple(rest)

    wrong = {files: order(steps) for files, steps in STEPS.items()}
    with replaced(compactor, "STEPS", wrong), replaced(finish_compactions, "STEPS", wrong):
        yield


@contextmanager
def _unnamed() -> Iterator[None]:
    """The copy gets its name behind the moves."""

    def order(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        if Step.NAME_LOG not in steps:
            return steps
        rest: list[Step] = [step for step in steps if step is not Step.NAME_LOG]
        rest.insert(rest.index(Step.REMOVE_SOURCES) + 1, Step.NAME_LOG)
        return tuple(rest)

    wrong = {files: order(steps) for files, steps in STEPS.items()}
    with replaced(compactor, "STEPS", wrong), replaced(finish_compactions, "STEPS", wrong):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="sources_go_before_the_index_has_moved",
        rule="10.3",
        defects=("B9",),
        description="compaction removes the old log before the index points to the new one",
        apply=_sources_first,
    ),
    Mutation(
        name="copy_is_not_synced",
        rule="10.3",
        defects=("B9",),
        description="compaction moves the index to a copy whose bytes were never synced",
        apply=lambda: edited(LogCopier, "finish", ("self._file.datasync()", "pass")),
    ),
    Mutation(
        name="copy_is_named_last",
        rule="10.4 (phases)",
        defects=("B9",),
        description="the copy gets its name when the index points there already",
        apply=_unnamed,
    ),
    Mutation(
        name="moves_are_not_compared",
        rule="10.4",
        defects=("B8",),
        description="compaction moves whatever record is there by now, newer copies included",
        apply=lambda: edited(
            RocksIndex, "_write_moves", ("if record.location != move.source:", "if False:")
        ),
    ),
    Mutation(
        name="log_in_use_is_collected",
        rule="10.5",
        defects=("B8",),
        description="the log that flushes write to is compacted and removed like the others",
        apply=lambda: edited(
            LogMaintenance,
            "_finished_logs",
            ("active = self._writer.active_log_id", "active = None"),
        ),
    ),
    Mutation(
        name="compaction_without_a_record",
        rule="10.4 (phases)",
        defects=("B9",),
        description="no record says what a copy replaces; a start removes it as garbage",
        apply=lambda: edited(
            Compactor,
            "_replace",
            (
                "await self._run(lambda: self._disk.replace_file(path, encode_record(record)))",
                "pass",
            ),
        ),
    ),
    Mutation(
        name="records_reach_beyond_their_copy",
        rule="C3",
        defects=("B9",),
        description="index records are moved as they are, with ids that the copy does not have",
        apply=lambda: edited(
            RocksIndex,
            "_write_moves",
            (
                "first, last = max(record.first, move.first), min(record.last, move.last)",
                "first, last = record.first, record.last",
            ),
        ),
    ),
    Mutation(
        name="empty_records_stay",
        rule="C3",
        defects=("B9",),
        description="index records that hold no entry go on pointing to a log that is removed",
        apply=lambda: edited(
            LogCopier,
            "_copy_run",
            ("self._move(head, head.first, head.last, location, None)", "pass"),
        ),
    ),
]
