"""Wrong or hostile input: refused with one line that says what is wrong and where.

Nothing is deleted, and nothing is repaired by guess: each test compares what lies in ZooKeeper
before and after, node by node.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.integration.broker.wire_client import WireClient
from tests.integration.deploy.commands import Ended, magnetar
from tests.processes import free_ports
from tests.real_cluster import RealCluster
from tests.waiting import wait_until
from tests.zookeeper_fixture import ZooKeeper

IMPATIENT = {
    "MAGNETAR_METADATA_CONNECT_TIMEOUT_S": "1",
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": "2000",
}
WAIT_S = 20.0

CORRUPT = b'{"format": 1, "ledgers": '
FUTURE = b'{"format": 2, "what": "nobody knows yet"}'
WRONG = b"[]"
VALUES = pytest.mark.parametrize(
    "value", [CORRUPT, FUTURE, WRONG, b"\xff\xfe\x00"], ids=["cut", "future", "another", "binary"]
)


class Node(NamedTuple):
    """A node as it lies there."""

    value: bytes
    version: int


class Tree:
    """The nodes below a path, seen past all of our own code."""

    def __init__(self, hosts: str, root: str) -> None:
        self.root = root
        self._client = KazooClient(hosts=hosts)
        self._client.start()

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def dump(self) -> dict[str, Node]:
        """All persistent nodes below the root, by their path below it."""
        found: dict[str, Node] = {}
        self._walk(self.root, found)
        return {path.removeprefix(self.root): node for path, node in found.items()}

    def _walk(self, path: str, found: dict[str, Node]) -> None:
        try:
            value, stat = self._client.get(path)
            children = self._client.get_children(path)
        except NoNodeError:
            return
        if not stat.ephemeralOwner:
            found[path] = Node(value, stat.version)
        for child in children:
            self._walk(f"{path}/{child}", found)

    def get(self, path: str) -> Node | None:
        try:
            value, stat = self._client.get(self.root + path)
        except NoNodeError:
            return None
        return Node(value, stat.version)

    def put(self, path: str, value: bytes) -> Node:
        """Make the node, or overwrite what it holds."""
        while self._client.exists(self.root + path) is None:
            try:
                self._client.create(self.root + path, value, makepath=True)
            except NoNodeError:
                continue  # Workers remove the empty parents of the item before.
            return Node(value, 0)
        return Node(value, self._client.set(self.root + path, value).version)

    def remove(self, path: str) -> None:
        self._client.delete(self.root + path)

    def remove_item(self, path: str, *, root: str) -> None:
        """Remove a node and its empty parents below a root: workers would, during later tests."""
        while path != root:
            try:
                self._client.delete(self.root + path)
            except NotEmptyError:
                return
            except NoNodeError:
                pass  # a worker was faster
            path = path.rpartition("/")[0]

    def votes(self, path: str) -> list[str]:
        """The votes of an election: persistent nodes are none."""
        found = []
        for name in self.children(path):
            stat = self._client.exists(f"{self.root}{path}/{name}")
            if stat is not None and stat.ephemeralOwner:
                found.append(name)
        return found

    def children(self, path: str) -> list[str]:
        try:
            found: list[str] = self._client.get_children(self.root + path)
        except NoNodeError:
            return []
        return found


def assert_unchanged(before: Mapping[str, Node], after: Mapping[str, Node]) -> None:
    """Every node that was there still is, with the same value. Only what says who owns a log may be
    new: a takeover may come as far as that before it meets what it cannot read."""
    assert before.keys() - after.keys() == set(), "nodes were deleted"
    changed = {
        path: (node, after[path])
        for path, node in before.items()
        if _comparable(node.value) != _comparable(after[path].value)
    }
    assert changed == {}


def _comparable(value: bytes) -> object:
    try:
        fields = json.loads(value)
    except ValueError:
        return value
    if isinstance(fields, dict):
        fields.pop("owner", None)
    return fields


# One cluster for all tests that need one; each has a namespace of its own.

NAMESPACES = [f"hostile/n{number}" for number in range(40)]


@pytest.fixture(scope="module")
def cluster(
    zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    with RealCluster(
        tmp_path_factory.mktemp("hostile") / "cluster",
        bookies=1,
        brokers=1,
        autorecovery=1,
        quorum="1,1,1",
        zookeeper_url=f"{zookeeper.url}/hostile",
        environment={
            "MAGNETAR_BROKER_NAMESPACES": json.dumps(NAMESPACES),
            "MAGNETAR_BROKER_TOPIC_LOAD_TIMEOUT_MS": "2000",
            # Nothing is written or deleted in the background while tests compare what is there.
            "MAGNETAR_AUDITOR_FIRST_CHECK_DELAY_S": "86400",
            "MAGNETAR_BROKER_INACTIVE_TOPIC_CHECK_INTERVAL_S": "0",
        },
    ) as started:
        yield started


@pytest.fixture(scope="module")
def tree(cluster: RealCluster, zookeeper: ZooKeeper) -> Iterator[Tree]:
    seen = Tree(f"127.0.0.1:{zookeeper.port}", "/hostile")
    yield seen
    seen.close()


_namespaces = iter(NAMESPACES)


@pytest.fixture
def namespace() -> str:
    return next(_namespaces)


def ask_to_produce(cluster: RealCluster, topic: str) -> BaseCommand:
    """Look the topic up, and open a producer; the first error, or the success."""

    async def ask() -> BaseCommand:
        client = await WireClient.open(cluster.server("broker-1").ports["native"])
        client.send(
            BaseCommand.LOOKUP,
            lookupTopic=pb.CommandLookupTopic(topic=topic, request_id=client.request_id()),
        )
        answer = await client.next(BaseCommand.LOOKUP_RESPONSE)
        if answer.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Connect:
            answer = await client.produce(topic)
        await client.close()
        return answer

    return asyncio.run(ask())


def wait_served(cluster: RealCluster, topic: str) -> None:
    """A topic that took too long to load is asked for again: the disk may have stood still."""

    def is_served() -> bool:
        return ask_to_produce(cluster, topic).type == BaseCommand.PRODUCER_SUCCESS

    wait_until(is_served, f"{topic} is served")


def wait_refused(cluster: RealCluster, topic: str, *paths: str) -> None:
    """The topic is not served, and one of the paths is named; asked again likewise."""

    def is_named() -> bool:
        message = message_of(ask_to_produce(cluster, topic))
        return any(path in message for path in paths)

    wait_until(is_named, f"{topic} is refused for one of {paths}")


def publish(cluster: RealCluster, topic: str) -> None:
    wait_served(cluster, topic)

    async def run() -> None:
        client = await WireClient.open(cluster.server("broker-1").ports["native"])
        answer = await client.produce(topic)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        await client.publish_ok(0, b"kept")
        await client.close()

    asyncio.run(run())


def message_of(answer: BaseCommand) -> str:
    """What the broker says is wrong."""
    if answer.type == BaseCommand.LOOKUP_RESPONSE:
        return str(answer.lookupTopicResponse.message)
    assert answer.type == BaseCommand.ERROR, f"no error but {answer}"
    return str(answer.error.message)


def wait_for_line(cluster: RealCluster, name: str, *words: str, since: int = 0) -> str:
    """A line of the server's log that has all the words, behind its first `since` characters."""
    found: list[str] = []

    def is_said() -> bool:
        lines = cluster.log_text(name)[since:].splitlines()
        found.extend(line for line in lines if all(word in line for word in words))
        return bool(found)

    wait_until(is_said, f"{name} says {words}", within_s=WAIT_S)
    return found[0]


