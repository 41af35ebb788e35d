"""A worker process gives batches and errors as they were, and ends with its reader."""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator

import pyarrow as pa
import pytest

from magnetar.arrow import errors, worker_process
from magnetar.arrow.errors import CorruptDataError, MagnetarArrowError, WorkerLostError, error_from
from magnetar.arrow.slice_jobs import SliceJob
from magnetar.arrow.stored import errors as stored_errors
from magnetar.arrow.stored.errors import OptionError, RefusedError
from magnetar.arrow.stored.slices import Slice
from magnetar.arrow.worker_process import WorkerProcess, serve

JOB = SliceJob(Slice("t", -1, ()), ("value",))
WAIT_S = 30.0


def _batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([bytes([number])] * 3, pa.binary())})


class _Served(WorkerProcess):
    """The other side runs in a thread of this process, so that a test can say what it reads."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._free = deque()
        self.thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self.thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            serve(connection)

    def close(self) -> None:
        self._socket.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


made: list[int] = []


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Served]:
    monkeypatch.setattr(worker_process, "settle_worker", lambda _: None)
    made.clear()
    found = _Served()
    yield found
    found.close()


def _reads(monkeypatch: pytest.MonkeyPatch, count: int, error: Exception | None = None) -> None:
    def batches_of(job: SliceJob, _: object) -> Generator[pa.RecordBatch, None, None]:
        assert job.names == JOB.names
        for number in range(count):
            made.append(number)
            yield _batch(number)
        if error is not None:
            raise error

    monkeypatch.setattr(worker_process, "batches_of", batches_of)


def test_batches_come_as_they_were_and_in_order(
    monkeypatch: pytest.MonkeyPatch, worker: _Served
) -> None:
    _reads(monkeypatch, 7)
    for _ in range(2):  # one job after the other
        assert list(worker.batches(JOB)) == [_batch(number) for number in range(7)]


def test_a_batch_outlives_its_worker(monkeypatch: pytest.MonkeyPatch, worker: _Served) -> None:
    _reads(monkeypatch, 1)
    (found,) = worker.batches(JOB)
    worker.close()
    assert found == _batch(0)


def test_files_are_used_again_once_nobody_has_their_batch(
    monkeypatch: pytest.MonkeyPatch, worker: _Served
) -> None:
    opened: list[int] = []
    make = worker_process._memory_file

    def memory_file() -> int:
        opened.append(1)
        return make()

    monkeypatch.setattr(worker_process, "_memory_file", memory_file)
    _reads(monkeypatch, 50)
    values = [batch.column(0)[0].as_py() for batch in worker.batches(JOB)]
    assert values == [bytes([number]) for number in range(50)]
    assert len(opened) <= worker_process._AHEAD_MAX + 2
    kept = [batch.column(0) for batch in worker.batches(JOB)]
    assert [each[0].as_py() for each in kept] == values, "none is written over"
    assert len(opened) >= 50


def test_a_worker_is_not_far_ahead_of_its_reader(
    monkeypatch: pytest.MonkeyPatch, worker: _Served
) -> None:
    _reads(monkeypatch, 50)
    batches = worker.batches(JOB)
    for taken in range(1, 20):
        next(batches)
        assert len(made) <= taken + worker_process._AHEAD_MAX + 1
    batches.close()


@pytest.mark.parametrize("kind", [CorruptDataError, MagnetarArrowError])
def test_an_error_comes_behind_what_was_read(
    monkeypatch: pytest.MonkeyPatch, worker: _Served, kind: type[MagnetarArrowError]
) -> None:
    _reads(monkeypatch, 2, kind("t: message 1:2: said"))
    batches = worker.batches(JOB)
    assert [next(batches), next(batches)] == [_batch(0), _batch(1)]
    with pytest.raises(kind, match="t: message 1:2: said"):
        next(batches)
    _reads(monkeypatch, 1)
    assert list(worker.batches(JOB)) == [_batch(0)], "and the next job is read"


KINDS = [
    each
    for module in (errors, stored_errors)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, MagnetarArrowError)
]
MADE: dict[type[MagnetarArrowError], MagnetarArrowError] = {
    OptionError: OptionError("privateKeyFile", "/k.pem: no such file"),
    RefusedError: RefusedError(409, "the topic is fenced"),
}


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS), ids=lambda kind: kind.__name__)
def test_every_error_of_a_worker_comes_back_as_itself(
    monkeypatch: pytest.MonkeyPatch, worker: _Served, kind: type[MagnetarArrowError]
) -> None:
    error = MADE[kind] if kind in MADE else kind("t: said")
    _reads(monkeypatch, 0, error)
    with pytest.raises(MagnetarArrowError) as caught:
        list(worker.batches(JOB))
    assert type(caught.value) is kind
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)


def test_an_error_of_an_unknown_class_is_one_of_this_tree() -> None:
    assert type(error_from("OfTheFutureError", "said")) is MagnetarArrowError


def test_a_process_that_ends_is_told_of() -> None:
    worker = WorkerProcess()
    worker._process.kill()
    with pytest.raises(WorkerLostError, match="t: the process that read it has ended") as caught:
        list(worker.batches(JOB))
    assert caught.value.retryable
    worker.close()


def test_a_process_ends_when_its_reader_closes_it() -> None:
    worker = WorkerProcess()
    worker.close()
    assert worker._process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(worker._process.pid, 0)


def test_arrow_makes_arrays_in_a_worker_without_loading_pandas() -> None:
    assert importlib.util.find_spec("pandas"), "it is there, or this shows nothing"
    script = (
        "import sys; from magnetar.arrow.worker import do_without_pandas; do_without_pandas();"
        "import pyarrow as pa; made = pa.array([b'a', None]); pa.scalar('a');"
        "print(made.to_pylist(), 'pandas' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[b'a', None] False\n"
    assert not ran.stderr
