"""The consuming side of one connection."""

from magnetar.broker.consuming.consumers import Consuming

__all__ = ["Consuming"]
