"""Reasons why a subscription delivers nothing now: texts for people, codes for programs. Pure."""

from enum import Enum


class Reason(Enum):
    """One reason; the value is the text for people."""

    NO_CONSUMER = "no consumer is connected"
    NOTHING_LEFT = "everything is acknowledged"
    NOTHING_NEW = "all messages are delivered, and wait for acknowledgements"
    NO_PERMITS = "the consumers have asked for no more messages: their queues are full"
    NOT_WRITABLE = "the consumers' connections are full: their clients read too slowly"
    CONSUMERS_UNACKED = "every consumer has too many unacknowledged messages"
    SUBSCRIPTION_UNACKED = "the subscription has too many unacknowledged messages"
    RATE_LIMIT = "the dispatch rate of the topic or subscription is used up"
    DELAYED = "the remaining messages are delayed and not due yet"
    READING = "entries are being read from the bookies"
    UNREADABLE = "entries cannot be read from any bookie; the read is retried"
    DRAINING = "a former consumer has unacknowledged messages of the waiting keys"
    NO_OWNER = "no consumer covers the hash range of the waiting keys"
    LOOK_AHEAD = "too many entries wait for slower consumers of their keys"
    CHOOSING = "the active consumer is being changed"
    PAUSED = "the subscription is being moved, or the topic is closing or no longer owned"

    @property
    def code(self) -> str:
        """Lower-case name, as used in JSON."""
        return self.name.lower()
