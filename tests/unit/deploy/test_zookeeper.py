import tomllib
from pathlib import Path

import pytest

from magnetar.deploy.errors import MissingProgramError, SettingsError
from magnetar.deploy.zookeeper import (
    EnsembleMember,
    ZooKeeperServer,
    find_programs,
    parse_members,
)
from tests.processes import ROOT


def test_members_are_host_and_three_ports() -> None:
    assert parse_members("a:2888:3888:2181, ::1:1:2:3,[::1]:1:2:3") == (
        EnsembleMember("a", 2888, 3888, 2181),
        EnsembleMember("::1", 1, 2, 3),
        EnsembleMember("::1", 1, 2, 3),
    )


@pytest.mark.parametrize("text", ["", "a", "a:1:2", "a:1:2:3,", "a:1:2:x", "a:1:2:70000", ":1:2:3"])
def test_other_members_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"bad --servers entry .*127.0.0.1:2888:3888:2181"):
        parse_members(text)


def test_a_server_must_be_one_of_its_ensemble() -> None:
    members = parse_members("a:1:2:3,b:1:2:3,c:1:2:3")
    with pytest.raises(SettingsError, match="--server-id 4 is not among the 3"):
        ZooKeeperServer(data=Path("/data"), host="", port=0, server_id=4, members=members)


def test_what_is_missing_is_named_at_once_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("magnetar.deploy.zookeeper.find_spec", lambda _: None)
    with pytest.raises(MissingProgramError) as caught:
        find_programs()
    told = str(caught.value)
    assert "apt-get install openjdk-17-jre-headless" in told
    assert "`make cluster`" in told
    assert "pip install 'pyspark>=4.1,<5'" in told
    assert "--zookeeper zk://" in told


def test_nothing_is_missing_where_both_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = tmp_path / "java"
    launcher.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java, jars = find_programs()
    assert java == str(launcher)
    assert {path.suffix for path in jars} == {".jar"}


def test_the_extra_brings_the_jars_that_the_message_names() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert "pyspark>=4.1,<5" in extras["zookeeper"]
