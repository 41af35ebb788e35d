"""Calling an application's interceptors, of producers and consumers alike.

They are the application's own code, so any `Exception` may come out of them, and no message shall
be lost for it. It is caught at this one place and logged as a warning with the interceptor's name,
the call and the stack, and the next one is called. What is no `Exception` (a cancellation, a
keyboard interrupt) goes through. They are called on the event loop and must not block.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_log = logging.getLogger("magnetar.sdk")

I = TypeVar("I")  # noqa: E741  # An interceptor.
M = TypeVar("M")


class InterceptorChain(Generic[I]):
    """Those of one producer or consumer, in their order."""

    def __init__(self, topic: str, interceptors: Sequence[I]) -> None:
        self.topic = topic
        self._interceptors = interceptors

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def pass_through(self, call: str, message: M, through: Callable[[I, M], M]) -> M:
        """What becomes of a message that goes through all of them; what is none is left out."""
        kind = type(message)
        for each in self._interceptors:
            try:
                found = through(each, message)
            except Exception as error:  # noqa: BLE001  # See the module's text.
                self._log_failure(each, call, error)
                continue
            if isinstance(found, kind):
                message = found
            else:
                self._log_failure(each, call, TypeError(f"a {type(found).__name__}, no message"))
        return message

    def tell(self, call: str, one: Callable[[I], None]) -> None:
        """Tell all of them something."""
        for each in self._interceptors:
            try:
                one(each)
            except Exception as error:  # noqa: BLE001  # See the module's text.
                self._log_failure(each, call, error)

    def _log_failure(self, interceptor: I, call: str, error: Exception) -> None:
        kind = type(interceptor)
        _log.warning(
            "interceptor_failed topic=%s interceptor=%s.%s call=%s: %r",
            self.topic,
            kind.__module__,
            kind.__qualname__,
            call,
            error,
            exc_info=error,
        )
