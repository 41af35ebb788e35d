"""The consuming side of one connection."""

from magnetar.broker.protocol.consuming.consumers import Consuming

__all__ = ["Consuming"]
