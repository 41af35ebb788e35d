"""Help pages say everything in 80 columns, and no type of what takes no value."""

from typing import Annotated

import pytest
import typer

from magnetar.deploy.cli import app as magnetar
from magnetar.deploy.help_layout import command_of


def page(app: typer.Typer, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        command_of(app)(line.split(), prog_name="magnetar")
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)


@pytest.mark.parametrize("line", ["standalone --help", "bookie --help", "perf consume --help"])
def test_names_of_variables_are_whole(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = page(magnetar, line, capsys)
    assert "[env var" not in text
    assert "MAGNETAR_LOG_LEVEL (--log-level)" in " ".join(text.split()) or "perf" in line
    words = [word for word in text.split() if word.startswith("MAGNETAR_")]
    assert words
    assert not any(word.endswith("…") for word in words)


@pytest.mark.parametrize(
    "line", ["--help", "standalone --help", "admin subscriptions disconnect --help"]
)
def test_a_flag_has_no_type(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = page(magnetar, line, capsys)
    assert "--help" in text
    assert "<bool>" not in text


def test_what_a_page_ends_with_stays_before_its_variables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer()

    @app.command(epilog="The end.")
    def run(name: Annotated[str, typer.Option(envvar="SOME_NAME")] = "") -> None:
        raise AssertionError(name)

    text = " ".join(page(app, "--help", capsys).split())
    assert "The end. Options may also be set in the environment: SOME_NAME (--name)." in text
