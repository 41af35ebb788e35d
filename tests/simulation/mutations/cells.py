"""The rules of a cell of the metadata store: doubt, absence, and what an error says."""

from magnetar.ledger.metadata.cell import Cell
from tests.simulation.mutations.mutation import Mutation, edited

_STORY = "tests/simulation/test_cell.py::test_each_change_is_made_once_or_says_that_it_may_not_be"
_UNIT = "tests/unit/ledger/metadata/test_cell.py::"

MUTATIONS: list[Mutation] = [
    Mutation(
        name="unknown_changes_of_a_cell_taken_for_done",
        rule="2.3",
        defects=("D26",),
        description="a change of a cell whose outcome is unknown is taken for done",
        tests=(_STORY,),
        apply=lambda: edited(
            Cell,
            "change_async",
            (
                "doubts.append(_Try(before, new_data))",
                "return Changed(before, new, version, is_written=True)",
            ),
        ),
    ),
    Mutation(
        name="unknown_changes_of_a_cell_taken_for_conflicts",
        rule="2.3",
        defects=("D26",),
        description="a change of a cell that was made, its reply lost, is taken for another's",
        tests=(_STORY, f"{_UNIT}test_a_change_of_unknown_outcome_is_made_once"),
        apply=lambda: edited(Cell, "change_async", ("if doubt.data == data:", "if False:")),
    ),
    Mutation(
        name="cells_in_doubt_say_that_nothing_was_changed",
        rule="2.3",
        defects=("D26",),
        description="a store that goes away in doubt ends the change as if nothing had happened",
        tests=(_STORY, f"{_UNIT}test_a_store_that_goes_away_in_doubt_leaves_the_doubt"),
        apply=lambda: edited(
            Cell, "_look_after_doubt", ("raise self._unknown(error) from error", "raise")
        ),
    ),
    Mutation(
        name="cells_do_not_catch_up_in_doubt",
        rule="2.3",
        defects=("D26",),
        description="after an unknown outcome the value is read from a server that may be behind",
        tests=(f"{_UNIT}test_a_change_in_doubt_is_judged_by_a_store_that_has_caught_up",),
        apply=lambda: edited(Cell, "_look_after_doubt", ("await self._store.catch_up()", "pass")),
    ),
    Mutation(
        name="cells_take_absence_at_its_word",
        rule="2.3",
        defects=("D26",),
        description="a change concludes from the absence that a server told that is behind",
        tests=(f"{_UNIT}test_nothing_is_concluded_from_absence_before_the_store_has_caught_up",),
        apply=lambda: edited(Cell, "_look", ("if found is None and is_sure:", "if False:")),
    ),
]
