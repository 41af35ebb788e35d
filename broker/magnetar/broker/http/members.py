"""Servers that came and went, as this broker has noticed: the last events of a cluster.

Each look compares the registered bookies and brokers with those of the last look. A server that
goes and returns between two looks leaves no trace. The list is bounded and ends with the process;
the logs are the durable record.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from magnetar.broker.http.view import BrokerView

_log = structlog.get_logger()

LOOK_EVERY_S: Final = 2.0
"""Seconds between looks; shorter absences may be missed. A look compares two maps in memory."""
EVENTS_MAX: Final = 100
"""Events that are kept; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """One change of one server."""

    at_ms: int
    """Time at which the change was noticed, since the epoch."""
    kind: str
    """`bookie` or `broker`."""
    name: str
    text: str


class Members:
    """Events from successive looks; call `look` once per interval."""

    def __init__(self) -> None:
        self._before: dict[str, Mapping[str, str]] = {}
        self._events: deque[MemberEvent] = deque(maxlen=EVENTS_MAX)

    def look(self, kind: str, states: Mapping[str, str], now_ms: int) -> None:
        """Record the changes of the servers of one kind. `states` holds a word for the state of
        each server; servers that are not in it are gone."""
        before = self._before.get(kind)
        self._before[kind] = dict(states)
        if before is None:
            return  # The first look has nothing to compare with.
        for name in sorted(before.keys() | states.keys()):
            was, now = before.get(name), states.get(name)
            if was == now:
                continue
            if now is None:
                text = "went away"
            elif was is None:
                text = "came" if now == "serving" else f"came, {now}"
            else:
                text = f"is {now}, was {was}"
            self._events.appendleft(MemberEvent(now_ms, kind, name, text))

    def shown(self) -> list[dict[str, Any]]:
        """Return the events as JSON, newest first."""
        return [asdict(each) for each in self._events]


class MembersWatch:
    """Looks at the servers of a broker's cluster, from `start` to `stop`."""

    def __init__(self, broker: "BrokerView") -> None:
        self.members = Members()
        self._broker = broker
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to look periodically."""
        assert self._running is None, "it looks already"
        self._running = asyncio.get_running_loop().create_task(self._run(), name="members-watch")

    async def stop(self) -> None:
        """Stop looking."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            self._running = None

    async def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # noqa: BLE001 - a defect must not end all further looks
                _log.exception("members_not_looked_at")
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Look once."""
        now_ms = self._broker.services.clock.wall_ms()
        bookies = {
            name: "read-only" if each.readonly else "serving"
            for name, each in self._broker.bookies().items()
        }
        self.members.look("bookie", bookies, now_ms)
        cluster = self._broker.cluster
        if cluster is not None:
            brokers = {
                name: "leaving" if each.draining else "serving"
                for name, each in cluster.leader_broker.brokers().items()
            }
            self.members.look("broker", brokers, now_ms)
