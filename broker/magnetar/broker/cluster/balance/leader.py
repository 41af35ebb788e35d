"""The leader broker: one broker is elected, and chooses owners for bundles that have none.

`placing.py` makes the choice, and could do so on every broker, as for the destination of an unload.
Lookups ask the leader nevertheless: only one memory of recent assignments can spread a hundred
bundles that lose their owner at once. Leadership is advisory, as in every election. Two leaders for
a moment may send the clients of one bundle to two brokers, and the lease lets one of them own it.
"""

import random
from collections.abc import Callable, Collection, Mapping

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.load_report import BundleCosts, LoadReport
from magnetar.broker.cluster.balance.placing import Candidate, Placing
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.ledger.metadata.election import Election
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock

LEADER_ROOT = "/loadbalance/leader"


class LeaderBroker:
    """One broker's part in the election, and its choices."""

    def __init__(
        self,
        store: MetadataStore,
        brokers: Brokers,
        name: str,
        *,
        settings: BrokerSettings,
        clock: Clock,
        random: random.Random,
    ) -> None:
        """`name`: the name under which this broker registers."""
        self._brokers = brokers
        self._clock = clock
        self._election = Election(store, LEADER_ROOT, name, random=random)
        self._placing = Placing(
            BundleCosts(settings),
            usage_percent_max=settings.shedding_usage_percent_max,
            remembered_s=settings.placing_remembered_ms / 1000,
        )
        brokers.on_change(self._learn)

    async def start(self) -> None:
        """Join the election. The view of the brokers must have been started before."""
        self._learn()
        await self._election.start()

    async def close(self) -> None:
        """Leave the election; the next broker leads at once."""
        await self._election.close()

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, as far as it knows; false without contact to the store."""
        return self._election.is_leader

    def leader_name(self) -> str | None:
        """Return the name of the leader; None if there is none, or it is not known now."""
        return self._election.leader()

    def leader(self) -> BrokerRecord | None:
        """Return the leader's registration; None if it is not known or not registered."""
        name = self._election.leader()
        return self._brokers.get(name) if name is not None else None

    def broker(self, name: str) -> BrokerRecord | None:
        """Return the registration of a broker; None if it is not registered."""
        return self._brokers.get(name)

    def brokers(self) -> Mapping[str, BrokerRecord]:
        """Return all registered brokers, by name."""
        return self._brokers.all()

    def report_of(self, name: str) -> LoadReport | None:
        """Return the last load report of a broker."""
        return self._brokers.report_of(name)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop when the leader changes."""
        self._election.on_change(callback)

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        """Return the broker that is to own the bundle: the least loaded one; None if there is none.

        It is never one that is draining, full or excluded. A repeated call within
        `placing_remembered_ms` gives the same answer while that broker is registered.
        """
        return self._placing.choose(bundle, now_s=self._clock.monotonic_s(), excluding=excluding)

    def note(self, bundle: BundleId, broker: str) -> None:
        """Note that a bundle moves to a broker, so that lookups before its arrival are sent there,
        too."""
        self._placing.note(bundle, broker, now_s=self._clock.monotonic_s())

    def pending(self) -> Mapping[BundleId, str]:
        """Return bundles that were given to a broker within `placing_remembered_ms`, and that its
        report does not show yet."""
        assigned = self._placing.assigned(now_s=self._clock.monotonic_s())
        return {bundle: given.broker for bundle, given in assigned.items()}

    def _learn(self) -> None:
        self._placing.learn(
            Candidate(name, self._brokers.report_of(name), is_draining=record.draining)
            for name, record in self._brokers.all().items()
        )
