"""Every case on plain and partitioned topics, with and without batches, around an interruption.

One server for all of them, and each interruption comes once: the first halves of all cases run,
several at a time, then the server is interrupted, then the second halves run. A half that fails
fails the test of its case alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from tests.http_calls import call
from tests.integration.broker.matrix import keeping, producing, subscriptions, topics
from tests.integration.broker.matrix.setting import PARTITIONS, Case, Setting
from tests.integration.pulsar_client.support import connect
from tests.standalone import Standalone

AT_ONCE = 8
INTERRUPTIONS = ("unload", "restart")
CASES: dict[str, Case] = {
    **subscriptions.CASES,
    **producing.CASES,
    **keeping.CASES,
    **topics.CASES,
}
ENVIRONMENT = {
    "MESSAGE_EXPIRY_CHECK_INTERVAL_S": "0.5",
    "BACKLOG_QUOTA_CHECK_INTERVAL_S": "0.5",
}

Name = tuple[str, bool, bool]
"""Case, partitioned, batched."""

PAIRED = {*keeping.CASES, *topics.CASES, *producing.PAIRED, *subscriptions.PAIRED}
"""Cases where batches and partitions have nothing to do with each other: both, or neither."""

NAMES: list[Name] = [
    (case, is_partitioned, is_batched)
    for case in CASES
    for is_partitioned in (False, True)
    for is_batched in (False, True)
    if not (is_batched and case in producing.UNBATCHED)
    if not (is_partitioned != is_batched and case in PAIRED)
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


class Interrupted:
    """Cases on one client, and what failed in each."""

    def __init__(self, server: Standalone, log: Path) -> None:
        self.failures: dict[Name, Exception] = {}
        self._server = server
        self._client = connect(server.url, log_path=log)
        self._halves: dict[Name, Iterator[None]] = {}

    def begin(self, names: list[Name], interruption: str) -> None:
        for name in names:
            case, is_partitioned, is_batched = name
            topic = f"persistent://public/default/{interruption}-{id_of(name)}"
            setting = Setting(
                self._server,
                self._client,
                topic,
                is_partitioned=is_partitioned,
                is_batched=is_batched,
            )
            self._halves[name] = _whole(setting, CASES[case])
        self._run_halves(lambda half: next(half))

    def end(self) -> None:
        self._run_halves(lambda half: next(half, None))

    def close(self) -> None:
        try:
            self._client.close()
        except pulsar.AlreadyClosed:
            pass  # This client says so when one of its producers was fenced.

    def _run_halves(self, run: Callable[[Iterator[None]], None]) -> None:
        def one(name: Name) -> None:
            try:
                run(self._halves[name])
            except Exception as error:  # noqa: BLE001  # told by the test of that name
                self.failures[name] = error

        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(one, [name for name in self._halves if name not in self.failures]))


def _whole(setting: Setting, case: Case) -> Iterator[None]:
    if setting.is_partitioned:
        setting.admin("PUT", "/partitions", PARTITIONS)
    yield from case(setting)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("matrix") / "data", settings=ENVIRONMENT) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture(scope="module", params=INTERRUPTIONS)
def interrupted(
    request: pytest.FixtureRequest, server: Standalone, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Interrupted]:
    interruption: str = request.param
    cases = Interrupted(server, tmp_path_factory.mktemp("client") / "log")
    chosen = {name for each in request.session.items for name in _names(each)}
    cases.begin([name for name in NAMES if name in chosen], interruption)
    if interruption == "unload":
        call(server, "PUT", "namespaces/public/default/unload", expect=204)
    else:
        assert server.terminate() == 0
        server.start()
    cases.end()
    yield cases
    cases.close()


def _names(item: pytest.Item) -> list[Name]:
    """The case that a chosen test of this file runs."""
    callspec = getattr(item, "callspec", None)
    return [callspec.params["name"]] if callspec and "interrupted" in callspec.params else []


@pytest.mark.parametrize("name", NAMES, ids=id_of)
def test_nothing_changes_for_applications(interrupted: Interrupted, name: Name) -> None:
    if name in interrupted.failures:
        raise interrupted.failures[name]
