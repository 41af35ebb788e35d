"""The command of the simulator of tiered storage."""

import pytest

from tests.simulation.offloading import __main__ as command


def test_a_search_says_that_all_runs_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--runs", "2", "--start", "7", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 runs; all passed"


def test_one_seed_says_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "7", "--story"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "passed"


def test_a_run_that_raises_is_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(seed: int) -> None:
        raise RuntimeError(f"run {seed} broke")

    monkeypatch.setattr(command, "execute", fails)
    assert command.problems_of(3) == (3, ["RuntimeError: run 3 broke"])
