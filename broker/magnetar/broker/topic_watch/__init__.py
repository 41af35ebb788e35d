"""Topic list watchers: clients that subscribe to a pattern are told of topics that come and go."""

from magnetar.broker.topic_watch.followed_lists import FollowedLists
from magnetar.broker.topic_watch.watchers import TopicWatchers

__all__ = ["FollowedLists", "TopicWatchers"]
