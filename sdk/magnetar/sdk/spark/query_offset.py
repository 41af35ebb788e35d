"""The offset of a streaming query, as Spark logs it in the checkpoint. Pure.

It is `{topic: "ledger:entry"}` per topic, or partition or segment of one, and what the next process
of the query has to know beside that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from magnetar.arrow.stored.offsets import parse_id, shown_id
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.errors import OffsetError

SLICES_KEY = "sliceEntries"
SUBSCRIPTION_KEY = "subscription"
"""Beside the topics of an offset: the subscription that holds what the query may still need. It is
part of the offset so that a restarted query finds its own."""
LEFT_KEY = "entriesLeft"
REMOVED_KEY = "removedThrough"
JOINED_KEY = "joined"
ENDED_KEY = "endedSegments"
EPOCHS_KEY = "layoutEpochs"


@dataclass(frozen=True)
class QueryOffset:
    """What Spark logs of a query: how far it has read, and who holds the rest."""

    topics: Mapping[str, MessageId]
    subscription: str = ""
    slice_entries: Mapping[str, int] = field(default_factory=dict)
    """How the micro-batch that ends here is cut, by topic; see `planning.slice_entries`."""
    entries_left: Mapping[str, int] = field(default_factory=dict)
    """How many entries were behind the offset in its ledger, of topics that had any: with the
    ledger they are gone, and nothing else tells of them then."""
    removed_through: Mapping[str, int] = field(default_factory=dict)
    """The last ledger that had been removed by then, of topics of which nothing has been read; -1:
    none. One that goes later is a loss. Segments that are begun later are among them."""

    joined: Mapping[str, int] = field(default_factory=dict)
    """Topic -> number of the task that reads it with others in the micro-batch that ends here; see
    `planning.joined_topics`. Empty in a checkpoint from before that was logged."""
    ended: frozenset[str] = frozenset()
    """Segments that were read to their ends, and are named until what came of them is begun."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Scalable topic -> epoch of its layout then; no older one is taken."""

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "topics": {name: shown_id(at) for name, at in sorted(self.topics.items())},
            SUBSCRIPTION_KEY: self.subscription,
            SLICES_KEY: dict(sorted(self.slice_entries.items())),
            LEFT_KEY: dict(sorted(self.entries_left.items())),
            REMOVED_KEY: dict(sorted(self.removed_through.items())),
            JOINED_KEY: dict(sorted(self.joined.items())),
        }
        # Offsets of other topics stay as older versions wrote them, to the byte.
        if self.epochs:
            found[EPOCHS_KEY] = dict(sorted(self.epochs.items()))
        if self.ended:
            found[ENDED_KEY] = sorted(self.ended)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> "QueryOffset":
        """
        Raises:
            OffsetError: no offset of this source.
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
