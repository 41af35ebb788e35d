"""The key-value store of docs/examples as a real process, killed at any moment: it recovers."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster import ProcessCluster
from tests.processes import ROOT, magnetar_environment

EXAMPLE = ROOT / "docs" / "examples" / "key_value_store.py"


class Store:
    """One running process of the example."""

    def __init__(self, metadata_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLE), metadata_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=magnetar_environment(),
        )
        self.ready = self.answer()

    def send(self, *commands: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.writelines(f"{command}\n" for command in commands)
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def ask(self, command: str) -> str:
        self.send(command)
        return self.answer()

    def kill(self) -> list[str]:
        """kill -9; returns the answers that were given and not yet read."""
        self._process.send_signal(signal.SIGKILL)
        assert self._process.stdout is not None
        rest = self._process.stdout.read().splitlines()
        self._end()
        return rest

    def close(self) -> None:
        """End its input, after which it ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._end()

    def _end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # what was not read by a killed process
        self._process.wait(30)


@pytest.fixture(scope="module")
def metadata_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster"), broker=False) as cluster:
        yield cluster.metadata_url


def test_what_was_answered_survives_kill_9_at_any_moment(metadata_url: str) -> None:
    rng = random.Random(7)
    state: dict[str, str] = {}
    for generation in range(4):
        store = Store(metadata_url)
        survivors = store.ask("keys").split()[1:]
        assert set(state) <= set(survivors), "an answered change is gone"
        for key in state:
            assert store.ask(f"get {key}") == f"value {state[key]}"
        state = {key: store.ask(f"get {key}").removeprefix("value ") for key in survivors}
        changes = [(f"key-{rng.randrange(50)}-{generation}", f"value {n}") for n in range(400)]
        store.send(*(f"put {key} {value}" for key, value in changes))
        answers = [store.answer() for _ in range(rng.randrange(1, 300))]
        answers += store.kill()
        answered = [line for line in answers if line == "ok"]
        state.update(changes[: len(answered)])
        # A change that was not answered may have been made: then it is the next one, or those
        # behind it, of the same key.
        unsure = {key for key, _ in changes[len(answered) :]}
        state = {key: value for key, value in state.items() if key not in unsure}
    store = Store(metadata_url)
    for key in state:
        assert store.ask(f"get {key}") == f"value {state[key]}"
    store.close()


def test_a_deleted_key_stays_deleted_and_a_compacted_log_says_the_same(metadata_url: str) -> None:
    store = Store(metadata_url)
    assert store.ask("put colour deep blue") == "ok"
    assert store.ask("put shape round") == "ok"
    assert store.ask("delete colour") == "ok"
    before = store.ask("keys")
    assert store.ask("compact").startswith("removed ")
    assert store.ask("put size large") == "ok"
    store.kill()
    again = Store(metadata_url)
    assert again.ask("get colour") == "none"
    assert again.ask("get shape") == "value round"
    assert again.ask("get size") == "value large"
    assert set(again.ask("keys").split()) == {*before.split(), "size"}
    removed = again.ask("compact")
    assert int(removed.split()[1]) >= 1
    again.close()
    last = Store(metadata_url)
    assert set(last.ask("keys").split()) == {*before.split(), "size"}
    last.close()


def test_a_store_that_was_taken_over_says_so_and_changes_nothing(metadata_url: str) -> None:
    first = Store(metadata_url)
    assert first.ask("put owner first") == "ok"
    second = Store(metadata_url)
    for _ in range(2):
        assert "another owner has taken the log over" in first.ask("put owner again")
    assert second.ask("get owner") == "value first"
    assert second.ask("put owner second") == "ok"
    assert second.ask("nonsense").startswith("error: put KEY VALUE")
    first.close()
    second.close()
