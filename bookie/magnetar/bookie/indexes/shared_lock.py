"""A readers-writer lock for threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from types import TracebackType


class SharedLock:
    """`with lock:` shares the lock; `with lock.alone():` waits until no thread has it.

    A thread that waits for it alone comes before threads that share it later.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._sharers = 0
        self.is_wanted_alone = False
        """Whether a thread has the lock alone, or waits for that."""

    def __enter__(self) -> None:
        with self._changed:
            while self.is_wanted_alone:
                self._changed.wait()
            self._sharers += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._sharers -= 1
            if self.is_wanted_alone and not self._sharers:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone. For one thread at a time, which does not share the lock itself."""
        with self._changed:
            assert not self.is_wanted_alone
            self.is_wanted_alone = True
            while self._sharers:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self.is_wanted_alone = False
                self._changed.notify_all()
