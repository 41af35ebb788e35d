"""The leader broker: one of the brokers is elected, and it decides who gets what nobody owns.

The choice itself is made by `placing.py` and can be made on every broker, as for the destination of
an unload. Lookups ask the leader all the same: only one memory of what was given away a moment ago
can spread a hundred bundles that lose their owner at once. Being the leader is advice, as every
election is: two leaders for a moment may send the clients of one bundle to two brokers, of which
the lease lets one have it.
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
        """`name`: as this broker registers."""
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
        """Stand for election. The view of the brokers has been started before."""
        self._learn()
        await self._election.start()

    async def close(self) -> None:
        """Stand no longer: the next one leads at once."""
        await self._election.close()

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, as far as it knows; false without contact to the store."""
        return self._election.is_leader

    def leader_name(self) -> str | None:
        """Name of the broker that leads; None: nobody does, or it is not known just now."""
        return self._election.leader()

    def leader(self) -> BrokerRecord | None:
        """The broker that leads, if it is known and registered."""
        name = self._election.leader()
        return self._brokers.get(name) if name is not None else None

    def broker(self, name: str) -> BrokerRecord | None:
        """A broker that is registered."""
        return self._brokers.get(name)

    def brokers(self) -> Mapping[str, BrokerRecord]:
        """All that are registered, by name."""
        return self._brokers.all()

    def report_of(self, name: str) -> LoadReport | None:
        """What a broker has last told about its load."""
        return self._brokers.report_of(name)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back on the loop when the leader changes."""
        self._election.on_change(callback)

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        """The broker that shall own the bundle: the least loaded one; None if there is none.

        Never one that is draining, is full, or is excluded. Asked again within
        `placing_remembered_ms`, the answer is the same as long as that broker is registered.
        """
        return self._placing.choose(bundle, now_s=self._clock.monotonic_s(), excluding=excluding)

    def note(self, bundle: BundleId, broker: str) -> None:
        """A bundle moves to a broker: whoever asks before it is there is sent to the same one."""
        self._placing.note(bundle, broker, now_s=self._clock.monotonic_s())

    def pending(self) -> Mapping[BundleId, str]:
        """Bundles that were given to a broker, within `placing_remembered_ms`, whose report does
        not show them yet."""
        assigned = self._placing.assigned(now_s=self._clock.monotonic_s())
        return {bundle: given.broker for bundle, given in assigned.items()}

    def _learn(self) -> None:
        self._placing.learn(
            Candidate(name, self._brokers.report_of(name), is_draining=record.draining)
            for name, record in self._brokers.all().items()
        )
