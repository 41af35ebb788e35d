"""Whether a broker is well: it may serve, and what it stores it can read back.

`heartbeat.py` writes and reads, `health.py` says what `/health` answers.
"""

from magnetar.broker.cluster.health.health import BrokerHealth

__all__ = ["BrokerHealth"]