def one_line(ended: Ended, status: int, *words: str) -> str:
    """The line by which a process ended."""
    lines = ended.messages()
    assert (ended.status, len(lines)) == (status, 1), ended.stderr
    for word in words:
        assert word in lines[0]
    return lines[0]


def bookie_command(
    url: str, data: Path, name: str, environment: Mapping[str, str] | None = None
) -> Ended:
    return magnetar(
        *("bookie", "--metadata", url, "--data", str(data), "--id", name, "--port", "0"),
        environment=environment,
    )


def broker_command(
    url: str,
    name: str = "another",
    *,
    register_timeout_ms: int = 1000,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a broker that tries to register until its time is over."""
    return magnetar(
        *("broker", "--metadata", url, "--port", "0", "--http-port", "0"),
        environment={
            "MAGNETAR_BROKER_NAME": name,
            "MAGNETAR_BROKER_REGISTER_TIMEOUT_MS": str(register_timeout_ms),
            **(environment or {}),
        },
    )


# Two clusters, and wrong addresses


def test_a_bookie_of_a_second_cluster_on_the_same_path_is_refused(
    cluster: RealCluster, tree: Tree, tmp_path: Path
) -> None:
    before = tree.dump()
    line = one_line(bookie_command(cluster.metadata_url, tmp_path / "b", "bookie-1"), 5)
    assert "bookie-1" in line
    assert_unchanged(before, tree.dump())


def test_a_broker_of_a_second_cluster_with_a_name_that_is_taken_is_refused(
    cluster: RealCluster, tree: Tree
) -> None:
    before = tree.dump()
    mine = tree.get("/loadbalance/brokers/broker-1")
    assert mine is not None
    ended = broker_command(cluster.metadata_url, "broker-1")
    if "is taken" not in "".join(ended.messages()):  # the store stood still for all of that time
        ended = broker_command(cluster.metadata_url, "broker-1", register_timeout_ms=15_000)
    line = one_line(ended, 5, "broker-1", "is taken")
    assert cluster.url("broker-1") in line
    still = tree.get("/loadbalance/brokers/broker-1")
    assert still is not None
    assert json.loads(still.value)["session_token"] == json.loads(mine.value)["session_token"]
    assert_unchanged(before, tree.dump())


def test_a_bookie_with_another_clusters_cookie_is_refused(
    cluster: RealCluster, zookeeper: ZooKeeper, tree: Tree, tmp_path: Path
) -> None:
    with RealCluster(
        tmp_path / "other", bookies=1, brokers=0, zookeeper_url=f"{zookeeper.url}/hostile-other"
    ) as other:
        assert other.terminate("bookie-1") == 0
        data = other.server("bookie-1").data
    assert data is not None
    before, files = tree.dump(), contents(data)
    line = one_line(bookie_command(cluster.metadata_url, data, "bookie-9"), 5)
    assert str(data) in line
    assert_unchanged(before, tree.dump())
    assert contents(data) == files


def contents(directory: Path) -> dict[str, bytes]:
    """All files but the lock and the mark of a run."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("lock", "running")
    }


