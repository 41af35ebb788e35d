"""Every case on plain and partitioned topics, with and without batches, around every interruption.

One server for all of them. The first halves of all cases run first, then the server is interrupted
once, then each test runs its second half; a first half that fails fails its own test.
"""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker.matrix.cases import CASES, Setting
from tests.integration.pulsar_client.support import connect
from tests.standalone import Standalone

PARTITIONS = 3
INTERRUPTIONS = ("nothing", "unload", "restart")

Name = tuple[str, bool, bool]
"""Case, partitioned, batched."""

NAMES: list[Name] = [
    (case, is_partitioned, is_batched)
    for case in CASES
    for is_partitioned in (False, True)
    for is_batched in (False, True)
]


def id_of(name: Name) -> str:
    case, is_partitioned, is_batched = name
    return "-".join(
        (
            case,
            "partitioned" if is_partitioned else "plain",
            "batched" if is_batched else "unbatched",
        )
    )


def put(server: Standalone, path: str, body: str | None = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("PUT", path, body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 204
    connection.close()


class Interrupted:
    """All cases, half done."""

    def __init__(self) -> None:
        self.halves: dict[Name, Iterator[None]] = {}
        self.failures: dict[Name, Exception] = {}

    def begin(self, name: Name, setting: Setting) -> None:
        half = self.halves[name] = CASES[name[0]](setting)
        try:
            next(half)
        except Exception as error:  # noqa: BLE001  # told by the test of that name
            self.failures[name] = error

    def end(self, name: Name) -> None:
        if name in self.failures:
            raise self.failures[name]
        assert next(self.halves.pop(name), "the end") == "the end"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("matrix") / "data") as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture(scope="module", params=INTERRUPTIONS)
def interrupted(
    request: pytest.FixtureRequest, server: Standalone, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Interrupted]:
    interruption: str = request.param
    log: Path = tmp_path_factory.mktemp("client") / "log"
    client = connect(server.url, log_path=log)
    cases = Interrupted()
    wanted = {name for each in request.session.items for name in _names(each)}
    for name in NAMES:
        if name not in wanted:
            continue
        topic = f"persistent://public/default/{interruption}-{id_of(name)}"
        if name[1]:
            path = topic.replace("persistent://", "/admin/v2/persistent/")
            put(server, f"{path}/partitions", str(PARTITIONS))
        cases.begin(name, Setting(client, topic, is_partitioned=name[1], is_batched=name[2]))
    if interruption == "unload":
        put(server, "/admin/v2/namespaces/public/default/unload")
    elif interruption == "restart":
        assert server.terminate() == 0
        server.start()
    yield cases
    client.close()


def _names(item: pytest.Item) -> list[Name]:
    """The case that a chosen test of this file runs."""
    callspec = getattr(item, "callspec", None)
    return [callspec.params["name"]] if callspec and "interrupted" in callspec.params else []


@pytest.mark.parametrize("name", NAMES, ids=id_of)
def test_nothing_changes_for_applications(interrupted: Interrupted, name: Name) -> None:
    interrupted.end(name)
