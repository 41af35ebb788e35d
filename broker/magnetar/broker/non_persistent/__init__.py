"""Non-persistent topics: messages go from producers to whoever has credit, and are kept nowhere."""

from magnetar.broker.non_persistent.topic import NonPersistentTopic
from magnetar.broker.non_persistent.volatile_log import VolatileLog

__all__ = ["NonPersistentTopic", "VolatileLog"]
