"""What is done about a compaction that a crash cut, for every set of files that it can leave."""

from itertools import product

from magnetar.bookie.gc.compaction_phases import (
    FINISH,
    STEPS,
    Files,
    Step,
    copy_name,
    record_name,
    unfinished,
)


def test_every_set_of_files_has_its_steps() -> None:
    possible = {Files(*each) for each in product((False, True), repeat=3)}
    assert possible - STEPS.keys() == {Files(copy=False, record=False, log=False)}


def test_without_a_record_nothing_but_the_copy_is_touched() -> None:
    for files, steps in STEPS.items():
        if not files.record:
            assert set(steps) <= {Step.REMOVE_COPY}


def test_sources_go_only_after_the_index_was_moved_and_the_record_last() -> None:
    """Rule 10.3."""
    for steps in [*STEPS.values(), FINISH]:
        if Step.REMOVE_SOURCES in steps:
            assert steps.index(Step.MOVE_RUNS) < steps.index(Step.REMOVE_SOURCES)
        if Step.REMOVE_RECORD in steps:
            assert steps[-1] is Step.REMOVE_RECORD


def test_the_index_is_moved_only_to_a_log_that_has_its_name() -> None:
    for files, steps in STEPS.items():
        if Step.MOVE_RUNS in steps:
            assert files.log or steps.index(Step.NAME_LOG) < steps.index(Step.MOVE_RUNS)


def test_each_step_repeated_from_any_point_ends_with_the_log_alone() -> None:
    """Carry the steps out on a set of names, cut after each, and begin anew."""
    for cut in range(len(FINISH) + 1):
        names = {"copy", "record", "source"}
        run(FINISH[:cut], names)
        files = Files("copy" in names, "record" in names, "log" in names)
        if files.copy or files.record:
            run(STEPS[files], names)
        assert names == {"log"}


def run(steps: tuple[Step, ...], names: set[str]) -> None:
    for step in steps:
        if step is Step.NAME_LOG:
            names.remove("copy")
            names.add("log")
        elif step is Step.REMOVE_COPY:
            names.discard("copy")
        elif step is Step.REMOVE_SOURCES:
            names.discard("source")
        elif step is Step.REMOVE_RECORD:
            names.discard("record")


def test_compactions_are_found_by_their_names() -> None:
    names = ["00000001.log", "00000002.log", copy_name(3), record_name(2), record_name(0x1F)]
    assert unfinished(names) == {
        2: Files(copy=False, record=True, log=True),
        3: Files(copy=True, record=False, log=False),
        0x1F: Files(copy=False, record=True, log=False),
    }


def test_foreign_names_are_no_compactions() -> None:
    names = ["x.log.compacting", "1.log.compacted", "0000000G.log.compacted", "00000001.compacted"]
    assert unfinished([*names, "0000000A.log.compacting", "00000001.log.compacted.tmp"]) == {}


def test_no_name_of_a_compaction_passes_for_an_entry_log() -> None:
    assert not copy_name(1).endswith(".log")
    assert not record_name(1).endswith(".log")
