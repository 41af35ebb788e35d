from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from magnetar.deploy.config import command_defaults, component_settings, read_config_file
from magnetar.deploy.errors import SettingsError


class ExampleSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = Field(default=1, ge=0)
    names: tuple[str, ...] = ()


def write(folder: Path, text: str) -> Path:
    path = folder / "magnetar.toml"
    path.write_text(text)
    return path


def test_command_line_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    tables = read_config_file(write(tmp_path, "[bookie]\nport = 2\n"))
    environment = {"MAGNETAR_BOOKIE_PORT": "3"}

    def port(**sources: dict[str, object]) -> int:
        return component_settings(
            ExampleSettings,
            "bookie",
            tables=sources.get("tables", {}),  # type: ignore[arg-type]  # tables are mappings
            environment=sources.get("environment", {}),  # type: ignore[arg-type]  # of str to str
            options=sources.get("options"),
        ).port

    table: dict[str, object] = dict(tables)
    variables: dict[str, object] = dict(environment)
    assert port() == 1
    assert port(tables=table) == 2
    assert port(tables=table, environment=variables) == 3
    assert port(tables=table, environment=variables, options={"port": 4}) == 4


def test_a_list_in_the_environment_is_json() -> None:
    settings = component_settings(
        ExampleSettings, "bookie", tables={}, environment={"MAGNETAR_BOOKIE_NAMES": '["a", "b"]'}
    )
    assert settings.names == ("a", "b")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"port": -1}, "bookie.port"),
        ({"prot": 1}, "no such setting: bookie.prot; did you mean port?"),
        ({"port": "x"}, "bookie.port"),
    ],
)
def test_a_bad_setting_is_one_line_that_names_it(table: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        component_settings(ExampleSettings, "bookie", tables={"bookie": table}, environment={})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_config_file(tmp_path / "absent.toml")


@pytest.mark.parametrize(("text", "expected"), [("port = 1", "outside of a table"), ("[", "TOML")])
def test_a_file_of_the_wrong_shape_says_so(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        read_config_file(write(tmp_path, text))


def test_keys_may_be_written_like_options() -> None:
    assert command_defaults({"standalone": {"http-port": 1}}, "standalone") == {"http_port": 1}
