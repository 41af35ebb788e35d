from pathlib import Path

import pytest

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.zookeeper import EnsembleMember, ZooKeeperServer, parse_members


def test_members_are_host_and_three_ports() -> None:
    assert parse_members("a:2888:3888:2181, ::1:1:2:3") == (
        EnsembleMember("a", 2888, 3888, 2181),
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
