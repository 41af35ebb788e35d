"""The event loop of a simulation: virtual time, no selector, no threads, one fixed order.

- Time stands still while callbacks are ready, and then jumps to the next timer. Ready callbacks run
  in the order in which they were scheduled, timers by time and then by the order of scheduling.
- Every callback belongs to the process (`SimProcess`) in whose context it was scheduled. The
  callbacks of a paused process are held until it goes on; those of a dead one are dropped.
- An exception in a callback ends the run, and so does a run that exceeds its bounds, or in which
  nothing can happen any more; the error then says what still waits.
- Tasks and futures are kept until the end. If the garbage collector ended a suspended coroutine,
  its `finally` would run at a moment that no seed decides.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from enum import Enum, auto
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ENDING_STEPS_MAX = 20_000
_ENDING_ROUNDS_MAX = 20
_WALL_START_MS = 1_700_000_000_000


class SimulationStuckError(Exception):
    """Nothing can happen any more, or the run exceeds its bounds."""


class ProcessState(Enum):
    RUNNING = auto()
    PAUSED = auto()
    DEAD = auto()


class SimProcess:
    """One simulated process: a name, and whether its callbacks run."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.state = ProcessState.RUNNING
        self.held: list[_Handle] = []
        self.context = copy_context()
        self.context.run(CURRENT_PROCESS.set, self)
        self.on_kill: list[Callable[[], None]] = []
        self.on_resume: list[Callable[[], None]] = []

    @property
    def is_alive(self) -> bool:
        return self.state is not ProcessState.DEAD

    def spawn(
        self, coroutine: Coroutine[object, object, T], name: str | None = None
    ) -> asyncio.Task[T]:
        """Run a coroutine as a task of this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    async def finish(self, coroutine: Coroutine[object, object, None], name: str) -> None:
        """Run a coroutine to its end, or to that of the process, whichever comes first."""
        is_over = self.loop.create_future()

        def end() -> None:
            if not is_over.done():
                is_over.set_result(None)

        self.on_kill.append(end)
        running = self.spawn(coroutine, name)
        await asyncio.wait([running, is_over], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        self.loop.call_soon(callback, *args, context=self.context)

    def call_at(
        self, when_s: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts
    ) -> asyncio.TimerHandle:
        return self.loop.call_at(when_s, callback, *args, context=self.context)

    def pause(self) -> None:
        """Hold every callback from now on, as when the process gets no processor time."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.PAUSED
            self.loop.halted += 1

    def resume(self) -> None:
        if self.state is ProcessState.PAUSED:
            self.state = ProcessState.RUNNING
            self.loop.halted -= 1
            for callback in self.on_resume:
                callback()
            held, self.held = self.held, []
            self.loop.make_ready(held)

    def kill(self) -> None:
        """End the process: none of its callbacks runs any more."""
        if self.state is ProcessState.DEAD:
            return
        if self.state is ProcessState.RUNNING:
            self.loop.halted += 1
        self.state = ProcessState.DEAD
        self.loop.dropped += self.held
        self.held = []
        for callback in self.on_kill:
            callback()


CURRENT_PROCESS: ContextVar[SimProcess | None] = ContextVar("CURRENT_PROCESS", default=None)


