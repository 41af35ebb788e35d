"""A lock that many share, or one has alone. For threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from types import TracebackType


class SharedLock:
    """`with lock:` shares it with others; `with lock.alone():` waits until nobody has it.

    Who wants it alone comes before those who come later to share it.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._sharers = 0
        self.is_wanted_alone = False
        """Somebody has it alone, or waits for that."""

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
        """For one thread at a time, which does not share the lock itself."""
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
