"""The leader's shell of shedding: checks all brokers, and moves bundles as `shedding.py` decides.

Before an order it reads the lease: the report may be outdated, and the bundle may have moved since
(RULE 11.1). A newly elected leader first waits for the follow-up time. Meanwhile its view fills up,
and the former leader's orders show up in reports or leases. The grace periods that the former
leader had in memory are lost. That costs some bundles one move too many, once, if loads changed
just then.

The next check comes after an interval. It comes after the shorter follow-up time if the last check
changed something or the set of brokers is another: a broker that has joined soon gets its part.
"""

import asyncio
from dataclasses import dataclass

import structlog

from magnetar.broker.base.errors import BrokerMetadataError, RequestError, UnreadableRecordError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.balance.bundles import BundleError, BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.leader import LeaderBroker
from magnetar.broker.cluster.balance.load_report import BundleCosts, LoadReport
from magnetar.broker.cluster.balance.orders import Orders
from magnetar.broker.cluster.balance.shedding import BrokerLoad, Move, SheddingPolicy, plan_moves
from magnetar.broker.cluster.ownership.records import LeaseRecord
from magnetar.broker.policies.model import decode
from magnetar.ledger.errors import MetadataError, NoNodeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Moved:
    """A bundle that was moved for balance."""

    at_s: float
    destination: str
    cost: float
    """Cost at the broker that it left. Its clients come to the new broker one after the other. For
    as long as a choice is remembered, the bundle counts there for no less; otherwise more bundles
    would move there. Later the reported cost counts, so that a busy moment before the move does not
    count against the new owner for the whole grace period."""