class _Handle(asyncio.TimerHandle):
    """A callback. Its own class: the base class keeps what only debugging needs."""

    __slots__ = ("args", "call", "context")

    def __init__(
        self,
        call: Callable[..., object],
        args: tuple[object, ...],
        context: Context | None,
        when_s: float,
    ) -> None:
        self.call = call
        self.args = args
        # Not `context or`: an empty context is false.
        self.context = copy_context() if context is None else context
        self._cancelled = False
        self._when = when_s

    def cancel(self) -> None:
        self._cancelled = True
        self.args = ()

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, *, seconds_max: float = 3600.0, steps_max: int = 500_000) -> None:
        self._now_s = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timers_made = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._owners: list[SimProcess | None] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._seconds_max = seconds_max
        self._steps_max = steps_max
        self.is_ending = False
        self._is_closed = False
        self.steps = 0
        self.halted = 0
        """Processes that are paused or dead; while it is 0, nobody needs to be asked."""
        self.errors: list[BaseException] = []
        self.tolerated: type[BaseException] | None = None
        """What callbacks and tasks may raise that nobody asks: it is reported, and does not end the
        run."""
        self.reported: list[BaseException] = []
        self.dropped: list[_Handle] = []
        """Callbacks of dead processes. Without them their tasks could not even be ended."""

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, context, self._now_s)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        raise AssertionError("there are no threads in a simulation")

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Handle(callback, args, context, when)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        self._futures.append(future)
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(
            cast(Coroutine[Any, Any, T], coro),
            loop=self,
            # Without a name asyncio numbers the tasks of all loops that ever were.
            name=str(name) if name is not None else f"task-{len(self._tasks)}",
            context=context,
        )
        self._tasks.append(task)
        owner = copy_context() if context is None else context
        self._owners.append(owner.get(CURRENT_PROCESS))
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.is_ending:
            return
        if self.tolerated is not None and isinstance(error, self.tolerated):
            self.reported.append(error)
        elif isinstance(error, BaseException):
            error.add_note(str(context.get("message")))
            self.errors.append(error)
        else:
            self.errors.append(RuntimeError(str(context.get("message"))))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # What the simulation asks

    @property
    def wall_ms(self) -> int:
        return _WALL_START_MS + int(self._now_s * 1000)

    def make_ready(self, handles: list[_Handle]) -> None:
        self._ready.extend(handles)

    async def until(
        self, condition: Callable[[], bool], *, timeout_s: float = 60.0, what: str = ""
    ) -> None:
        """Wait until the condition holds; it is looked at after every callback.

        Raises:
            SimulationStuckError: it does not hold within `timeout_s` of virtual time.
        """
        if condition():
            return
        future = self.create_future()
        self._conditions.append((condition, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError as exc:
            name = what or getattr(condition, "__qualname__", "the condition")
            raise SimulationStuckError(
                f"{name} does not hold after {timeout_s} s; {self.what_waits()}"
            ) from exc
        finally:
            self._conditions = [each for each in self._conditions if each[1] is not future]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` has ended.

        Raises:
            SimulationStuckError: see the module.
            BaseException: what a callback or `main` raised.
        """
        asyncio.events._set_running_loop(self)
        try:
            task = self.create_task(main, name="main")
            while not task.done():
                self._step()
                if self.errors:
                    raise self.errors[0]
            return task.result()
        finally:
            asyncio.events._set_running_loop(None)

    def close(self) -> None:
        """End what is left, quietly. Nothing of it is part of the run any more."""
        self.is_ending = True
        self.halted = 0
        asyncio.events._set_running_loop(self)
        try:
            self._ready.extend(self.dropped)
            for _ in range(_ENDING_ROUNDS_MAX):
                # Who waits for something on its way out is cancelled again.
                waiting = [task for task in self._tasks if not task.done()]
                for task in waiting:
                    task.cancel()
                if not waiting:
                    break
                self._drain()
        finally:
            asyncio.events._set_running_loop(None)
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for future in (*self._tasks, *self._futures):
            future._log_traceback = False
        self._ready.clear()
        self._timers.clear()
        self._is_closed = True

    def _drain(self) -> None:
        for _ in range(_ENDING_STEPS_MAX):
            if not self._ready:
                break
            self._run_handle(self._ready.popleft())

    def unretrieved(self) -> list[BaseException]:
        """Errors of tasks that ended and were never asked; in the order of the tasks.

        Not those of a process that died: whoever would have asked is gone.
        """
        found: list[BaseException] = []
        for task, process in zip(self._tasks, self._owners, strict=True):
            if process is not None and not process.is_alive:
                continue
            if task.done() and not task.cancelled() and getattr(task, "_log_traceback", False):
                error = task.exception()
                assert error is not None
                if self.tolerated is not None and isinstance(error, self.tolerated):
                    self.reported.append(error)
                    continue
                error.add_note(f"nobody asked for the outcome of the task {task.get_name()}")
                found.append(error)
        return found

    def owners_of(self, tasks: list[asyncio.Task[None]]) -> list[SimProcess | None]:
        """The process of each task."""
        owners = dict(zip(self._tasks, self._owners, strict=True))
        return [owners[task] for task in tasks]

    def tasks_of(self, processes: Collection[SimProcess]) -> list[str]:
        """The tasks of these processes that have not ended."""
        return [
            f"{owner.name}/{task.get_name()}"
            for task, owner in zip(self._tasks, self._owners, strict=True)
            if owner in processes and owner is not None and not task.done()
        ]

    def what_waits(self) -> str:
        """The tasks that have not ended, and where they stand."""
        lines = []
        for task, process in zip(self._tasks, self._owners, strict=True):
            if task.done() or (process is not None and not process.is_alive):
                continue
            where = _where(task.get_coro())
            owner = process.name if process is not None else "script"
            lines.append(f"{owner}/{task.get_name()} in {where}")
        return "waiting: " + "; ".join(lines)

    def _step(self) -> None:
        if not self._ready:
            self._advance()
        self.steps += 1
        if self.steps > self._steps_max:
            raise SimulationStuckError(f"more than {self._steps_max} steps; {self.what_waits()}")
        self._run_handle(self._ready.popleft())
        if self._conditions:
            for condition, future in self._conditions:
                if not future.done() and condition():
                    future.set_result(None)

    def _advance(self) -> None:
        """Go to the time of the next timer and make everything due then ready."""
        timers, ready = self._timers, self._ready
        while timers and not ready:
            when, _, handle = heapq.heappop(timers)
            if handle._cancelled:
                continue
            self._now_s = max(self._now_s, when)
            ready.append(handle)
            while timers and timers[0][0] <= self._now_s:
                _, _, handle = heapq.heappop(timers)
                if not handle._cancelled:
                    ready.append(handle)
        if not ready:
            raise SimulationStuckError(f"nothing can happen any more; {self.what_waits()}")
        if self._now_s > self._seconds_max:
            raise SimulationStuckError(f"more than {self._seconds_max} s; {self.what_waits()}")

    def _run_handle(self, handle: _Handle) -> None:
        if handle._cancelled:
            return
        context = handle.context
        if self.halted and not self.is_ending:
            process = context.get(CURRENT_PROCESS)
            if process is not None and process.state is not ProcessState.RUNNING:
                if process.state is ProcessState.PAUSED:
                    process.held.append(handle)
                else:
                    self.dropped.append(handle)
                return
        try:
            context.run(handle.call, *handle.args)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the run fails with it
            if not self.is_ending:
                self.errors.append(error)


def _where(coroutine: object) -> str:
    """The chain of coroutines that a task is suspended in, the innermost last."""
    names: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(names[-3:]) or "?"
