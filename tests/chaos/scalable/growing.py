"""Has a topic's own load split and merge it, and notes what becomes of it.

Nobody asks for a split or merge: a policy says from which load on a segment is split, and up to
which load neighbours are merged, and the owner of the topic's name does the rest. The topic's
record is read where brokers keep it, so that looking costs them nothing.
"""

import asyncio
from collections.abc import Callable, Mapping

from magnetar.broker.base import naming
from magnetar.broker.features.scalable.record import LastChange, ScalableTopicRecord
from magnetar.broker.policies.model import decode
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import parse_topic_name
from tests.chaos.scalable.field import Field
from tests.chaos.scalable.plan import LOOK_S, SEGMENTS, Plan, Progress
from tests.chaos.scalable.records import ADMIN, SUBSCRIPTION, TOPIC
from tests.chaos.scalable.stalls import Change

ENTRY_BUCKETS = 2
"""Of the new topic. More than two consumers of one segment have it get more."""
_BACKLOG_LOOK_S = 2.0
_PATH = naming.scalable_topic_path(parse_topic_name(TOPIC.replace("topic:", "persistent:")))
_RATES = ("MsgRateIn", "MsgRateOut", "BytesRateIn", "BytesRateOut")
_SHRINKS: Mapping[str, object] = {
    "maxSegments": SEGMENTS,
    **{f"split{each}Threshold": 2e12 for each in _RATES},
    **{f"merge{each}Threshold": 1e12 for each in _RATES},
    "splitVsRebucketMinMsgRateInThreshold": 2e12,
}
"""Whatever the load, neighbours are merged; consumers beyond the segments get entry buckets."""


def _grows(plan: Plan) -> Mapping[str, object]:
    """A segment is split while it has more than a quarter of an even share of the load."""
    return {
        "maxSegments": SEGMENTS,
        "splitMsgRateInThreshold": plan.rate / SEGMENTS / 4,
        "mergeMsgRateInThreshold": 0.0,
    }


class Growing:
    """Of one run."""

    def __init__(self, plan: Plan, stage: Field, progress: Progress, store: MetadataStore) -> None:
        self._plan, self._stage, self._progress, self._store = plan, stage, progress, store

    async def run(self) -> None:
        """Have the topic grow and shrink for ever, and its consumers share the one segment that it
        has then."""
        progress = self._progress
        while True:
            await self._by(_grows(self._plan), lambda: progress.active == SEGMENTS)
            progress.shrinks = True
            await self._by(_SHRINKS, lambda: progress.active == 1)
            progress.shrinks = False
            await self._by(_SHRINKS, lambda: progress.buckets > ENTRY_BUCKETS)
            progress.cycles += 1

    async def _by(self, policy: Mapping[str, object], is_reached: Callable[[], bool]) -> None:
        is_set = False
        while not is_set or not is_reached():
            if not is_set:
                answer = await self._stage.ask("POST", f"{ADMIN}/autoScalePolicy", policy)
                is_set = answer is not None
                assert answer is None or answer.status != 412, answer
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Note the layout as it is, and the last change."""
        try:
            found = await self._store.get(_PATH)
        except LedgerError:
            return
        record = decode(ScalableTopicRecord, _PATH, found.value)
        self._progress.active = len(record.active)
        self._progress.buckets = max(each.entry_buckets for each in record.active)
        if record.last_change is not None:
            change = _change(record, record.last_change)
            self._progress.changes.setdefault(change.ended_ms, change)

    async def pace(self) -> None:
        """Have producers wait while consumers are too far behind, for ever."""
        backlog_max = self._plan.rate * self._plan.backlog_s_max
        while True:
            await asyncio.sleep(_BACKLOG_LOOK_S)
            backlog = await self.backlog()
            if backlog is None:
                continue
            self._progress.backlog_max = max(self._progress.backlog_max, backlog)
            if backlog > backlog_max:
                self._stage.hold(True)
            elif backlog < backlog_max / 2:
                self._stage.hold(False)

    async def backlog(self) -> int | None:
        """Messages that consumers have not acknowledged; None: nobody says."""
        answer = await self._stage.ask("GET", f"{ADMIN}/stats")
        found = answer.json["subscriptions"] if answer is not None else {}
        return int(found[SUBSCRIPTION]["msgBacklog"]) if SUBSCRIPTION in found else None


def _change(record: ScalableTopicRecord, last: LastChange) -> Change:
    """The last change, with the hashes of its segments: of the children, which its parents had."""
    made = [each for each in record.segments if each.parents == last.parents]
    return Change(
        kind=last.kind.value,
        first_hash=min(each.hash_start for each in made),
        last_hash=max(each.hash_end for each in made),
        begun_ms=last.begun_ms,
        ended_ms=last.ended_ms,
        stalled_ms=last.stalled_ms,
    )
