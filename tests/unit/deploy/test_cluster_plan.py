from pathlib import Path

from magnetar.deploy.cluster_plan import (
    PORTS,
    ClusterPlan,
    ClusterShape,
    Kind,
    environment_of,
    plan_cluster,
)
from magnetar.deploy.options import Quorum
from magnetar.deploy.zookeeper import parse_members
from magnetar.ledger.metadata.url import parse_zookeeper_url

DIRECTORY = Path("/data/cluster")


def plan(shape: ClusterShape, zookeeper_url: str = "", *, host: str = "127.0.0.1") -> ClusterPlan:
    ports: dict[str, dict[str, int]] = {}
    number = 1000
    for name, kind in shape.names():
        ports[name] = {}
        for port in PORTS[kind]:
            ports[name][port] = number = number + 1
    return plan_cluster(
        DIRECTORY,
        shape,
        quorum=Quorum(3, 3, 2),
        ports=ports,
        hosts={name: host for name, _ in shape.names()},
        zookeeper_url=zookeeper_url,
    )


def test_whoever_needs_another_comes_after_it() -> None:
    made = plan(ClusterShape(zookeepers=1, bookies=2, brokers=1, autorecovery=1))
    names = [server.name for server in made.servers]
    assert names == ["zookeeper-1", "bookie-1", "bookie-2", "broker-1", "autorecovery-1"]


def test_a_bookie_keeps_its_name_and_directory_whatever_its_port() -> None:
    made = plan(ClusterShape(zookeepers=1, bookies=1, brokers=0, autorecovery=0))
    (bookie,) = made.of_kind(Kind.BOOKIE)
    arguments = bookie.arguments
    assert arguments[arguments.index("--id") + 1] == "bookie-1"
    assert arguments[arguments.index("--data") + 1] == "/data/cluster/bookie-1"


def test_an_ensemble_is_named_in_the_metadata_url_and_to_each_of_its_servers() -> None:
    made = plan(ClusterShape(zookeepers=3, bookies=1, brokers=0, autorecovery=0))
    assert made.metadata_url == "zk://127.0.0.1:1001,127.0.0.1:1004,127.0.0.1:1007/magnetar"
    servers = "127.0.0.1:1002:1003:1001,127.0.0.1:1005:1006:1004,127.0.0.1:1008:1009:1007"
    for number, server in enumerate(made.of_kind(Kind.ZOOKEEPER), start=1):
        assert server.arguments[-4:] == ("--server-id", str(number), "--servers", servers)


def test_ipv6_addresses_are_in_brackets_before_a_port() -> None:
    made = plan(ClusterShape(zookeepers=2, bookies=1, brokers=0, autorecovery=0), host="::1")
    assert made.metadata_url == "zk://[::1]:1001,[::1]:1004/magnetar"
    parse_zookeeper_url(made.metadata_url)
    servers = made.of_kind(Kind.ZOOKEEPER)[0].arguments[-1]
    assert servers == "[::1]:1002:1003:1001,[::1]:1005:1006:1004"
    assert ",".join(map(str, parse_members(servers))) == servers


def test_an_ensemble_that_is_there_is_used_as_it_is() -> None:
    shape = ClusterShape(zookeepers=0, bookies=1, brokers=1, autorecovery=0)
    made = plan(shape, "zk://elsewhere:2181/path")
    assert made.metadata_url == "zk://elsewhere:2181/path"
    assert all("zk://elsewhere:2181/path" in server.arguments for server in made.servers)


def test_brokers_have_names_of_their_own() -> None:
    made = plan(ClusterShape(zookeepers=1, bookies=1, brokers=2, autorecovery=0))
    names = [environment_of(each)["MAGNETAR_BROKER_NAME"] for each in made.of_kind(Kind.BROKER)]
    assert names == ["broker-1", "broker-2"]
