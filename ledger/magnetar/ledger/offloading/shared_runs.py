"""Runs of objects that are in memory or under way, shared by all readers of an object.

A run that one reader has, or waits for, is not requested again for another one (single flight by
object and run). A request belongs to no reader: it is cancelled only when no reader wants any of
its runs. However a request ends, every reader that waits for its runs is notified (invariant OL3).

Bytes are trusted only after their checks: first the checksum of the run, which covers object and
run number, then the digest and the ids of each packet (invariant O7). A run that fails is requested
once more, alone; if it fails again it is damaged, and other runs are not affected.

Source: tiered storage, sections 18 and 19.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from magnetar.ledger.digest import PacketCodec
from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectError,
    ObjectMissingError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.object_encryption import RunCipher
from magnetar.ledger.offloading.object_format import ObjectFooter, run_payloads
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectTail
from magnetar.ledger.offloading.read_window import ReadMemory
from magnetar.ledger.settings import ObjectReadSettings

T = TypeVar("T")


@dataclass(slots=True)
class ObjectReadCounts:
    """Counters of a process's reads of objects. They only grow."""

    requests: int = 0
    """Requests to stores, including failed ones."""
    failed_requests: int = 0
    """Requests that ended with an error or with the deadline."""
    bytes_read: int = 0
    """Bytes that stores returned."""
    indexes_read: int = 0
    """Objects whose index was read from the store."""
    indexes_found: int = 0
    """Objects whose index was in the cache when they were opened."""
    shared_runs: int = 0
    """Runs that a reader got from the request of another reader."""
    repeated_runs: int = 0
    """Runs that failed a check and were requested once more."""
    damaged_runs: int = 0
    """Runs that failed their checks twice."""
    windows_given_back: int = 0
    """Windows of idle readers whose memory another reader needed."""


class ObjectRequests:
    """Requests to one store: a bounded number at once, each with a deadline.

    Requests that a reader waits for take precedence over those that fetch ahead.
    """

    def __init__(
        self, store: ObjectStore, settings: ObjectReadSettings, counts: ObjectReadCounts
    ) -> None:
        self._store = store
        self._slots = _Slots(settings.object_reads_max)
        self._timeout_s = settings.object_read_timeout_s
        self._counts = counts

    async def get(self, key: str, start: int, end: int, *, is_urgent: bool) -> bytes:
        """Return the bytes of an object from `start` up to `end`.

        Raises:
            ObjectDamagedError: the object ends before `end`.
            ObjectMissingError: the store said so twice (rule 18.1).
            ObjectStoreUnavailableError: no answer within the deadline, which includes the wait for
                the request's turn; or the store says that it cannot tell.
            ObjectStoreRefusedError
        """
        data = await self._ask(key, lambda: self._store.get(key, start, end), is_urgent)
        self._counts.bytes_read += len(data)
        return data

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        """Return the last bytes of an object.

        Raises:
            ObjectMissingError: the store said so twice (rule 18.1).
            ObjectStoreUnavailableError: no answer within the deadline, which includes the wait for
                the request's turn; or the store says that it cannot tell.
            ObjectStoreRefusedError
        """
        tail = await self._ask(key, lambda: self._store.tail(key, size_bytes), is_urgent=True)
        self._counts.bytes_read += len(tail.data)
        return tail

    async def _ask(self, key: str, call: Callable[[], Awaitable[T]], is_urgent: bool) -> T:
        try:
            return await self._ask_once(key, call, is_urgent)
        except ObjectMissingError:
            return await self._ask_once(key, call, is_urgent)

    async def _ask_once(self, key: str, call: Callable[[], Awaitable[T]], is_urgent: bool) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._slots.take(is_urgent=is_urgent)
                try:
                    self._counts.requests += 1
                    return await call()
                finally:
                    self._slots.give_back()
        except TimeoutError as error:
            self._counts.failed_requests += 1
            raise ObjectStoreUnavailableError(
                f"object {key}: no answer within {self._timeout_s} s; try again, and check the "
                f"store and object_read_timeout_s if it goes on"
            ) from error
        except ObjectError:
            self._counts.failed_requests += 1
            raise


