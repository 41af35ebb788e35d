"""The offset of a streaming query, as Spark logs it in the checkpoint. Pure.

It has `{topic: "ledger:entry"}` for each topic, partition or segment, and further facts that the
next process of the query needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from magnetar.arrow.stored.offsets import parse_id, shown_id
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.errors import OffsetError

SLICES_KEY = "sliceEntries"
SUBSCRIPTION_KEY = "subscription"
"""Key of the subscription that retains what the query may still need, beside the topics of an
offset. With it a restarted query finds its own subscription."""
LEFT_KEY = "entriesLeft"
REMOVED_KEY = "removedThrough"
JOINED_KEY = "joined"
ENDED_KEY = "endedSegments"
EPOCHS_KEY = "layoutEpochs"


@dataclass(frozen=True)
class QueryOffset:
    """The logged state of a query: how far it has read, and the subscription that retains the
    rest."""

    topics: Mapping[str, MessageId]
    subscription: str = ""
    slice_entries: Mapping[str, int] = field(default_factory=dict)
    """Entries per slice of the micro-batch that ends here, by topic; see
    `planning.slice_entries`."""
    entries_left: Mapping[str, int] = field(default_factory=dict)
    """Number of entries after the offset in its ledger, for topics with any. If the ledger is
    deleted, this is the only record of them."""
    removed_through: Mapping[str, int] = field(default_factory=dict)
    """The last ledger that had been trimmed by then, for topics that were not read yet; -1 if none.
    A later trim is a loss. Segments that begin later are included."""

    joined: Mapping[str, int] = field(default_factory=dict)
    """Topic -> number of the shared task that reads it in the micro-batch that ends here; see
    `planning.joined_topics`. Empty in a checkpoint from before that was logged."""
    ended: frozenset[str] = frozenset()
    """Segments that were read to their ends, and stay named until their children have begun."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Scalable topic -> epoch of its layout then; an older layout is not accepted."""

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "topics": {name: shown_id(at) for name, at in sorted(self.topics.items())},
            SUBSCRIPTION_KEY: self.subscription,
            SLICES_KEY: dict(sorted(self.slice_entries.items())),
            LEFT_KEY: dict(sorted(self.entries_left.items())),
            REMOVED_KEY: dict(sorted(self.removed_through.items())),
            JOINED_KEY: dict(sorted(self.joined.items())),
        }
        # Offsets without scalable topics stay as older versions wrote them, byte for byte.
        if self.epochs:
            found[EPOCHS_KEY] = dict(sorted(self.epochs.items()))
        if self.ended:
            found[ENDED_KEY] = sorted(self.ended)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> "QueryOffset":
        """Parse an offset.

        Raises:
            OffsetError: the offset is not from this source.
        """
        topics, subscription = found.get("topics"), found.get(SUBSCRIPTION_KEY, "")
        cuts, left = found.get(SLICES_KEY, {}), found.get(LEFT_KEY, {})
        removed, joined = found.get(REMOVED_KEY, {}), found.get(JOINED_KEY, {})
        ended, epochs = found.get(ENDED_KEY, []), found.get(EPOCHS_KEY, {})
        if (
            not isinstance(topics, dict)
            or not isinstance(subscription, str)
            or not _are_numbers(cuts, at_least=1)
            or not _are_numbers(left, at_least=1)
            or not _are_numbers(removed, at_least=-1)
            or not _are_numbers(joined, at_least=0)
            or not _are_numbers(epochs, at_least=0)
            or not _are_names(ended)
        ):
            raise OffsetError(f"the checkpoint's offset is not from this source: {found!r:.200}")
        read = {name: parse_id(str(at)) for name, at in topics.items()}
        return cls(read, subscription, cuts, left, removed, joined, frozenset(ended), epochs)


def _are_numbers(found: object, *, at_least: int) -> TypeGuard[dict[str, int]]:
    return isinstance(found, dict) and all(
        isinstance(each, int) and each >= at_least for each in found.values()
    )


def _are_names(found: object) -> TypeGuard[list[str]]:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)
