"""The leader's shell of shedding: looks at all brokers, has bundles moved as `shedding.py` decides.

Before an order it reads the lease: the report may be old, and the bundle may have gone elsewhere
since (RULE 11.1). A leader that has just been elected waits a whole interval first: its view fills
up meanwhile, and what the leader before it has ordered is done. The grace periods that one kept in
mind are lost with it; that costs some bundle a move too many, once, if loads changed just then.
"""

import asyncio

import structlog

from magnetar.broker.balance.brokers import Brokers
from magnetar.broker.balance.bundles import BundleError, BundleId
from magnetar.broker.balance.layouts import Layouts
from magnetar.broker.balance.leader import LeaderBroker, bundle_limits
from magnetar.broker.balance.orders import Orders
from magnetar.broker.balance.shedding import BrokerLoad, Move, SheddingPolicy, plan_moves
from magnetar.broker.errors import BrokerMetadataError, RequestError
from magnetar.broker.ownership.records import LeaseRecord, decode
from magnetar.broker.settings import BrokerSettings
from magnetar.ledger.errors import MetadataError, NoNodeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()


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
        self._limits = bundle_limits(settings)
        self._policy = shedding_policy(settings)
        self._bundles_max = settings.bundles_per_namespace_max
        self._grace_s = settings.shedding_grace_ms / 1000
        self._interval_s = settings.shedding_interval_ms / 1000
        self._moved: dict[BundleId, float] = {}
        self._running: asyncio.Task[None] | None = None
        self.moves = 0
        """Bundles that were moved."""
        self.failed_moves = 0
        self.splits = 0
        """Bundles that were split because they were too large to be moved."""

    def start(self) -> None:
        """Look from now on, once per interval."""
        assert self._running is None, "started twice"
        self._running = asyncio.create_task(self._run(), name="shedder")

    async def close(self) -> None:
        """Look no longer. A move that is under way ends on the broker that was told."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None

    async def _run(self) -> None:
        leads_since_s: float | None = None
        while True:
            await asyncio.sleep(self._interval_s)
            now_s = self._clock.monotonic_s()
            if not self._leader.is_leader:
                leads_since_s = None
                self._moved.clear()
                continue
            if leads_since_s is None:
                leads_since_s = now_s
                continue
            try:
                await self.look()
            except (RequestError, MetadataError) as error:
                _log.warning("shedding_failed", error=str(error))

    async def look(self) -> int:
        """One look at all brokers; returns how many bundles were moved.

        Raises:
            BrokerMetadataError, MetadataError: not now.
        """
        now_s = self._clock.monotonic_s()
        self._moved = {
            bundle: at_s for bundle, at_s in self._moved.items() if now_s - at_s < self._grace_s
        }
        loads = await self._loads()
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
            done += await self._carry_out(move)
        if plan.split is not None:
            await self._split(*plan.split)
        return done

    async def _loads(self) -> dict[str, BrokerLoad]:
        """The brokers that can have bundles and have reported."""
        loads: dict[str, BrokerLoad] = {}
        for name, record in self._brokers.all().items():
            report = self._brokers.report_of(name)
            if record.draining or report is None:
                continue
            costs: dict[BundleId, float] = {}
            divisible: list[BundleId] = []
            for text, load in report.bundles.items():
                try:
                    bundle = BundleId.parse(text)
                except BundleError:
                    continue  # Of another release, which names them otherwise: not ours to move.
                costs[bundle] = self._limits.cost_of(load)
                if load.topics > 1 and await self._has_room(bundle):
                    divisible.append(bundle)
            loads[name] = BrokerLoad(report.usage_percent, costs, divisible)
        return loads

    async def _has_room(self, bundle: BundleId) -> bool:
        layout = await self._layouts.layout_of(bundle.namespace)
        return bundle.bundle in layout and len(layout) < self._bundles_max

    def _staying(self, loads: dict[str, BrokerLoad]) -> set[BundleId]:
        """What was moved in the grace period. Halves of it as well."""
        lately = list(self._moved)
        return {
            bundle
            for load in loads.values()
            for bundle in load.costs
            if any(
                each.namespace == bundle.namespace
                and each.bundle.lower < bundle.bundle.upper
                and bundle.bundle.lower < each.bundle.upper
                for each in lately
            )
        }

    async def _carry_out(self, move: Move) -> bool:
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
        self._moved[move.bundle] = self._clock.monotonic_s()
        try:
            await self._orders.unload(owner, move.bundle, move.destination)
        except BrokerMetadataError as error:
            # No grace for what has not moved; but while it may be on its way, it is left alone.
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
            found = await self._store.get(path)
        except NoNodeError:
            return False
        record = decode(LeaseRecord, path, found.value)
        return record.session_token == session_token and not record.destination


def shedding_policy(settings: BrokerSettings) -> SheddingPolicy:
    """The bounds of shedding, as plain values."""
    return SheddingPolicy(
        spread_percent=settings.shedding_spread_percent,
        usage_percent_max=settings.shedding_usage_percent_max,
        usage_over_average_percent=settings.shedding_usage_over_average_percent,
        usage_percent_min=settings.shedding_usage_percent_min,
        cost_min=settings.shedding_topics_min / settings.bundle_topics_max,
        moves_max=settings.shedding_moves_max,
    )
