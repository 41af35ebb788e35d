"""A broker's part in balance: reports its own load, and balances the brokers while it leads."""

from collections.abc import Callable, Sequence

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.leader import LeaderBroker
from magnetar.broker.cluster.balance.orders import HttpOrders
from magnetar.broker.cluster.balance.reporter import BundleHolder, LoadReporter
from magnetar.broker.cluster.balance.sampler import ProcessUsage
from magnetar.broker.cluster.balance.shedder import Shedder
from magnetar.broker.topic import Topic
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network


class Balancer:
    """Reporter and shedder of one broker: started when it serves, closed before it stops."""

    def __init__(
        self,
        holder: BundleHolder,
        topics: Callable[[], Sequence[Topic]],
        *,
        store: MetadataStore,
        brokers: Brokers,
        layouts: Layouts,
        leader: LeaderBroker,
        settings: BrokerSettings,
        usage: Callable[[], ProcessUsage],
        connections: Callable[[], int],
        network: Network,
        clock: Clock,
        token: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """`topics` returns the loaded ones. `usage` returns what the process has used so far.
        `token` returns the credential by which this broker authenticates to others."""
        self.reporter = LoadReporter(
            holder,
            layouts,
            topics,
            settings=settings,
            usage=usage,
            connections=connections,
            clock=clock,
        )
        self.shedder = Shedder(
            store,
            brokers,
            layouts,
            leader,
            HttpOrders(network, timeout_s=settings.unload_order_timeout_ms / 1000, token=token),
            settings=settings,
            clock=clock,
        )
        self._sheds = settings.shedding

    def start(self) -> None:
        """Begin to report, and to move bundles whenever this broker leads."""
        self.reporter.start()
        if self._sheds:
            self.shedder.start()

    async def close(self) -> None:
        """Stop the shedder and the reporter."""
        await self.shedder.close()
        await self.reporter.close()