def test_a_metadata_url_where_nobody_answers_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"zk://127.0.0.1:{port}/magnetar"
    one_line(bookie_command(url, tmp_path / "b", "bookie-1", IMPATIENT), 6, url)
    one_line(broker_command(url, environment=IMPATIENT), 6, url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:2181/", "zk://:2181/", "zk://127.0.0.1:x/", "zk"]
)
def test_what_is_no_metadata_url_is_refused(tmp_path: Path, url: str) -> None:
    one_line(bookie_command(url, tmp_path / "b", "bookie-1"), 2, "zk://host:port", url)
    one_line(broker_command(url), 2, "zk://host:port", url)


def test_a_broker_on_a_path_without_a_cluster_says_so_and_makes_none(
    zookeeper: ZooKeeper, tree: Tree
) -> None:
    url = f"{zookeeper.url}/hostile-typo"
    one_line(broker_command(url), 2, url, "holds no cluster")
    empty = Tree(f"127.0.0.1:{zookeeper.port}", "/hostile-typo")
    try:
        assert set(empty.dump()) <= {""}
    finally:
        empty.close()


# Values that cannot be read


def test_a_bookie_does_not_start_on_a_corrupt_cluster_id_or_cookie(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    url = f"{zookeeper.url}/hostile-start"
    with RealCluster(tmp_path / "cluster", bookies=1, brokers=0, zookeeper_url=url) as cluster:
        assert cluster.terminate("bookie-1") == 0
        data = cluster.server("bookie-1").data
    assert data is not None
    tree = Tree(f"127.0.0.1:{zookeeper.port}", "/hostile-start")
    try:
        for path, status, where in (
            ("/ledgers/INSTANCEID", 10, "/ledgers/INSTANCEID"),
            ("/ledgers/cookies/bookie-1", 5, "the metadata store (cookie of bookie bookie-1)"),
        ):
            good = tree.get(path)
            assert good is not None
            for value in (CORRUPT, FUTURE):
                tree.put(path, value)
                before, files = tree.dump(), contents(data)
                one_line(bookie_command(url, data, "bookie-1"), status, where)
                assert tree.dump() == before
                assert contents(data) == files
            tree.put(path, good.value)
    finally:
        tree.close()


@VALUES
def test_a_topic_whose_ledger_list_cannot_be_read_is_not_served(
    cluster: RealCluster, tree: Tree, namespace: str, value: bytes
) -> None:
    path = f"/managed-ledgers/{namespace}/persistent/topic"
    tree.put(path, value)
    before = tree.dump()
    wait_refused(cluster, f"persistent://{namespace}/topic", path)
    assert_unchanged(before, tree.dump())
    tree.remove(path)


def test_a_topic_whose_ledger_cannot_be_read_is_not_served(
    cluster: RealCluster, tree: Tree, namespace: str
) -> None:
    topic = f"persistent://{namespace}/topic"
    publish(cluster, topic)
    listed = tree.get(f"/managed-ledgers/{namespace}/persistent/topic")
    assert listed is not None
    path = ledger_path(json.loads(listed.value)["ledgers"][-1]["id"])
    good = tree.get(path)
    assert good is not None
    cluster.kill("broker-1")
    tree.put(path, CORRUPT)
    before = tree.dump()
    cluster.start("broker-1")
    wait_refused(cluster, topic, path)
    assert_unchanged(before, tree.dump())
    tree.put(path, good.value)
    publish(cluster, topic)


def ledger_path(ledger_id: int) -> str:
    """Where the hierarchical manager keeps a ledger."""
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


@VALUES
def test_a_topic_with_a_cursor_that_cannot_be_read_is_not_served(
    cluster: RealCluster, tree: Tree, namespace: str, value: bytes
) -> None:
    path = f"/managed-ledgers/{namespace}/persistent/topic"
    tree.put(path, b'{"format":1,"ledgers":[],"properties":{}}')
    tree.put(f"{path}/subscription", value)
    before = tree.dump()
    wait_refused(cluster, f"persistent://{namespace}/topic", f"{path}/subscription")
    assert_unchanged(before, tree.dump())


@VALUES
def test_a_namespace_whose_bundles_cannot_be_read_is_not_served(
    cluster: RealCluster, tree: Tree, namespace: str, value: bytes
) -> None:
    path = f"/admin/local-policies/{namespace}"
    tree.put(path, value)
    before = tree.dump()
    wait_refused(cluster, f"persistent://{namespace}/topic", path)
    assert tree.dump() == before


@VALUES
def test_a_bundle_whose_lease_cannot_be_read_is_nobodys_until_an_operator_looks(
    cluster: RealCluster, tree: Tree, namespace: str, value: bytes
) -> None:
    boundaries = ("0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff")
    paths = [f"/namespace/{namespace}/{lower}_{upper}" for lower, upper in pairwise(boundaries)]
    for path in paths:
        tree.put(path, value)
    before = tree.dump()
    wait_refused(cluster, f"persistent://{namespace}/topic", *paths)
    after = tree.dump()
    assert_unchanged(before, after)
    assert all(after[path] == before[path] for path in paths)


@VALUES
def test_a_broker_record_that_cannot_be_read_is_reported_once_and_left(
    cluster: RealCluster, tree: Tree, namespace: str, value: bytes, request: pytest.FixtureRequest
) -> None:
    name = f"stranger-{request.node.callspec.id}"
    path = f"/loadbalance/brokers/{name}"
    node = tree.put(path, value)
    wait_for_line(cluster, "broker-1", "broker_registration_refused", path)
    # The others go on without it.
    wait_served(cluster, f"persistent://{namespace}/topic")
    assert tree.get(path) == node
    assert cluster.log_text("broker-1").count(path) == 1
    tree.remove(path)


@VALUES
def test_a_work_item_that_cannot_be_read_is_reported_and_left(
    cluster: RealCluster, tree: Tree, value: bytes
) -> None:
    root = "/ledgers/underreplication/ledgers"
    path = f"{root}/0000/0000/0000/7777/urL30583"
    node = tree.put(path, value)
    wait_for_line(cluster, "autorecovery-1", path)
    assert tree.get(path) == node
    assert cluster.process("autorecovery-1").returncode is None
    tree.remove_item(path, root=root)


@VALUES
def test_a_registered_bookie_that_cannot_be_read_is_reported_and_left(
    cluster: RealCluster, tree: Tree, value: bytes, request: pytest.FixtureRequest
) -> None:
    name = f"stranger-{request.node.callspec.id}"
    path = f"/ledgers/available/{name}"
    node = tree.put(path, value)
    wait_for_line(cluster, "broker-1", "bookie_registration_invalid", name)
    assert tree.get(path) == node
    tree.remove(path)


# Elections

ELECTIONS = pytest.mark.parametrize(
    ("path", "server"),
    [
        ("/loadbalance/leader", "broker-1"),
        ("/ledgers/underreplication/auditorelection", "autorecovery-1"),
    ],
    ids=["leader", "auditor"],
)


def the_vote(tree: Tree, path: str) -> str:
    """The vote of the only candidate."""
    wait_until(lambda: len(tree.votes(path)) == 1, f"one vote below {path}", within_s=WAIT_S)
    return tree.votes(path)[0]


def make_it_vote_again(tree: Tree, path: str) -> None:
    """Behind whatever was planted; it is told by the watch of its own vote."""
    vote = the_vote(tree, path)
    tree.remove(f"{path}/{vote}")


@ELECTIONS
def test_what_is_no_vote_is_passed_over_and_somebody_leads(
    cluster: RealCluster, tree: Tree, namespace: str, path: str, server: str
) -> None:
    first = int(the_vote(tree, path)[2:])
    good = b'{"format": 1, "candidate": "nobody", "token": "0123456789abcdef"}'
    values = [CORRUPT, FUTURE, WRONG, b"\xff\xfe\x00", good]
    names = [f"V_{first + 1 + at:010d}" for at in range(len(values))]
    for name, value in zip(names, values, strict=True):
        tree.put(f"{path}/{name}", value)
    tree.put(f"{path}/notes", b"an operator's")
    before = tree.dump()
    make_it_vote_again(tree, path)
    for name in (*names, "notes"):
        wait_for_line(cluster, server, "election_node_passed_over", f"{path}/{name}")
    assert int(the_vote(tree, path)[2:]) > first + len(values), "behind all of them"
    if server == "broker-1":  # the leader assigns what nobody owns
        wait_served(cluster, f"persistent://{namespace}/topic")
    assert "auditor_term_ends" not in cluster.log_text(server)
    assert_unchanged(before, tree.dump())
    assert cluster.log_text(server).count(f"{path}/notes") == 1
    for name in (*names, "notes"):
        tree.remove(f"{path}/{name}")


@ELECTIONS
def test_a_vote_that_cannot_be_read_counts_as_long_as_its_session_lives(
    cluster: RealCluster, tree: Tree, zookeeper: ZooKeeper, namespace: str, path: str, server: str
) -> None:
    """An unreadable vote may be that of a newer release, whose leader this is."""
    name = f"V_{int(the_vote(tree, path)[2:]) + 1:010d}"
    stranger = KazooClient(hosts=f"127.0.0.1:{zookeeper.port}")
    stranger.start()
    try:
        stranger.create(f"{tree.root}{path}/{name}", FUTURE, ephemeral=True)
        tree.remove(f"{path}/{min(tree.votes(path))}")
        line = wait_for_line(cluster, server, "election_vote_not_understood", f"{path}/{name}")
        assert "format: Input should be 1" in line
        wait_for_line(cluster, server, '"event": "election"', path, '"is_leader": false')
        stranger_vote = tree.get(f"{path}/{name}")
        assert stranger_vote is not None
        assert stranger_vote.value == FUTURE
        since = len(cluster.log_text(server))
    finally:
        stranger.stop()
        stranger.close()
    wait_for_line(cluster, server, '"event": "election"', path, '"is_leader": true', since=since)
    wait_served(cluster, f"persistent://{namespace}/topic")
