"""The topics of this broker: loaded on first use, closed, moved, removed.

Topics (registry.py)            what the rest of the broker sees
  TopicLoader (loading.py)      once per name, with patience
    TopicOpener (opening.py)    log, index, cursors: what a topic is made of
  TopicEnds (ending.py)         closed, handed over, dropped
  TopicRemoval (removal.py)     gone for good
  TopicTable (table.py)         what is where in its life; all of the above share it
"""

from magnetar.broker.topics.registry import Topics

__all__ = ["Topics"]
