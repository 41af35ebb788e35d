"""How far each topic is archived in a table: the watermark, which every snapshot carries. Pure.

A `Mark` names the last archived entry of a topic or partition. All entries before it are archived,
and none after it. The watermark of a table is the marks of all its topics. It is stored in the
summary of the snapshot that adds the rows, so both change in one commit or not at all
(docs/formats/iceberg-archive.md).

This module does not decide what to read. `check_kept` checks that the entries still to be read
exist.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from magnetar.arrow.errors import DataLossError, TableError
from magnetar.arrow.stored.offsets import BEFORE_FIRST
from magnetar.arrow.stored.planning import entries_between, entries_left
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.sdk.message_id import MessageId

WATERMARK_TOPICS_MAX = 10_000
"""Most topics and partitions of one table. Each snapshot repeats them all, some 60 bytes a
topic."""

WATERMARKS_BYTES_MAX = 32 << 20
"""Most bytes of the watermarks of all snapshots together, about. Each commit reads and writes
them."""

MARKS_PRUNED_ABOVE = 1_000
"""Number of marks above which those of deleted topics leave the watermark. A small watermark keeps
them: a topic of the same name with older ledgers, as in another cluster, is then refused."""

_HINT = "start the job with --allow-loss to go on with what is left"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The last entry of a topic that is archived."""

    ledger_id: int
    entry_id: int
    entries_left: int = 0
    """Entries after it in its ledger when the mark was made. If the ledger is deleted, this is the
    only record of them."""

    @property
    def place(self) -> tuple[int, int]:
        return self.ledger_id, self.entry_id

    @property
    def offset(self) -> MessageId:
        return MessageId(self.ledger_id, self.entry_id)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


Watermark = Mapping[str, Mark]
"""Topic or partition -> its mark."""


def encode_watermark(marks: Watermark) -> str:
    """Encode the watermark as JSON: `{topic: "ledger:entry"}`, or `"ledger:entry+left"`.

    Raises:
        TableError: more than WATERMARK_TOPICS_MAX topics.
    """
    if len(marks) > WATERMARK_TOPICS_MAX:
        raise TableError(
            f"the table would hold {len(marks)} topics and partitions, and one table holds at most "
            f"{WATERMARK_TOPICS_MAX}: archive them to several tables"
        )
    return json.dumps(
        {
            topic: f"{mark}+{mark.entries_left}" if mark.entries_left else str(mark)
            for topic, mark in sorted(marks.items())
        },
        separators=(",", ":"),
    )


def parse_watermark(text: str) -> dict[str, Mark]:
    """Decode a watermark that `encode_watermark` wrote.

    Raises:
        TableError: the text is not such a watermark.
    """
    try:
        found = json.loads(text)
        return {str(topic): _parse_mark(mark) for topic, mark in found.items()}
    except (ValueError, AttributeError) as error:
        raise TableError(
            f"the table's watermark cannot be read ({error}): {text[:100]!r}; it was written by "
            "something else, or by a newer release"
        ) from error


def _parse_mark(text: object) -> Mark:
    place, _, left = str(text).partition("+")
    ledger_id, entry_id = (int(each) for each in place.split(":"))
    return Mark(ledger_id, entry_id, int(left or 0))


def merged(one: Watermark, other: Watermark) -> dict[str, Mark]:
    """Return the farther mark of each topic. Marks only move forward."""
    result = dict(one)
    for topic, mark in other.items():
        if topic not in result or result[topic].place < mark.place:
            result[topic] = mark
    return result


