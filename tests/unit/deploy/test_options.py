import socket

import pytest
import typer
from pydantic import BaseModel
from structlog.testing import capture_logs

from magnetar.deploy.cli import app
from magnetar.deploy.errors import SettingsError
from magnetar.deploy.options import (
    SERVERS,
    Listen,
    Quorum,
    Sources,
    default_quorum,
    parse_quorum,
    sources_of,
)


def test_a_quorum_is_three_numbers_that_fit() -> None:
    assert parse_quorum("5,3,2") == Quorum(5, 3, 2)
    assert str(parse_quorum("3, 3, 2")) == "3,3,2"


@pytest.mark.parametrize(
    "text", ["", "3", "3,3", "3,3,2,1", "a,b,c", "2,3,2", "3,2,3", "1,1,0", "-1,-1,-1"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--quorum"):
        parse_quorum(text)


@pytest.mark.parametrize(
    ("bookies", "quorum"), [(1, "1,1,1"), (2, "2,2,2"), (3, "3,3,2"), (5, "3,3,2")]
)
def test_the_default_survives_the_loss_of_one_bookie_where_there_are_two(
    bookies: int, quorum: str
) -> None:
    assert str(default_quorum(bookies)) == quorum


def test_every_command_with_a_settings_file_has_a_table_in_it() -> None:
    command = typer.main.get_command(app)
    context = typer.Context(command)
    found = {
        name
        for name, each in command.commands.items()  # type: ignore[attr-defined]  # a group
        if any(parameter.name == "config" for parameter in each.get_params(context))
    }
    assert found == SERVERS


class Settings(BaseModel):
    dog_name: str = ""


def test_misspelt_variables_of_a_component_are_told_of_once() -> None:
    sources = Sources(
        environment={
            "MAGNETAR_BROKER_DOG_NAME": "Rex",
            "MAGNETAR_BROKER_DOG_NAM": "Rex",
            "MAGNETAR_BROKER_PORT": "1",
            "MAGNETAR_BOOKIE_X": "another server's",
            "PATH": "/bin",
        },
        option_variables=frozenset({"MAGNETAR_BROKER_PORT"}),
    )
    with capture_logs() as logs:
        assert sources.component(Settings, "broker").dog_name == "Rex"
        sources.component(Settings, "broker")
    assert [(each["variable"], each["similar"]) for each in logs] == [
        ("MAGNETAR_BROKER_DOG_NAM", ["MAGNETAR_BROKER_DOG_NAME"])
    ]


def test_misspelt_variables_of_a_command_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    group = typer.main.get_command(app)
    root = typer.Context(group)
    monkeypatch.setenv("MAGNETAR_STANDALONE_PRT", "1")
    monkeypatch.setenv("MAGNETAR_STANDALONE_PORT", "1")
    command = group.commands["standalone"]  # type: ignore[attr-defined]  # a group
    with capture_logs() as logs:
        sources_of(typer.Context(command, parent=root))
    assert [(each["variable"], each["similar"]) for each in logs] == [
        ("MAGNETAR_STANDALONE_PRT", ["MAGNETAR_STANDALONE_PORT"])
    ]


def test_clients_are_told_an_address_that_they_can_connect_to() -> None:
    assert Listen("127.0.0.1").url("pulsar", 6650) == "pulsar://127.0.0.1:6650"
    assert Listen("0.0.0.0", "broker.example").url("http", 80) == "http://broker.example:80"
    assert Listen("0.0.0.0").told_host == socket.gethostname()
    assert Listen("::1").url("pulsar", 1) == "pulsar://[::1]:1"
