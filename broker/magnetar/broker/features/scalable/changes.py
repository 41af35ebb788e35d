"""Changes of a scalable topic's layout: creation, split, merge, migration, deletion. Pure.

A split or merge has two writes, each of which is one compare-and-set of the record:

    begin ──> the record names the change; layout and epoch are as before
          ... children are made with the parents' subscriptions, the parents are sealed ...
    commit ─> the parents are sealed, the children active, the epoch is one higher

Between them the record contains everything that is needed to go on, so any broker can
(`scalable_topics.py`). A commit is correct only once the parents accept no more messages. Each
function takes a valid record, and returns another valid one or refuses. Source: sheet of Pulsar 5,
sections 2.3 and 8.3.
"""

from collections.abc import Collection, Mapping, Sequence

from magnetar.broker.base.errors import (
    ConflictError,
    NotAllowedError,
    NotThereError,
    TopicConflictError,
    TopicNotFoundError,
)
from magnetar.broker.features.scalable.layout import ENTRY_BUCKETS_MAX, RING
from magnetar.broker.features.scalable.record import (
    FIRST_EPOCH,
    LEGACY_PLAIN,
    ChangeKind,
    HoldRecord,
    LastChange,
    PendingChange,
    ScalableTopicRecord,
    SegmentRecord,
    SegmentState,
    fault_of,
)
from magnetar.ledger.errors import InvariantError
from magnetar.sdk.wire import TopicName

RECORD_BYTES_MAX = 900_000
"""Largest record after a change, in bytes: room for some thousands of segments. It is below the
limit of the metadata store, which must not refuse the commit when the parents are already sealed.
"""
HOLDS_MAX = 256
"""Most holds of a topic at one time."""
HOLDS_BYTES_MAX = 64_000
"""Most bytes of all holds of a topic, since names of subscriptions may be long. A pending change
must still fit: this is less than what `RECORD_BYTES_MAX` leaves of a node."""
HOLD_MS_MAX = 60_000
"""Age in ms from which a hold may be dropped to make room, if there are too many."""