def snapshots_max(marks: Watermark, *, most: int) -> int:
    """Return how many snapshots a table may keep, at most `most`, as each repeats the watermark."""
    return min(most, WATERMARKS_BYTES_MAX // len(encode_watermark(marks)))


def pruned(marks: Watermark, deleted: Collection[str], *, allows_loss: bool) -> dict[str, Mark]:
    """Return the marks without those of deleted topics, if there are many marks.

    Otherwise the topics of a table's whole life would have to fit into one watermark. A topic that
    is created again has new ledgers, and is archived from its beginning.

    Args:
        deleted: as `DeletedTopics` has found them.
        allows_loss: whether marks with entries left after them, which are lost, may leave too.
    """
    if len(marks) <= MARKS_PRUNED_ABOVE:
        return dict(marks)
    return {
        topic: mark
        for topic, mark in marks.items()
        if topic not in deleted or (mark.entries_left > 0 and not allows_loss)
    }


class DeletedTopics:
    """The topics with marks that were missing in two looks in a row.

    One look is not enough: if a topic is missing in it by mistake, as of a server that is behind,
    and loses its mark, all of it would be archived a second time.
    """

    def __init__(self) -> None:
        self._missing: set[str] | None = None
        """Topics that were missing in the last look; None before the first one."""
        self._before: set[str] | None = None
        """Topics that were missing in the look before that; None if there was none."""

    def look(
        self,
        marks: Watermark,
        states: Mapping[str, TopicState],
        selects: Callable[[str], bool],
        *,
        allows_loss: bool,
    ) -> None:
        """Note which topics are missing in a new look, of those whose marks may leave.

        Args:
            marks: of all topics that are archived.
            states: all topics that exist, of those that are selected.
            selects: whether the job archives a topic. Nothing is known of other topics.
            allows_loss: as for `pruned`.
        """
        self._before, self._missing = self._missing, set()
        if len(marks) > MARKS_PRUNED_ABOVE:
            kept = pruned(marks, marks, allows_loss=allows_loss)
            self._missing = {
                topic for topic in _not_there(marks, states) if topic not in kept and selects(topic)
            }

    def find(self, look_again: Callable[[], Mapping[str, TopicState]]) -> set[str]:
        """Return the topics that were missing in the last two looks.

        To be called just before their marks leave. A job that has looked once looks again then: two
        looks right after each other would see the same mistake.

        Args:
            look_again: returns new states; called if there was one look only, and topics were
                missing in it.
        """
        missing = self._missing or set()
        if self._before is None:
            self._before = _not_there(missing, look_again()) if missing else set()
        return missing & self._before


def _not_there(topics: Iterable[str], states: Mapping[str, TopicState]) -> set[str]:
    there = {topic for topic, state in states.items() if state.is_there}
    return set(topics) - there


def is_archived(marks: Watermark, topic: str, *, ledger_id: int, entry_id: int) -> bool:
    """Return whether a watermark covers an entry."""
    mark = marks.get(topic)
    return mark is not None and (ledger_id, entry_id) <= mark.place


def start_of(marks: Watermark, topic: str) -> MessageId:
    """Return the last entry that is *not* read any more, as an offset of the source."""
    mark = marks.get(topic)
    return BEFORE_FIRST if mark is None else mark.offset


def mark_at(state: TopicState, place: tuple[int, int]) -> Mark:
    """Return the mark of an entry (ledger, entry), with the entries that remain after it now."""
    ledger_id, entry_id = place
    return Mark(ledger_id, entry_id, entries_left(state, MessageId(ledger_id, entry_id)))


def lag_of(states: Mapping[str, TopicState], marks: Watermark) -> tuple[int, int]:
    """Return the number of entries after the watermark, and approximately their bytes."""
    entries = size_bytes = 0
    for topic, state in states.items():
        count, size = entries_between(state, start_of(marks, topic), state.end)
        entries, size_bytes = entries + count, size_bytes + size
    return entries, size_bytes


def check_kept(
    topic: str, state: TopicState | None, mark: Mark, stands_at: MessageId | None
) -> None:
    """Check that no entry after the mark is gone.

    The topic was looked at later than the table. Another archiver may have continued in between:
    then an apparent loss is after a mark that the table does not have any more.

    Args:
        state: None if the topic no longer exists.
        stands_at: position of the archive's subscription; None if the subscription is gone.

    Raises:
        DataLossError: messages were deleted before they were archived, or may have been.
    """
    if state is None or not state.is_there:
        if mark.entries_left:
            raise DataLossError(
                f"{topic}: the topic was deleted; it is archived up to {mark}, and "
                f"{mark.entries_left} later entries are lost: {_HINT}"
            )
        return
    if state.removed_through > mark.ledger_id:
        raise DataLossError(
            f"{topic}: ledger {state.removed_through} was trimmed, and the topic is archived up to "
            f"{mark}: {_HINT}"
        )
    if state.ledgers and (state.end.ledger_id, state.end.entry_id) < mark.place:
        raise DataLossError(
            f"{topic}: it ends at {state.end.ledger_id}:{state.end.entry_id}, and is archived up "
            f"to {mark}: it is another topic of the same name; archive it to another table"
        )
    if any(each.ledger_id == mark.ledger_id for each in state.ledgers):
        return
    # Its ledger was trimmed, as it should be if all of it is archived. Then the subscription stands
    # at the mark, or before the next ledger: only this job moves it.
    if mark.entries_left:
        raise DataLossError(
            f"{topic}: ledger {mark.ledger_id} was trimmed, and the topic is archived up to {mark}:"
            f" {mark.entries_left} later entries are lost: {_HINT}"
        )
    if stands_at is None or (
        stands_at.entry_id >= 0 and (stands_at.ledger_id, stands_at.entry_id) > mark.place
    ):
        raise DataLossError(
            f"{topic}: ledger {mark.ledger_id} was trimmed, the topic is archived up to {mark}, "
            "and the archive's subscription was deleted or moved by others (expiry, a quota): "
            f"later entries may be lost: {_HINT}"
        )
