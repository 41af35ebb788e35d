"""The topics of this broker: loaded at their first use, closed, moved, deleted.

Topics (registry.py)            the interface for the rest of the broker
  TopicLoader (loading.py)      loads each name once, with retries
    TopicOpener (opening.py)    opens the parts of a topic: log, index, cursors
  TopicEnds (ending.py)         closes topics, hands them over, drops them
  TopicRemoval (removal.py)     deletes topics for good
  TopicTable (table.py)         the life cycle state of each topic, shared by all of the above
"""

from magnetar.broker.topics.registry import Topics

__all__ = ["Topics"]
