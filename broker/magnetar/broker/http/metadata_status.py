"""State of the metadata store, as this broker sees it, over HTTP. Not in Pulsar's interface.

The request does not ask the store: the broker reports on its own last calls. Other brokers may see
the store differently; each has this page.
"""

from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from magnetar.broker.http.late_routes import late_router
from magnetar.ledger.metadata.call_times import CallFacts, TimedStore
from magnetar.ledger.metadata.store import MetadataStore

_ZOOKEEPER: Final = ("zk:", "zookeeper:")


class CallsView(BaseModel):
    """Calls of this broker. Times are of the last `kept` calls."""

    reads: int
    """Reads since the start of the broker, as are `writes` and `failed`."""
    writes: int
    failed: int
    """Calls without an answer in time, or with an unknown outcome."""
    kept: int
    span_s: float
    """Seconds over which the kept calls are spread."""
    last_ms: float
    median_ms: float
    p99_ms: float
    longest_ms: float


class MetadataView(BaseModel):
    """The metadata store of a broker; not a shape of Pulsar's."""

    kind: Literal["ZooKeeper", "embedded"]
    servers: str
    """Hosts and ports of ZooKeeper, or the file of an embedded store."""
    state: str
    """`connected`; `suspended` without contact; `expired` if the session is gone."""
    state_s: float | None = None
    """Seconds in this state. None if the store does not report it; then the next fields are not
    reported either."""
    session_id: str = ""
    """Session id as in the logs of ZooKeeper's servers."""
    session_timeout_ms: int
    times_suspended: int | None = None
    times_expired: int | None = None
    calls: CallsView | None = None


def metadata_view(store: MetadataStore, url: str) -> MetadataView:
    """Return what a broker knows of its store, whose URL is `url`."""
    is_zookeeper = url.startswith(_ZOOKEEPER)
    hosts, path = url.partition("://")[2].partition("/")[0], url.partition(":")[2]
    found = MetadataView(
        kind="ZooKeeper" if is_zookeeper else "embedded",
        servers=hosts if is_zookeeper else path,
        state=store.session_state.value,
        session_timeout_ms=store.session_timeout_ms,
    )
    if not isinstance(store, TimedStore):
        return found
    session = store.call_times.session()
    return found.model_copy(
        update={
            "session_id": store.session_id,
            "state_s": round(session.state_s, 1),
            "times_suspended": session.times_suspended,
            "times_expired": session.times_expired,
            "calls": _calls(store.call_times.calls()),
        }
    )


def _calls(facts: CallFacts) -> CallsView:
    return CallsView(
        reads=facts.reads,
        writes=facts.writes,
        failed=facts.failed,
        kept=facts.kept,
        span_s=round(facts.span_s, 1),
        last_ms=_ms(facts.last_s),
        median_ms=_ms(facts.median_s),
        p99_ms=_ms(facts.p99_s),
        longest_ms=_ms(facts.longest_s),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def metadata_router(store: MetadataStore, url: str) -> APIRouter:
    """Return the route of the metadata store. `url`: URL of the store, for operators."""
    router = late_router(tags=["brokers"])

    async def shown() -> MetadataView:
        """Return the state of the session, and times of the last calls, as this broker sees
        them."""
        return metadata_view(store, url)

    router.get("/magnetar/v1/metadata", summary="Metadata store, as this broker sees it")(shown)
    return router
