import json
import stat
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from magnetar.deploy import backup_tools
from magnetar.deploy.cli import WITH_CONTEXT, app
from magnetar.deploy.contexts import (
    CONTEXTS_MAX,
    FIELDS,
    Contexts,
    contexts_file,
    read_contexts,
    variables_of,
    write_contexts,
)
from magnetar.deploy.errors import SettingsError

PROD = {
    "url": "pulsar+ssl://prod:6651",
    "admin_url": "https://prod:8443",
    "metadata": "zk://zk:2181/",
    "token_file": "/secrets/prod",
}


def test_a_context_stands_in_for_variables_that_are_not_set() -> None:
    assert variables_of(PROD, {"MAGNETAR_URL": "pulsar://here"}) == {
        "MAGNETAR_ADMIN_URL": "https://prod:8443",
        "MAGNETAR_ADMIN_METADATA": "zk://zk:2181/",
        "MAGNETAR_LEDGER_METADATA": "zk://zk:2181/",
        "MAGNETAR_BACKUP_METADATA": "zk://zk:2181/",
        "MAGNETAR_PERF_LEDGER_METADATA": "zk://zk:2181/",
        "MAGNETAR_TOKEN": "file:///secrets/prod",
    }


def variables_read(command: object) -> set[str]:
    """The variables that the options of a command and its subcommands read."""
    if isinstance(command, TyperGroup):
        return set[str]().union(*map(variables_read, command.commands.values()))
    assert isinstance(command, TyperCommand)
    return {each.envvar for each in command.params if isinstance(each.envvar, str)}


def test_a_context_supplies_every_address_that_its_commands_read() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    supplied = {name for names in FIELDS.values() for name in names}
    for name in WITH_CONTEXT:
        assert variables_read(root.commands[name]) <= {*supplied, "MAGNETAR_CONFIG"}, name


@pytest.mark.parametrize("command", ["backup list", "restore backup-1"])
def test_a_backup_command_takes_the_metadata_of_its_context(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "contexts.json"
    contexts = Contexts()
    contexts.set("prod", PROD)
    write_contexts(path, contexts)
    asked: list[str] = []
    monkeypatch.setenv("MAGNETAR_CONTEXTS", str(path))
    for variables in FIELDS.values():
        for variable in variables:
            monkeypatch.setenv(variable, "")  # so that the test ends without what it sets
            monkeypatch.delenv(variable)
    monkeypatch.setattr(backup_tools, "run", lambda metadata, *others: asked.append(metadata))
    ended = CliRunner().invoke(app, ["--context", "prod", *command.split()])
    assert (ended.exit_code, asked) == (0, ["zk://zk:2181/"]), ended.output


def test_credentials_of_the_environment_are_not_mixed_with_those_of_a_context() -> None:
    context = {"tls_certificate": "/c", "tls_key": "/k", "token_file": "/t", "tls_trust": "/a"}
    assert variables_of(context, {"MAGNETAR_BASIC": "me:secret"}) == {"MAGNETAR_TLS_TRUST": "/a"}


def test_contexts_are_kept_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "new" / "contexts.json"
    assert read_contexts(path) == Contexts()
    contexts = Contexts()
    contexts.set("prod", PROD)
    contexts.set("dev", {"url": "pulsar://dev"})
    write_contexts(path, contexts)
    assert read_contexts(path) == contexts
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["contexts.json"]


def test_the_first_context_is_in_use_at_once_and_a_deleted_one_no_more() -> None:
    contexts = Contexts()
    contexts.set("prod", PROD)
    contexts.set("dev", {})
    assert contexts.current == "prod"
    contexts.delete("prod")
    assert contexts.current == ""
    with pytest.raises(SettingsError, match="known are dev"):
        contexts.named("prod")


def test_an_empty_text_removes_a_field_and_the_others_stay() -> None:
    contexts = Contexts()
    contexts.set("prod", PROD)
    contexts.set("prod", {"token_file": "", "url": "pulsar://other"})
    assert contexts.named("prod") == {
        "url": "pulsar://other",
        "admin_url": "https://prod:8443",
        "metadata": "zk://zk:2181/",
    }


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 101, "ä"])
def test_a_name_has_plain_characters(name: str) -> None:
    with pytest.raises(SettingsError, match="context name"):
        Contexts().set(name, {})


def test_there_is_a_bound_on_contexts() -> None:
    contexts = Contexts(known={f"c{number}": {} for number in range(CONTEXTS_MAX)})
    contexts.set("c0", {"url": "pulsar://a"})
    with pytest.raises(SettingsError, match="already"):
        contexts.set("more", {})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"current": 1, "contexts": {}}', '{"current": "", "contexts": [1]}']
)
def test_a_file_of_something_else_is_told_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "contexts.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=str(path)):
        read_contexts(path)


def test_the_file_is_where_the_environment_says() -> None:
    assert contexts_file({"MAGNETAR_CONTEXTS": "/c", "HOME": "/h"}) == Path("/c")
    assert contexts_file({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path(
        "/x/magnetar/contexts.json"
    )
    assert contexts_file({"HOME": "/h"}) == Path("/h/.config/magnetar/contexts.json")


def test_unknown_fields_of_newer_releases_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    path.write_text(json.dumps({"current": "a", "contexts": {"a": {"later": "x"}}}))
    contexts = read_contexts(path)
    contexts.set("a", {"url": "pulsar://a"})
    write_contexts(path, contexts)
    assert read_contexts(path).named("a") == {"later": "x", "url": "pulsar://a"}
    assert variables_of(contexts.named("a"), {}) == {"MAGNETAR_URL": "pulsar://a"}
