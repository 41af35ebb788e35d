"""What the broker needs of a tracing library, which it does not know.

OpenTelemetry's side of it is in `magnetar.deploy.otel`.
"""

from collections.abc import Mapping
from typing import Protocol

Attributes = Mapping[str, str | int]


class Span(Protocol):
    """A stretch of time that is recorded when it ends."""

    def event(self, name: str) -> None:
        """Something happened at this moment."""
        ...

    def end(self, *, error: str = "") -> None:
        """It ends now; with an error if there is one."""
        ...


class Spans(Protocol):
    """Begins spans."""

    def begin(
        self,
        name: str,
        *,
        attributes: Attributes,
        parent: Span | None = None,
        carrier: Mapping[str, str] | None = None,
    ) -> Span | None:
        """A span that begins now, below `parent` or else below what `carrier` names by
        `traceparent` and `tracestate` (W3C Trace Context); None: it is not sampled."""
        ...
