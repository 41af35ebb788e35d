"""The broker: Pulsar's binary protocol on top of managed logs and cursors."""

from magnetar.broker.base.errors import BrokerError, ListenError, RequestError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.broker import Broker

__all__ = ["Broker", "BrokerError", "BrokerSettings", "ListenError", "RequestError"]
