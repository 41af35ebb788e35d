"""Composes what keeps topics in order, and has the broker's ticker call it."""

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.retention import trimming
from magnetar.broker.features.retention.backlog import Quotas
from magnetar.broker.features.retention.expiry import Expiry
from magnetar.broker.features.retention.inactivity import InactiveSubscriptions
from magnetar.broker.topics.upkeep import Upkeep
from magnetar.ledger.ports import Clock


class Keeping:
    """What the broker's other parts use of it."""

    def __init__(self, clock: Clock) -> None:
        self.expiry = Expiry(clock)
        self.quotas = Quotas(clock, self.expiry)
        self.inactive = InactiveSubscriptions(clock)

    def register(self, upkeep: Upkeep, settings: BrokerSettings) -> None:
        """Have everything looked at from time to time."""
        upkeep.register("expiry", settings.message_expiry_check_interval_s, self.expiry.look_at)
        upkeep.register("quotas", settings.backlog_quota_check_interval_s, self.quotas.look_at)
        upkeep.register("trimming", settings.retention_check_interval_s, trimming.look_at)
        upkeep.register(
            "inactive-subscriptions",
            settings.subscription_expiry_check_interval_s,
            self.inactive.look_at,
        )
