"""Whether a broker is well: it may serve, and what it stores it can read back.

`heartbeat.py` writes and reads, `health.py` says what `/health` answers.
"""

from magnetar.broker.health.health import BrokerHealth
from magnetar.broker.health.settings import HealthSettings

__all__ = ["BrokerHealth", "HealthSettings"]