class Shedder:
    """Moves bundles for balance while this broker leads."""

    def __init__(
        self,
        store: MetadataStore,
        brokers: Brokers,
        layouts: Layouts,
        leader: LeaderBroker,
        orders: Orders,
        *,
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._brokers = brokers
        self._layouts = layouts
        self._leader = leader
        self._orders = orders
        self._clock = clock
        self._costs = BundleCosts(settings)
        self._policy = shedding_policy(settings)
        self._bundles_max = settings.bundles_per_namespace_max
        self._grace_s = settings.shedding_grace_ms / 1000
        self._settling_s = settings.placing_remembered_ms / 1000
        self._interval_s = settings.shedding_interval_ms / 1000
        self._pause_s = min(settings.shedding_follow_up_ms, settings.shedding_interval_ms) / 1000
        self._moved: dict[BundleId, _Moved] = {}
        self._seen: set[str] = set()
        """Brokers that the last check found."""
        self._is_settled = True
        """Whether the last check changed nothing."""
        self._running: asyncio.Task[None] | None = None
        self.moves = 0
        """Bundles that were moved."""
        self.failed_moves = 0
        self.splits = 0
        """Bundles that were split because they were too large to be moved."""

    def start(self) -> None:
        """Begin to check, once per interval."""
        assert self._running is None, "started twice"
        self._running = asyncio.create_task(self._run(), name="shedder")

    async def close(self) -> None:
        """Stop checking. A move under way is completed by the broker that got the order."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def _run(self) -> None:
        looked_at_s: float | None = None
        """None until this broker has led for a whole pause."""
        while True:
            await asyncio.sleep(self._pause_s)
            now_s = self._clock.monotonic_s()
            if not self._leader.is_leader:
                looked_at_s = None
                self._moved.clear()
                continue
            if looked_at_s is None:
                looked_at_s = float("-inf")
                continue
            is_new = self._seen != self._able().keys()
            if self._is_settled and not is_new and now_s - looked_at_s < self._interval_s:
                continue
            looked_at_s = now_s
            try:
                await self.look()
            except (RequestError, MetadataError) as error:
                _log.warning("shedding_failed", error=str(error))
            except Exception:  # noqa: BLE001 - a defect must not end all further checks
                _log.exception("shedding_failed")

    async def look(self) -> int:
        """Check all brokers once; return how many bundles were moved.

        Raises:
            BrokerMetadataError, MetadataError: not now.
        """
        now_s = self._clock.monotonic_s()
        self._moved = {
            bundle: moved
            for bundle, moved in self._moved.items()
            if now_s - moved.at_s < self._grace_s
        }
        loads = await self._loads()
        self._seen = set(loads)
        plan = plan_moves(
            loads,
            self._policy,
            staying=self._staying(loads),
            under_way=self._leader.pending(),
        )
        done = 0
        for move in plan.moves:
            if not self._leader.is_leader:
                break
            done += await self._carry_out(move, cost=loads[move.source].costs[move.bundle])
        if plan.split is not None:
            await self._split(*plan.split)
        self._is_settled = not plan.moves and plan.split is None
        return done

    def _able(self) -> dict[str, LoadReport]:
        """Return the brokers that can own bundles and have reported."""
        return {
            name: report
            for name, record in self._brokers.all().items()
            if not record.draining and (report := self._brokers.report_of(name)) is not None
        }

    async def _loads(self) -> dict[str, BrokerLoad]:
        """Return the reported loads of the brokers that can own bundles."""
        loads: dict[str, BrokerLoad] = {}
        for name, report in self._able().items():
            costs: dict[BundleId, float] = {}
            divisible: list[BundleId] = []
            for text, load in report.bundles.items():
                try:
                    bundle = BundleId.parse(text)
                except BundleError:
                    continue  # A name of another release, which this one cannot move.
                costs[bundle] = max(self._costs.cost_of(load), self._least_of(bundle, name))
                if load.topics > 1 and await self._has_room(bundle):
                    divisible.append(bundle)
            loads[name] = BrokerLoad(report.usage_percent, costs, divisible)
        return loads

    def _least_of(self, bundle: BundleId, name: str) -> float:
        """Return the least cost of a bundle at broker `name`: its former cost, if it was moved
        there within the grace period."""
        moved = self._moved.get(bundle)
        if moved is None or moved.destination != name:
            return 0.0
        is_settling = self._clock.monotonic_s() - moved.at_s < self._settling_s
        return moved.cost if is_settling else 0.0

    async def _has_room(self, bundle: BundleId) -> bool:
        try:
            layout = await self._layouts.layout_of(bundle.namespace)
        except UnreadableRecordError:
            return False  # lookups report the error
        return bundle.bundle in layout and len(layout) < self._bundles_max

    def _staying(self, loads: dict[str, BrokerLoad]) -> set[BundleId]:
        """Return the bundles that were moved in the grace period and are still where they were
        moved to, including halves of them. A bundle that its new owner has handed over since, for
        example because it stopped, may be moved again."""
        return {
            bundle
            for name, load in loads.items()
            for bundle in load.costs
            if any(
                moved.destination == name
                and each.namespace == bundle.namespace
                and each.bundle.lower < bundle.bundle.upper
                and bundle.bundle.lower < each.bundle.upper
                for each, moved in self._moved.items()
            )
        }

    async def _carry_out(self, move: Move, *, cost: float) -> bool:
        owner = self._brokers.get(move.source)
        if owner is None or not await self._is_owner(move.bundle, owner.session_token):
            _log.info("move_is_void", bundle=str(move.bundle), source=move.source)
            return False
        _log.info(
            "bundle_moves",
            bundle=str(move.bundle),
            source=move.source,
            destination=move.destination,
        )
        self._leader.note(move.bundle, move.destination)
        self._moved[move.bundle] = _Moved(self._clock.monotonic_s(), move.destination, cost)
        try:
            await self._orders.unload(owner, move.bundle, move.destination)
        except BrokerMetadataError as error:
            # A bundle that has not moved gets no grace period. While it may still be moving,
            # `pending` of the leader keeps it from other moves.
            self.failed_moves += 1
            del self._moved[move.bundle]
            _log.warning("bundle_not_moved", bundle=str(move.bundle), error=str(error))
            return False
        self.moves += 1
        return True

    async def _split(self, name: str, bundle: BundleId) -> None:
        owner = self._brokers.get(name)
        if owner is None or not await self._is_owner(bundle, owner.session_token):
            return
        try:
            await self._orders.split(owner, bundle)
        except BrokerMetadataError as error:
            _log.warning("bundle_not_split", bundle=str(bundle), error=str(error))
        else:
            self.splits += 1

    async def _is_owner(self, bundle: BundleId, session_token: str) -> bool:
        """Whether the lease in the store is of that session, and is not being handed over."""
        path = bundle.lease_path
        try:
            record = decode(LeaseRecord, path, (await self._store.get(path)).value)
        except (NoNodeError, UnreadableRecordError):
            return False
        return record.session_token == session_token and not record.destination


def shedding_policy(settings: BrokerSettings) -> SheddingPolicy:
    """Return the bounds of shedding, as plain values."""
    return SheddingPolicy(
        spread_percent=settings.shedding_spread_percent,
        usage_percent_max=settings.shedding_usage_percent_max,
        usage_over_average_percent=settings.shedding_usage_over_average_percent,
        usage_percent_min=settings.shedding_usage_percent_min,
        cost_min=settings.shedding_topics_min / settings.bundle_topics_max,
        moves_max=settings.shedding_moves_max,
    )
