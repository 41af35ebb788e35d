"""The broker: Pulsar's binary protocol on top of managed logs and cursors."""

from magnetar.broker.broker import Broker
from magnetar.broker.errors import BrokerError, ListenError, RequestError
from magnetar.broker.settings import BrokerSettings

__all__ = ["Broker", "BrokerError", "BrokerSettings", "ListenError", "RequestError"]
