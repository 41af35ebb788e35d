"""Non-persistent topics: messages go from producers to whoever has credit, and are kept nowhere."""

from magnetar.broker.topics.non_persistent.topic import NonPersistentTopic
from magnetar.broker.topics.non_persistent.volatile_log import VolatileLog

__all__ = ["NonPersistentTopic", "VolatileLog"]
