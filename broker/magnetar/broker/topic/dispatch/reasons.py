"""Why a subscription delivers nothing just now: words for people, names for programs. Pure."""

from enum import Enum


class Reason(Enum):
    """One reason; the value is what people read."""

    NO_CONSUMER = "no consumer is connected"
    NOTHING_LEFT = "everything is acknowledged"
    NOTHING_NEW = "everything was delivered, and waits for acknowledgements"
    NO_PERMITS = "the consumers have asked for no more messages: their queues are full"
    NOT_WRITABLE = "the consumers' connections take no more bytes just now"
    CONSUMERS_UNACKED = "every consumer has too many unacknowledged messages"
    SUBSCRIPTION_UNACKED = "the subscription has too many unacknowledged messages"
    RATE_LIMIT = "the dispatch rate of the topic or subscription is used up"
    DELAYED = "what is left is delayed, and not due"
    READING = "entries are being read from the bookies"
    UNREADABLE = "entries cannot be read from any bookie; it is tried again"
    DRAINING = "what waits belongs to keys of which a former consumer has unacknowledged messages"
    NO_OWNER = "what waits belongs to keys whose hash no consumer has named"
    LOOK_AHEAD = "too many entries wait for slower consumers of their keys"
    CHOOSING = "the active consumer is being changed"
    PAUSED = "the subscription is being moved, or the topic is closing or no longer owned"

    @property
    def code(self) -> str:
        """The name in lower case, as it is in JSON."""
        return self.name.lower()
