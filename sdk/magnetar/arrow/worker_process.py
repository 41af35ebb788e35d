"""A process that reads slices for another one: both sides of the connection.

`WorkerProcess` is the reader's side. It starts `python -m magnetar.arrow.worker`, not the caller's
program again, so scripts and notebooks need no guard. Jobs go over a socket pair. A batch comes
back in a file in memory, which the reader maps: it is written once, and never copied. When the
reader has released a batch, the worker writes the next one into the same file: fresh pages cost
several times as much as the write itself. The worker is at most `_AHEAD_MAX` batches ahead of the
reader.

Messages: a head of one byte for its kind, a number (u32) and a size (u64), then
    JOB     pickled `SliceJob`                     to the worker
    TAKEN   numbers of files that are free (u32)   to the worker: room for another batch
    BATCH   nothing; the file of that number, by SCM_RIGHTS, begins with an Arrow stream of that
            size, with one batch
    ERROR   JSON: name of the class, the text, and the attributes
    END     nothing: the slice is read
"""

import json
import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial

import numpy as np
import pyarrow as pa

from magnetar.arrow.errors import WorkerLostError, error_from
from magnetar.arrow.slice_jobs import SliceJob, batches_of
from magnetar.arrow.stored.errors import MagnetarArrowError
from magnetar.arrow.stored.slice_reader import ReadsInTurn, settle_worker

_HEAD = struct.Struct("<BIQ")
_JOB, _TAKEN, _BATCH, _ERROR, _END = range(5)

_AHEAD_MAX = 2
_FREE_BYTES_MAX = 64 << 20
"""Limit of the free files that a worker keeps for the next batches, in bytes, together."""

_FILE_BYTES_MIN = 1 << 20
_STREAM_BYTES = 4096
"""Upper bound of an Arrow stream's size beside its batch and its schema, in bytes."""

_EXIT_S = 5.0
"""How long a process may take to end after its socket is closed, in seconds."""


class WorkerProcess:
    """One worker process, seen from the reader. For one thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "magnetar.arrow.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                # numpy's threads for matrices, which do not occur here: they spin as they start.
                "OPENBLAS_NUM_THREADS": "1",
            },
            # An interrupt at the terminal is for the reader: the worker ends with it.
            start_new_session=True,
        )
        theirs.close()
        self._free: deque[int] = deque()
        """Numbers of files that the worker may use again. Any thread that releases a batch adds to
        it."""

    def batches(self, job: SliceJob) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of a slice.

        Raises:
            WorkerLostError: the process has ended.
            MagnetarArrowError: the error that the slice raised in the process.
        """
        try:
            data = pickle.dumps(job)
            self._socket.sendall(_HEAD.pack(_JOB, 0, len(data)) + data)
            while True:
                kind, number, size, files = _receive_head(self._socket)
                if kind == _END:
                    return
                if kind == _ERROR:
                    raise error_from(*json.loads(_receive(self._socket, size)))
                yield _mapped(files[0], size, partial(self._free.append, number))
                free = array("I", [self._free.popleft() for _ in range(len(self._free))])
                self._socket.sendall(_HEAD.pack(_TAKEN, 0, len(free) * free.itemsize) + bytes(free))
        except OSError as error:
            status = self._process.poll()
            raise WorkerLostError(
                f"{job.wanted.topic}: the process that read it has ended"
                f"{'' if status is None else f' with status {status}'}: read again, with less "
                f"memory for each worker if the system has ended it"
            ) from error

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(connection: socket.socket) -> None:
    """Read slices for the process at the other end, until it closes the connection."""
    worker = _Worker(connection)
    try:
        worker.serve()
    except ConnectionError:
        pass  # the reader has gone, and nothing else uses this process
    finally:
        worker.close()


class _Worker:
    """The worker's side of the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reads = ReadsInTurn()
        self._files = _Files()
        self._ahead = 0

    def serve(self) -> None:
        while True:
            kind, _, size, _ = _receive_head(self._connection)
            data = _receive(self._connection, size)
            if kind == _TAKEN:
                self._on_taken(data)
                continue
            job: SliceJob = pickle.loads(data)
            settle_worker(job.wanted.settings.worker_niceness)
            self._serve_job(job)

    def close(self) -> None:
        self._reads.close()
        self._files.close()

    def _serve_job(self, job: SliceJob) -> None:
        try:
            for batch in batches_of(job, self._reads):
                while self._ahead >= _AHEAD_MAX:
                    _, _, size, _ = _receive_head(self._connection)
                    self._on_taken(_receive(self._connection, size))
                number, size, file = self._files.written(batch)
                head = _HEAD.pack(_BATCH, number, size)
                socket.send_fds(self._connection, [head], [file])
                self._ahead += 1
        except MagnetarArrowError as error:
            text = json.dumps([type(error).__name__, str(error), vars(error)]).encode()
            self._connection.sendall(_HEAD.pack(_ERROR, 0, len(text)) + text)
        else:
            self._connection.sendall(_HEAD.pack(_END, 0, 0))

    def _on_taken(self, data: bytes) -> None:
        self._ahead -= 1
        self._files.free(array("I", data))


class _Files:
    """Files in memory, each with one batch that the reader holds, or free for the next one."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, mmap.mmap]] = {}
        """Number -> descriptor, and the whole file."""
        self._free: list[int] = []
        self._next = 0

    def written(self, batch: pa.RecordBatch) -> tuple[int, int, int]:
        """Write a batch into a free file, or a new one.

        Returns:
            Number of the file, size of the stream, and descriptor.
        """
        schema = batch.schema
        needed = pa.ipc.get_record_batch_size(batch) + schema.serialize().size + _STREAM_BYTES
        number = next((each for each in self._free if len(self._files[each][1]) >= needed), None)
        if number is None:
            number = self._opened(needed)
        else:
            self._free.remove(number)
        file, memory = self._files[number]
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        size = int(sink.tell())
        sink.close()
        return number, size, file

    def free(self, numbers: Iterable[int]) -> None:
        """Take back files that the reader has released."""
        self._free += numbers
        while sum(len(self._files[each][1]) for each in self._free) > _FREE_BYTES_MAX:
            self._close(self._free.pop(0))

    def close(self) -> None:
        for number in list(self._files):
            self._close(number)

    def _opened(self, size: int) -> int:
        size = -(-size // _FILE_BYTES_MIN) * _FILE_BYTES_MIN
        file = _memory_file()
        try:
            os.ftruncate(file, size)
            memory = mmap.mmap(file, size)
        except BaseException:
            os.close(file)
            raise
        number, self._next = self._next, self._next + 1
        self._files[number] = (file, memory)
        return number

    def _close(self, number: int) -> None:
        file, memory = self._files.pop(number)
        memory.close()
        os.close(file)


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("magnetar-arrow")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _mapped(file: int, size: int, on_free: Callable[[], None]) -> pa.RecordBatch:
    """Return the batch in a file. `on_free` is called when no part of it is referenced any more."""
    try:
        data = np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(file)
    weakref.finalize(data, on_free).atexit = False
    return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()


def _receive_head(connection: socket.socket) -> tuple[int, int, int, list[int]]:
    data, files, _, _ = socket.recv_fds(connection, _HEAD.size, 1)
    if len(data) < _HEAD.size:
        data += _receive(connection, _HEAD.size - len(data))
    kind, number, size = _HEAD.unpack(data)
    return kind, number, size, files


def _receive(connection: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("the other process has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