def new_topic(
    segments: int,
    *,
    now_ms: int,
    segments_max: int,
    properties: Mapping[str, str] | None = None,
    entry_buckets: int = 1,
) -> ScalableTopicRecord:
    """Return a topic with this many segments of equal width; the last one has the remainder.

    `entry_buckets`: of all segments together; each has at least one.

    Raises:
        NotAllowedError: the number of segments is out of bounds.
    """
    if not 1 <= segments <= min(segments_max, RING):
        raise NotAllowedError(
            f"a topic cannot have {segments} segments: from 1 to {min(segments_max, RING)} "
            "(scalable_segments_max of the broker)"
        )
    width = RING // segments
    made = tuple(
        SegmentRecord(
            id=number,
            hash_start=number * width,
            hash_end=RING - 1 if number == segments - 1 else (number + 1) * width - 1,
            created_epoch=FIRST_EPOCH,
            created_ms=now_ms,
            entry_buckets=max(1, entry_buckets // segments),
        )
        for number in range(segments)
    )
    return ScalableTopicRecord(
        epoch=FIRST_EPOCH,
        next_segment_id=segments,
        segments=made,
        created_ms=now_ms,
        properties=dict(properties or {}),
    )


def begin_split(
    topic: TopicName,
    record: ScalableTopicRecord | None,
    segment_id: int,
    *,
    now_ms: int,
    segments_max: int,
    at: int | None = None,
) -> ScalableTopicRecord:
    """Begin to divide a segment in two. `at`: first hash of the second; None: the middle.

    Raises:
        TopicNotFoundError, NotThereError: there is no such topic, or no such segment.
        ConflictError: another change is under way; a retry helps.
        NotAllowedError: it is sealed, cannot be divided there, or there are too many.
    """
    record = _changeable(topic, record)
    parent = _active(topic, record, segment_id)
    middle = parent.hash_start + (parent.hash_end - parent.hash_start) // 2 + 1
    at = middle if at is None else at
    if not parent.hash_start < at <= parent.hash_end:
        raise NotAllowedError(
            f"segment {segment_id} of {topic} has hashes {parent.hash_start} to "
            f"{parent.hash_end}: it cannot be split at {at}"
        )
    if len(record.active) >= segments_max:
        raise NotAllowedError(
            f"{topic} has {len(record.active)} active segments, and the limit is {segments_max} "
            "(scalable_segments_max of the broker)"
        )
    ranges = ((parent.hash_start, at - 1), (at, parent.hash_end))
    buckets = max(1, parent.entry_buckets // 2)
    return _begun(topic, record, ChangeKind.SPLIT, (segment_id,), ranges, now_ms, buckets=buckets)


def begin_migration(
    topic: TopicName,
    record: ScalableTopicRecord | None,
    partitions: int,
    *,
    now_ms: int,
    segments_max: int,
    entry_buckets: int = 1,
) -> ScalableTopicRecord:
    """Begin to make a topic with this many partitions scalable; 0 for a plain one.

    A migration that has begun stays as it is. The epoch is above that of the synthetic layout,
    which clients already know.

    Raises:
        TopicConflictError: the topic is scalable.
        NotAllowedError: it has more partitions than a topic may have segments.
    """
    if record is not None and record.is_migrating and not record.is_deleted:
        return record
    if record is not None:
        what = "is being deleted" if record.is_deleted else "is a scalable topic already"
        raise TopicConflictError(f"{topic} {what}: it cannot be migrated")
    new = new_topic(
        max(1, partitions), now_ms=now_ms, segments_max=segments_max, entry_buckets=entry_buckets
    )
    count = len(new.segments)
    epoch = partitions + FIRST_EPOCH
    legacy = tuple(
        SegmentRecord(
            id=number,
            hash_start=0,
            hash_end=RING - 1,
            created_epoch=FIRST_EPOCH,
            created_ms=now_ms,
            legacy=number if partitions else LEGACY_PLAIN,
        )
        for number in range(count)
    )
    parents = tuple(each.id for each in legacy)
    children = tuple(
        each.model_copy(
            update={"id": count + each.id, "parents": parents, "created_epoch": epoch + 1}
        )
        for each in new.segments
    )
    change = PendingChange(
        kind=ChangeKind.MIGRATION, parents=parents, children=children, begun_ms=now_ms
    )
    begun = ScalableTopicRecord(
        epoch=epoch,
        next_segment_id=2 * count,
        segments=legacy,
        created_ms=now_ms,
        change=change,
    )
    _check_size(topic, begun, change)
    return begun


def begin_merge(
    topic: TopicName,
    record: ScalableTopicRecord | None,
    one: int,
    other: int,
    *,
    now_ms: int,
    entry_buckets: int = 1,
) -> ScalableTopicRecord:
    """Begin to merge two adjacent segments.

    The new one has the entry buckets of both. If neither has more than `entry_buckets`, the default
    of a topic, the new one has no more than that either. Otherwise each split and merge would leave
    the topic with more buckets than before.

    Raises:
        TopicNotFoundError, NotThereError: there is no such topic, or no such segment.
        ConflictError: another change is under way; a retry helps.
        NotAllowedError: one of them is sealed, or they are not adjacent.
    """
    record = _changeable(topic, record)
    both = sorted(
        (_active(topic, record, one), _active(topic, record, other)),
        key=lambda each: each.hash_start,
    )
    first, second = both
    if first.hash_end + 1 != second.hash_start:
        raise NotAllowedError(
            f"segments {one} and {other} of {topic} do not lie side by side: they cannot be merged"
        )
    ranges = ((first.hash_start, second.hash_end),)
    buckets = min(first.entry_buckets + second.entry_buckets, ENTRY_BUCKETS_MAX)
    if max(first.entry_buckets, second.entry_buckets) <= entry_buckets:
        buckets = min(buckets, entry_buckets)
    parents = first.id, second.id
    return _begun(topic, record, ChangeKind.MERGE, parents, ranges, now_ms, buckets=buckets)


def begin_rebucket(
    topic: TopicName,
    record: ScalableTopicRecord | None,
    segment_id: int,
    buckets: int,
    *,
    now_ms: int,
) -> ScalableTopicRecord:
    """Begin to replace a segment by one with the same hashes and this many entry buckets.

    Raises:
        TopicNotFoundError, NotThereError: there is no such topic, or no such segment.
        ConflictError: another change is under way; a retry helps.
        NotAllowedError: it is sealed, already has this number, or cannot have it.
    """
    record = _changeable(topic, record)
    parent = _active(topic, record, segment_id)
    if not 1 <= buckets <= ENTRY_BUCKETS_MAX:
        raise NotAllowedError(
            f"segment {segment_id} of {topic} cannot have {buckets} entry buckets: from 1 to "
            f"{ENTRY_BUCKETS_MAX}"
        )
    if buckets == parent.entry_buckets:
        raise NotAllowedError(
            f"segment {segment_id} of {topic} has {buckets} entry buckets already"
        )
    ranges = ((parent.hash_start, parent.hash_end),)
    return _begun(
        topic, record, ChangeKind.REBUCKET, (segment_id,), ranges, now_ms, buckets=buckets
    )


def commit(
    record: ScalableTopicRecord | None,
    change: PendingChange,
    *,
    now_ms: int,
    stalled_ms: int = 0,
) -> ScalableTopicRecord | None:
    """Seal the parents, and put the children in their place.

    A record that does not name this change stays as it is: another broker has finished the change,
    or the topic is being deleted. `stalled_ms`: how long the keys of the parents could not be
    published.
    """
    if record is None or record.change != change or record.is_deleted:
        return record
    epoch = record.epoch + 1
    children = tuple(
        child.model_copy(update={"created_epoch": epoch, "created_ms": now_ms})
        for child in change.children
    )
    seal = {
        "state": SegmentState.SEALED,
        "children": tuple(child.id for child in children),
        "sealed_epoch": epoch,
        "sealed_ms": now_ms,
    }
    before = tuple(
        each.model_copy(update=seal) if each.id in change.parents else each
        for each in record.segments
    )
    update = {
        "epoch": epoch,
        "segments": (*before, *children),
        "change": None,
        "splits": record.splits + (change.kind is ChangeKind.SPLIT),
        "merges": record.merges + (change.kind is ChangeKind.MERGE),
        "last_change": LastChange(
            kind=change.kind,
            parents=change.parents,
            begun_ms=change.begun_ms,
            ended_ms=now_ms,
            stalled_ms=stalled_ms,
        ),
    }
    return _checked(record, update)


def prune(
    record: ScalableTopicRecord | None, segment_ids: Collection[int]
) -> ScalableTopicRecord | None:
    """Take sealed segments out of the layout; their logs are deleted afterwards.

    Segments that are not sealed, or have a parent in the layout, stay. While a change is under way,
    all stay, since its parents may be among them.
    """
    if record is None or record.is_deleted or record.change is not None:
        return record
    gone = tuple(each for each in prunable(record) if each.id in segment_ids)
    if not gone:
        return record
    left = tuple(each for each in record.segments if each not in gone)
    update = {
        "epoch": record.epoch + 1,
        "segments": left,
        "pruned": (*record.pruned, *gone),
    }
    return _checked(record, update)


def prunable(record: ScalableTopicRecord) -> list[SegmentRecord]:
    """Return the sealed segments without parents in the layout, oldest first. Younger ones wait for
    them, so that no client finds a gap between a segment and its descendants."""
    known = {each.id for each in record.segments}
    return [each for each in record.segments if each.is_sealed and known.isdisjoint(each.parents)]


def forget_pruned(
    record: ScalableTopicRecord | None, segment_ids: Collection[int]
) -> ScalableTopicRecord | None:
    """Remove pruned segments whose logs are deleted."""
    if record is None:
        return None
    left = tuple(each for each in record.pruned if each.id not in segment_ids)
    return record if left == record.pruned else _checked(record, {"pruned": left})


def begin_hold(
    topic: TopicName,
    record: ScalableTopicRecord | None,
    subscription: str,
    segment_id: int | None,
    *,
    now_ms: int,
) -> ScalableTopicRecord:
    """Add a hold for a subscription that is about to move back on one segment, or on all if None.

    The hold is the last one of the record, and its id is the new number of seeks.

    Raises:
        TopicNotFoundError
        ConflictError: too many seeks are under way; a retry helps.
    """
    if record is None or record.is_deleted:
        raise TopicNotFoundError(f"Scalable topic {topic} not found")
    begun = HoldRecord(
        id=record.seeks + 1, subscription=subscription, segment=segment_id, begun_ms=now_ms
    )
    holds = (*record.holds, begun)
    if not _fit(holds):  # Their brokers may be gone. Clocks may be wrong both ways.
        holds = tuple(each for each in holds if abs(now_ms - each.begun_ms) < HOLD_MS_MAX)
    if not _fit(holds):
        raise ConflictError(
            f"{len(holds) - 1} seeks of subscriptions of {topic} are under way, and there is room "
            f"for {HOLDS_MAX} of {HOLDS_BYTES_MAX} bytes: try again"
        )
    return _checked(record, {"seeks": begun.id, "holds": holds})


def _fit(holds: Sequence[HoldRecord]) -> bool:
    size_bytes = sum(len(each.model_dump_json().encode()) for each in holds)
    return len(holds) <= HOLDS_MAX and size_bytes <= HOLDS_BYTES_MAX


def end_hold(
    record: ScalableTopicRecord | None, hold_id: int, *, created_ms: int
) -> ScalableTopicRecord | None:
    """Remove a hold, whether or not the subscription has moved back. `created_ms`: when the topic
    of the hold was created; a later topic of its name has other holds."""
    if record is None or record.created_ms != created_ms:
        return record
    left = tuple(each for each in record.holds if each.id != hold_id)
    return record if left == record.holds else _checked(record, {"holds": left})


def mark_deleted(topic: TopicName, record: ScalableTopicRecord | None) -> ScalableTopicRecord:
    """Mark a topic as being deleted, so that nothing of it appears any more. A pending change stays
    named, so that what it has made is deleted, too.

    Raises:
        TopicNotFoundError
    """
    if record is None:
        raise TopicNotFoundError(f"Scalable topic {topic} not found")
    return _checked(record, {"is_deleted": True, "gives_way": False})


def give_way(record: ScalableTopicRecord | None, *, created_ms: int) -> ScalableTopicRecord | None:
    """Hide a topic until it is clear whether it stays. One that is being deleted, or that was
    created at another time, is left as it is."""
    if record is None or record.created_ms != created_ms or record.is_deleted:
        return record
    return _checked(record, {"is_deleted": True, "gives_way": True})


def settle(
    record: ScalableTopicRecord | None, *, created_ms: int, stays: bool
) -> ScalableTopicRecord | None:
    """Show a topic again that gives way, or remove its record. If that is decided already, or the
    topic is being deleted, the record is left as it is."""
    if record is None or record.created_ms != created_ms or not record.gives_way:
        return record
    return _checked(record, {"is_deleted": False, "gives_way": False}) if stays else None


def _changeable(topic: TopicName, record: ScalableTopicRecord | None) -> ScalableTopicRecord:
    if record is None:
        raise TopicNotFoundError(f"Scalable topic {topic} not found")
    if record.is_deleted:
        raise TopicNotFoundError(f"{topic} is being deleted")
    if record.change is not None:
        kind, parents = record.change.kind.lower(), record.change.parents
        raise ConflictError(
            f"a {kind} of {', '.join(map(str, parents))} of {topic} is under way: try again"
        )
    return record


def _active(topic: TopicName, record: ScalableTopicRecord, segment_id: int) -> SegmentRecord:
    found = record.find(segment_id)
    if found is None:
        raise NotThereError(f"{topic} has no segment {segment_id}")
    if found.is_sealed:
        raise NotAllowedError(
            f"segment {segment_id} of {topic} is sealed; its children are "
            f"{', '.join(map(str, found.children))}"
        )
    return found


def _begun(
    topic: TopicName,
    record: ScalableTopicRecord,
    kind: ChangeKind,
    parents: tuple[int, ...],
    ranges: tuple[tuple[int, int], ...],
    now_ms: int,
    *,
    buckets: int = 1,
) -> ScalableTopicRecord:
    """Return the record with a change that has begun.

    Raises:
        NotAllowedError: the record becomes too large.
    """
    first_id = record.next_segment_id
    children = tuple(
        SegmentRecord(
            id=first_id + number,
            hash_start=start,
            hash_end=end,
            parents=parents,
            created_epoch=record.epoch + 1,
            created_ms=now_ms,
            entry_buckets=buckets,
        )
        for number, (start, end) in enumerate(ranges)
    )
    change = PendingChange(kind=kind, parents=parents, children=children, begun_ms=now_ms)
    begun = _checked(record, {"change": change, "next_segment_id": first_id + len(ranges)})
    _check_size(topic, begun, change)
    return begun


def _check_size(topic: TopicName, begun: ScalableTopicRecord, change: PendingChange) -> None:
    """Refuse a change that could not be committed.

    Raises:
        NotAllowedError
    """
    done = commit(begun, change, now_ms=change.begun_ms)
    assert done is not None
    size_bytes = len(done.encode())
    if size_bytes > RECORD_BYTES_MAX:
        raise NotAllowedError(
            f"the record of {topic} would have {size_bytes} bytes, and the limit is "
            f"{RECORD_BYTES_MAX}: it has {len(begun.segments)} segments; sealed ones leave it when "
            "all subscriptions are done with them and retention is over"
        )


def _checked(record: ScalableTopicRecord, update: Mapping[str, object]) -> ScalableTopicRecord:
    """Return the record with an update. Its rules hold, so that only valid records are stored."""
    after = record.model_copy(update=dict(update))
    fault = fault_of(after)
    if fault:
        raise InvariantError(f"a change of a scalable topic would store an invalid record: {fault}")
    return after
