"""Health of the metadata store as this process sees it: times of the last calls, and its session.

A ring of the last calls, always on, for operators. Timing a call reads the clock twice. Calls
without an answer count as failed; a node that is missing or was changed is an answer. Pure but for
the clock, which is passed in.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from magnetar.ledger.errors import MetadataUnavailableError, UnknownOutcomeError
from magnetar.ledger.metadata.store import SessionState

CALLS_KEPT: Final = 1_000
"""Number of calls in the ring, some 100 bytes each; the oldest is dropped."""

CallKind = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The calls of a store. Times in seconds, over the last `kept` calls; 0 without any."""

    reads: int
    """Reads since the store was opened; `writes` and `failed` count from then too."""
    writes: int
    failed: int
    """Calls without an answer in time, or with an unknown outcome."""
    kept: int
    last_s: float
    median_s: float
    p99_s: float
    longest_s: float
    span_s: float
    """Seconds since the oldest kept call ended."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The session of a store."""

    state_s: float
    """Seconds since the session entered its current state."""
    times_suspended: int
    """Number of lost contacts since the store was opened."""
    times_expired: int


class CallTimes:
    """Times calls of one store, and counts changes of its session."""

    def __init__(self, now_s: Callable[[], float], *, calls_kept: int = CALLS_KEPT) -> None:
        self._now_s = now_s
        self._calls: deque[tuple[float, float]] = deque(maxlen=calls_kept)
        """(end of a call, its duration) in seconds, oldest first."""
        self._counts: dict[CallKind, int] = {"read": 0, "write": 0}
        self._failed = 0
        self._state_since_s = now_s()
        self._times_suspended = 0
        self._times_expired = 0

    @contextmanager
    def timed(self, kind: CallKind) -> Iterator[None]:
        """Time the body as one call. Errors pass through."""
        begun_s = self._now_s()
        try:
            yield
        except (MetadataUnavailableError, UnknownOutcomeError):
            self._failed += 1
            raise
        finally:
            ended_s = self._now_s()
            self._counts[kind] += 1
            self._calls.append((ended_s, ended_s - begun_s))

    def on_state(self, state: SessionState) -> None:
        """Record a change of the session's state."""
        self._state_since_s = self._now_s()
        self._times_suspended += state is SessionState.SUSPENDED
        self._times_expired += state is SessionState.EXPIRED

    def calls(self) -> CallFacts:
        """Return counts and times of the calls. Sorts the ring: not for a hot path."""
        times = sorted(took_s for _, took_s in self._calls)
        count = len(times)
        return CallFacts(
            reads=self._counts["read"],
            writes=self._counts["write"],
            failed=self._failed,
            kept=count,
            last_s=self._calls[-1][1] if count else 0.0,
            median_s=times[count // 2] if count else 0.0,
            p99_s=times[(count - 1) * 99 // 100] if count else 0.0,
            longest_s=times[-1] if count else 0.0,
            span_s=self._now_s() - self._calls[0][0] if count else 0.0,
        )

    def session(self) -> SessionFacts:
        """Return the state's age and the counts of the session's changes."""
        return SessionFacts(
            state_s=self._now_s() - self._state_since_s,
            times_suspended=self._times_suspended,
            times_expired=self._times_expired,
        )


@runtime_checkable
class TimedStore(Protocol):
    """A metadata store that times its calls, as both production stores do."""

    @property
    def call_times(self) -> CallTimes: ...

    @property
    def session_id(self) -> str:
        """The name of the session in the logs of the store's servers; empty if it has none."""
        ...
