"""Why a compaction ended without a result."""

from magnetar.broker.base.errors import BrokerError


class CompactionError(BrokerError):
    """A compaction has failed; the one before it still counts."""


class TooManyKeysError(CompactionError):
    """The keys do not fit into the bound on memory."""


class CompactionStoppedError(CompactionError):
    """The topic is closed here, or moves: its next owner compacts it, when that is due."""