@dataclass(slots=True, eq=False)
class Run:
    """One run that is in memory or under way."""

    number: int
    size_bytes: int
    is_reserved: bool
    """Whether its bytes are taken from `ReadMemory`."""
    settled: asyncio.Future[None]
    """Done once `payloads` or `error` is set, or the request was given up."""
    holders: int = 0
    """Number of readers that keep the run or wait for it."""
    payloads: list[bytes] | None = None
    error: Exception | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the request for the run ended without payloads."""
        return self.settled.done() and self.payloads is None


class SharedRuns:
    """The runs of one object. Not thread safe; everything happens on one event loop."""

    def __init__(
        self,
        requests: ObjectRequests,
        key: str,
        footer: ObjectFooter,
        codec: PacketCodec,
        cipher: RunCipher | None = None,
        *,
        memory: ReadMemory,
        checking: asyncio.Lock,
        counts: ObjectReadCounts,
    ) -> None:
        """Make the runs of one object; requests nothing.

        Args:
            cipher: decrypts the runs; None if they are plain.
            memory: receives the bytes of reserved runs when they are released.
            checking: held while a run is checked, and for one turn of the event loop. However many
                requests are answered at the same time, a turn checks one run.
        """
        self._requests = requests
        self._key = key
        self._memory = memory
        self._checking = checking
        self._counts = counts
        self._codec = codec
        self._cipher = cipher
        self._runs: dict[int, Run] = {}
        self._under_way: dict[Run, _Request] = {}
        self.footer = footer
        self.readers = 0
        """Number of open readers."""
        self.is_closed = False

    def find(self, number: int) -> Run | None:
        """Return a run if it is in memory or under way."""
        return self._runs.get(number)

    def request(self, numbers: range, *, is_reserved: bool, is_urgent: bool) -> list[Run]:
        """Request consecutive runs, none of which is in memory or under way. The caller must hold
        them before it yields to other tasks.

        Args:
            is_reserved: their bytes were taken from the memory.
            is_urgent: a reader waits for the first of them.
        """
        loop = asyncio.get_running_loop()
        runs: list[Run] = []
        for number in numbers:
            assert number not in self._runs, number
            size_bytes = self.footer.runs[number].size_bytes
            runs.append(Run(number, size_bytes, is_reserved, loop.create_future()))
        request = _Request(runs)
        self._runs.update(zip(numbers, runs, strict=True))
        self._under_way.update(dict.fromkeys(runs, request))
        request.task = asyncio.create_task(self._fetch(request, is_urgent))
        # Not in a `finally` of the task: a task that is cancelled before its first step has none.
        request.task.add_done_callback(lambda _: self._end(request))
        return runs

    def hold(self, run: Run) -> None:
        """Keep a run, until `let_go`."""
        run.holders += 1

    def let_go(self, run: Run) -> None:
        """Release a run. The last release frees its memory, or cancels its request if no reader
        wants another run of that."""
        run.holders -= 1
        if run.holders:
            return
        if run.settled.done():
            self._drop(run)
            return
        request = self._under_way[run]
        pending = request.pending
        if any(each.holders for each in pending):
            return
        for each in pending:
            self._forget(each)  # a later reader of it must not wait for this request
        assert request.task is not None
        request.task.cancel()

    def requests_of(self, runs: Sequence[Run]) -> int:
        """Return how many requests are under way for these runs."""
        return len({id(self._under_way[run]) for run in runs if run in self._under_way})

    async def wait_given_up(self) -> None:
        """Wait until requests that were given up have ended."""
        given_up = [task for task in self._tasks() if task.cancelling()]
        if given_up:
            await asyncio.wait(given_up)

    async def close(self) -> None:
        """Cancel all requests. Waiting readers learn that the object is closed."""
        self.is_closed = True
        for task in self._tasks():
            task.cancel()
        await self.wait_given_up()

    def _tasks(self) -> list[asyncio.Task[None]]:
        requests = {id(request): request for request in self._under_way.values()}
        return [request.task for request in requests.values() if request.task is not None]

    # Answers

    async def _fetch(self, request: "_Request", is_urgent: bool) -> None:
        try:
            for run in await self._fetch_together(request.runs, is_urgent):
                if run.holders:
                    await self._fetch_again(run)
                else:
                    self._settle(run)
        except Exception as error:  # noqa: BLE001  # readers wait for it, whatever it is
            for run in request.pending:
                self._settle(run, error=error)

    async def _fetch_together(self, runs: Sequence[Run], is_urgent: bool) -> list[Run]:
        """Request runs and check them. Return those that failed a check."""
        places = [self.footer.runs[run.number] for run in runs]
        start, end = places[0].offset, places[-1].offset + places[-1].size_bytes
        try:
            data = await self._requests.get(self._key, start, end, is_urgent=is_urgent)
        except ObjectDamagedError:
            return list(runs)  # the object ends before: it may have some of the runs
        # Copies instead of slices of one buffer, which would stay in memory until the last check.
        pieces = deque(
            data[place.offset - start : place.offset - start + place.size_bytes] for place in places
        )
        del data
        failed: list[Run] = []
        for run in runs:
            piece = pieces.popleft()
            if not run.holders:
                self._settle(run)
            elif await self._check(run, piece) is not None:
                failed.append(run)
        return failed

    async def _check(self, run: Run, data: bytes) -> ObjectDamagedError | None:
        """Settle a run with its payloads if all checks hold; otherwise return the error."""
        async with self._checking:
            error: ObjectDamagedError | None = None
            try:
                payloads = run_payloads(data, self.footer, run.number, self._codec, self._cipher)
            except ObjectDamagedError as damage:
                error = damage
            else:
                self._settle(run, payloads=payloads)
            await asyncio.sleep(0)
        return error

    async def _fetch_again(self, run: Run) -> None:
        """Request a run that failed a check once more, alone, and settle it."""
        self._counts.repeated_runs += 1
        place = self.footer.runs[run.number]
        end = place.offset + place.size_bytes
        error: ObjectError | None
        try:
            data = await self._requests.get(self._key, place.offset, end, is_urgent=True)
            error = await self._check(run, data)
        except ObjectError as failure:
            error = failure  # if the store is unreachable now, no damage is proven
        if error is not None:
            self._counts.damaged_runs += isinstance(error, ObjectDamagedError)
            self._settle(run, error=error)

    def _end(self, request: "_Request") -> None:
        """Settle the runs that an ended request has not settled: they were given up."""
        for run in request.pending:
            self._settle(run)

    def _settle(
        self, run: Run, *, payloads: list[bytes] | None = None, error: Exception | None = None
    ) -> None:
        run.payloads, run.error = payloads, error
        run.settled.set_result(None)
        del self._under_way[run]
        if payloads is None or not run.holders:
            self._drop(run)

    def _drop(self, run: Run) -> None:
        self._forget(run)
        run.payloads = None
        if run.is_reserved:
            run.is_reserved = False
            self._memory.give_back(run.size_bytes)

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.number) is run:
            del self._runs[run.number]


@dataclass(slots=True, eq=False)
class _Request:
    """Consecutive runs that are requested together."""

    runs: list[Run]
    task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> list[Run]:
        """Runs whose outcome is not known yet."""
        return [run for run in self.runs if not run.settled.done()]


class _Slots:
    """Turns of requests: urgent ones first, each kind in the order of the calls."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    async def take(self, *, is_urgent: bool) -> None:
        if self._free:
            self._free -= 1
            return
        queue = self._urgent if is_urgent else self._others
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # A cancelled turn stays in the queue, where `give_back` skips it.
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        for queue in (self._urgent, self._others):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1
