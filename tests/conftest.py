"""Rules for all tests: where their data lie, which worker runs them, how processes are started.

Data lie on a memory file system, where a sync costs nothing: a test must not depend on the speed of
the machine's disk. Tests marked `disk` are about durability; their `tmp_path` lies on the disk.
Without a memory file system with enough room, all data lie on the disk.

In a parallel run (`-n 4`) the tests of a module stay together, in their order, since they share its
servers. The groups that took longest in the last nightly run start first, so that no worker is left
alone with one of them.
"""

import gc
import json
import os
import shutil
import signal
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Set
from functools import _lru_cache_wrapper
from pathlib import Path

import pytest
import structlog
from fastapi.dependencies import models
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import proven
from tests.command_server import fork_servers_of_this_process
from tests.processes import ROOT
from tests.sampling import choose_sample, sample_command

_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 6 << 30
"""Least free space in bytes to use it. The servers of the tests leave gigabytes; less is left to
the machine."""
_DISK = Path(tempfile.gettempdir())

_SPARK = "tests/integration/spark/"
_GROUPS = (_SPARK, "tests/integration/broker/console/")
"""Folders whose tests share one costly process, and therefore run on one worker."""
_DURATIONS = Path(__file__).with_name("durations.json")
"""Group -> seconds that its tests took in the last nightly run; short groups are left out. The
seconds only decide which group starts first."""
_SHORTEST_KNOWN_S = 3.0

# A time limit per example fails on a busy machine and says nothing about the code. CI judges
# changes, so it draws the same examples each time. Everywhere else, and in `make sim SEED=n`, the
# examples are new.
settings.register_profile("magnetar", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("magnetar")

# Without a configuration, as in tests, structlog shows the local variables of each function in an
# exception. That takes seconds for one event where these are topics and brokers.
for _each in structlog.get_config()["processors"]:
    if isinstance(_each, structlog.dev.ConsoleRenderer):
        _each.exception_formatter = structlog.dev.plain_traceback

# A shell that starts tests in the background makes them ignore Ctrl-C. The processes that they
# start, and that must end by it, would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nohup does the same with SIGHUP. The tests survive it by a handler that does nothing, which their
# processes do not inherit.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

fork_servers_of_this_process()
choose_sample()

if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
    # pytest reads it when a test first asks for a folder. Each checkout has a folder of its own,
    # because a killed run may leave files and mounts behind.
    _root = _MEMORY / f"magnetar-tests-{os.getuid()}-{zlib.crc32(bytes(ROOT)):08x}"
    _root.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_root))
    tempfile.tempdir = str(_root)  # for code that makes its own folder, such as a broker here

_has_failed = pytest.StashKey[bool]()
_PROOF = "proof"
"""Property of a test's reports that names the proof to which the test belongs."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_has_failed] = item.stash.get(_has_failed, False) or report.failed
    return report


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder for the test: on the disk if it is marked `disk`, else as pytest makes it.

    A folder on the disk is removed after the test unless the test failed.
    """
    item: pytest.Item = request.node
    if item.get_closest_marker("disk") is None:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="magnetar-test-", dir=_DISK))
    yield folder
    if not item.stash.get(_has_failed, False):
        shutil.rmtree(folder, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("proven")
    group.addoption(
        "--changed",
        action="store_true",
        help="leave out tests of Spark, and replays of mutations, that depend on no changed file",
    )
    group.addoption(
        "--record-proven",
        action="store_true",
        help="if all tests pass, record the proofs among them (tests/proven.json), for --changed, "
        "and how long they took (tests/durations.json)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --changed, leave out what is proven. In parallel runs, put the longest groups first.

    Each remaining test notes its proof in a property, for the process that reports it.
    """
    if config.getoption("changed"):
        left_out = [item for item in items if _is_proven(item)]
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if (name := _proof_of(item)) is not None:
            item.user_properties.append((_PROOF, name))
    if hasattr(config, "workerinput"):
        durations: dict[str, float] = json.loads(_DURATIONS.read_text())
        items.sort(key=lambda item: -durations.get(_group_of(item.nodeid), 0.0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --changed, skip the import of Spark's tests if their proof stands."""
    is_spark = collection_path == ROOT / _SPARK
    return True if is_spark and config.getoption("changed") and _is_spark_proven() else None


def pytest_collection_finish() -> None:
    """Exempt the collected tests from further garbage collections: they live to the end."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        terminalreporter.write_line(f"tests that take a share of their cases: {sample_command()}")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each module, release the brokers of its tests.

    FastAPI's caches hold the functions of every application, and these hold their broker: a million
    objects at the end, which each collection would walk.
    """
    if nextitem is None or _group_of(nextitem.nodeid) != _group_of(item.nodeid):
        for each in vars(models).values():
            if isinstance(each, _lru_cache_wrapper):
                each.cache_clear()


_took_s: defaultdict[str, float] = defaultdict(float)


_passed: defaultdict[str, set[str]] = defaultdict(set)
"""Proof -> files whose tests of that proof passed."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _took_s[_group_of(report.nodeid)] += report.duration
    if report.when == "call" and report.passed:
        for key, value in report.user_properties:
            if key == _PROOF:
                _passed[str(value)].add(report.nodeid.partition("::")[0])


class _Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps the tests of a group on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid)


def _group_of(node_id: str) -> str:
    path = node_id.partition("::")[0]
    return next((each for each in _GROUPS if path.startswith(each)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Groups:
    return _Groups(config, log)


def _is_proven(item: pytest.Item) -> bool:
    name = _proof_of(item)
    return name is not None and proven.is_proven(name)


def _proof_of(item: pytest.Item) -> str | None:
    if item.nodeid.startswith(_SPARK):
        return proven.SPARK
    replay = item.get_closest_marker("replay")
    return None if replay is None else str(replay.args[0])


def _is_spark_proven() -> bool:
    return proven.is_proven(proven.SPARK)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    is_controller = not hasattr(config, "workerinput")
    if is_controller and config.getoption("record_proven") and exitstatus == pytest.ExitCode.OK:
        if not config.option.keyword and not any("::" in each for each in config.args):
            proven.record(_whole_proofs(_passed))
        known = {
            group: took_s
            for group, took_s in json.loads(_DURATIONS.read_text()).items()
            if group not in _took_s and (ROOT / group).exists()
        }
        known |= {
            group: round(took_s) for group, took_s in _took_s.items() if took_s >= _SHORTEST_KNOWN_S
        }
        _DURATIONS.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")


def _whole_proofs(passed: Mapping[str, Set[str]]) -> set[str]:
    """Return the proofs of which every file ran. Replays of a mutation are all in one file."""
    of_spark = {str(each.relative_to(ROOT)) for each in (ROOT / _SPARK).rglob("test_*.py")}
    return {name for name, files in passed.items() if name != proven.SPARK or files >= of_spark}
