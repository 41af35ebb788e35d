"""The client for code without an event loop: the same calls, each of which blocks until its end.

    from magnetar.sdk.blocking import Client

    with Client("pulsar://localhost:6650") as client:
        producer = client.producer("orders")
        producer.send(b"hello")
        for message in client.reader("orders"):
            print(message.data)

The asyncio client runs in a thread of its own, and this module passes calls to it. Everything that
the client returns (producers, consumers, readers, transactions, …) is wrapped in `Blocking`, with
all its methods and attributes under their names. This module names none of them. Calls may come
from any thread. Callbacks (`on_sent`, …) run in the client's thread, and must not call back into
the client.

After a fork the child has no such thread, and shares the parent's sockets: every call there raises
`ForkedError`. Create a client in the child.
"""

import asyncio
import concurrent.futures
import inspect
import os
import threading
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    ValuesView,
)
from types import TracebackType
from typing import Any, Self

from magnetar.sdk.client import Client as AsyncClient
from magnetar.sdk.errors import AlreadyClosedError, ForkedError
from magnetar.sdk.settings import ClientSettings


class _LoopThread:
    """An event loop in a thread of its own, with calls into it from other threads."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        """Held to begin a call and to end the thread, so that no call begins after the thread has
        ended."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="magnetar client", daemon=True)
        self._thread.start()

    # Any: a value, or the result of an awaitable; types cannot express both in one.
    def call(self, function: Callable[[], object]) -> Any:
        """Call a function in the loop's thread, await its result if that is awaitable, and return
        it.

        An interrupted call (Ctrl-C) is cancelled, as a task would be.

        Raises:
            ForkedError: this process is a child of the one that made the client.
            AlreadyClosedError: the client is closed, or a callback in the client's thread made the
                call.
        """
        if os.getpid() != self._pid:
            raise ForkedError(
                "the client was created before a fork: create one in the child process"
            )
        if threading.current_thread() is self._thread:
            raise AlreadyClosedError(
                "a callback cannot call the blocking client that runs it: call it from another "
                "thread"
            )

        async def run() -> object:
            result = function()
            return await result if inspect.isawaitable(result) else result

        with self._lock:
            if self._is_stopping:
                raise AlreadyClosedError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if not self._is_stopping:
                raise
            raise AlreadyClosedError("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread. Does nothing the second time, or in a child of a fork."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            was_stopping, self._is_stopping = self._is_stopping, True
            if not was_stopping:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Other threads wait for the tasks still running: they must learn that the tasks ended.
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(_ended(left))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


class Blocking:
    """An object of the asyncio client, called from threads.

    Methods, attributes and iteration pass to the object, in the client's thread.
    """

    def __init__(self, target: object, thread: _LoopThread) -> None:
        self._target, self._thread = target, thread

    def __repr__(self) -> str:
        return f"<Blocking {self._target!r}>"

    # Any, because the names and types are those of the wrapped object; see its class.
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        target, thread = self._target, self._thread
        if inspect.isfunction(inspect.getattr_static(type(target), name, None)):
            method = getattr(target, name)

            def call(*arguments: object, **named: object) -> object:
                plain = [_unwrapped(each) for each in arguments]
                plain_named = {key: _unwrapped(each) for key, each in named.items()}
                return _wrapped(thread.call(lambda: _taken(method(*plain, **plain_named))), thread)

            return call
        return _wrapped(thread.call(lambda: getattr(target, name)), thread)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._thread.call(lambda: setattr(self._target, name, value))

    # Any: the items of the wrapped object.
    def __iter__(self) -> Iterator[Any]:
        target: Any = self._target
        if not hasattr(type(target), "__aiter__"):
            raise TypeError(f"{type(target).__name__} cannot be iterated over")
        items = self._thread.call(lambda: target.__aiter__())
        try:
            while True:
                yield _wrapped(self._thread.call(lambda: items.__anext__()), self._thread)
        except StopAsyncIteration:
            return

    def __enter__(self) -> Self:
        target: Any = self._target
        self._thread.call(lambda: target.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        target: Any = self._target
        self._thread.call(lambda: target.__aexit__(kind, error, trace))


class BlockingMapping(Blocking):
    """A table view for threads. Reads run in the client's thread, which also changes the view."""

    # Any: the values of the wrapped mapping.
    def __getitem__(self, key: str) -> Any:
        target: Any = self._target
        return self._thread.call(lambda: target[key])

    def __contains__(self, key: object) -> bool:
        target: Any = self._target
        return bool(self._thread.call(lambda: key in target))

    def __len__(self) -> int:
        target: Any = self._target
        return int(self._thread.call(lambda: len(target)))

    def __iter__(self) -> Iterator[Any]:
        target: Any = self._target
        return iter(self._thread.call(lambda: list(target)))


class Client(Blocking):
    """`magnetar.sdk.Client` for threads: `producer`, `consumer`, `reader`, and all its calls."""

    def __init__(
        self, url: str = "pulsar://127.0.0.1:6650", settings: ClientSettings | None = None
    ) -> None:
        """Start the client's thread and make the asyncio client in it.

        Raises:
            InvalidUrlError: the URL cannot be used.
            TlsFileError: a certificate, or list of authorities, cannot be used.
            TypeError: `settings` is not a `ClientSettings`.
        """
        thread = _LoopThread()
        try:
            super().__init__(thread.call(lambda: AsyncClient(url, settings)), thread)
        except BaseException:
            thread.stop()
            raise

    def close(self, *, flush: bool = True) -> None:
        """Close all that the client made, and end its thread.

        Raises:
            SdkError: a message without a callback failed; everything is closed all the same.
        """
        client = self._target
        assert isinstance(client, AsyncClient)
        try:
            self._thread.call(lambda: client.close(flush=flush))
        except (AlreadyClosedError, ForkedError):
            pass  # a second call, or a child of a fork, where there is nothing to close
        finally:
            self._thread.stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(flush=kind is None)


def _wrapped(value: object, thread: _LoopThread) -> object:
    """Wrap an object that has calls to await as `Blocking`; return other values as they are."""
    if hasattr(type(value), "__aenter__") or hasattr(type(value), "__aiter__"):
        return (BlockingMapping if isinstance(value, Mapping) else Blocking)(value, thread)
    return value


def _taken(value: object) -> object:
    """Copy the keys, items or values of a mapping to a list, because another thread iterates over
    them."""
    return list(value) if isinstance(value, KeysView | ItemsView | ValuesView) else value


def _unwrapped(value: object) -> object:
    return value._target if isinstance(value, Blocking) else value
