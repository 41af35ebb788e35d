"""Sealed segments that nobody needs leave the record, and their logs are deleted."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.broker.base.errors import ServiceNotReadyError
from magnetar.broker.features.scalable import changes
from magnetar.broker.features.scalable.record import ScalableTopicRecord, fault_of
from magnetar.broker.policies.model import decode
from magnetar.ledger.metadata.url import open_store
from tests.unit.broker.scalable.test_changes import merge, new, split
from tests.unit.broker.scalable.test_scalable_topics import TOPIC, Scene

_GENERATIONS = 1_000
_RECORD_BYTES_MAX = 4_000


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = await open_store(f"embedded:{tmp_path / 'metadata.db'}")
    made = Scene(store)
    await made.create()
    await made.topics.split(TOPIC, 0)
    await made.topics.split(TOPIC, 1)
    yield made
    await store.close()


async def prune(scene: Scene, *used_up: int) -> None:
    """One look, with these segments used up."""
    record = await scene.record()
    known = [each for each in record.segments if each.id in used_up]
    scene.owners.used_up |= {each.name_in(TOPIC) for each in known}
    await scene.topics.prune(TOPIC, record)


def ids(record: ScalableTopicRecord) -> list[int]:
    return [each.id for each in record.segments]


def test_a_sealed_segment_goes_before_its_children_and_leaves_a_valid_record() -> None:
    record = split(split(new(), 0), 1)
    assert [each.id for each in changes.prunable(record)] == [0]
    after = changes.prune(record, {0, 1})
    assert after is not None
    assert (ids(after), after.epoch) == ([1, 2, 3, 4], record.epoch + 1)
    assert [each.id for each in after.pruned] == [0]
    assert fault_of(after) == ""
    assert decode(ScalableTopicRecord, "/p", after.encode()) == after
    assert [each.id for each in changes.prunable(after)] == [1]


def test_what_takes_messages_is_never_pruned() -> None:
    record = split(new(), 0)
    assert changes.prune(record, {1, 2}) == record


def test_nothing_is_pruned_while_a_change_is_under_way() -> None:
    record = split(new(), 0)
    begun = changes.begin_split(TOPIC, record, 1, now_ms=1, segments_max=8)
    assert changes.prune(begun, {0}) == begun


def test_a_record_stays_small_through_any_number_of_splits_and_merges() -> None:
    record = new()
    for _ in range(_GENERATIONS):
        (whole,) = record.active
        record = split(record, whole.id)
        one, other = record.active
        record = merge(record, one.id, other.id)
        while candidates := {each.id for each in changes.prunable(record)}:
            pruned = changes.prune(record, candidates)
            assert pruned is not None
            forgotten = changes.forget_pruned(pruned, candidates)
            assert forgotten is not None
            record = forgotten
        assert len(record.encode()) < _RECORD_BYTES_MAX
    assert record.next_segment_id == 3 * _GENERATIONS + 1, "no id is used twice"


async def test_a_segment_that_is_used_up_goes_with_its_log_at_the_next_look(scene: Scene) -> None:
    """Clients may have been told of it in the moment before."""
    parent = await scene.name(0)
    await prune(scene, 0)
    record = await scene.record()
    assert (ids(record), [each.id for each in record.pruned]) == ([1, 2, 3, 4], [0])
    assert scene.owners.deleted == []
    assert await scene.topics.is_pruned(parent)
    await prune(scene)
    record = await scene.record()
    assert (ids(record), record.pruned) == ([1, 2, 3, 4], ())
    assert scene.owners.deleted == [parent]
    assert not await scene.topics.is_pruned(parent)
    assert scene.topics.counts.pruned == 1
    assert await scene.topics.segment(parent) is None


async def test_a_segment_that_somebody_needs_keeps_its_children_too(scene: Scene) -> None:
    await prune(scene, 1)
    assert ids(await scene.record()) == [0, 1, 2, 3, 4]
    assert scene.owners.deleted == []


async def test_an_owner_that_does_not_answer_changes_nothing(scene: Scene) -> None:
    scene.owners.failures = 1
    with pytest.raises(ServiceNotReadyError):
        await prune(scene, 0)
    assert ids(await scene.record()) == [0, 1, 2, 3, 4]


class _CrashError(BaseException):
    """The broker is gone."""


async def _crash(*_: object) -> None:
    raise _CrashError


async def test_a_crash_before_the_logs_are_deleted_leaves_them_named_until_they_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await scene.name(0)
    await prune(scene, 0)
    monkeypatch.setattr(scene.topics, "_delete_pruned", _crash)
    with pytest.raises(_CrashError):
        await prune(scene)
    record = await scene.record()
    assert [each.id for each in record.pruned] == [0]
    await scene.broker().prune(TOPIC, record)
    assert scene.owners.deleted == [parent]
    assert (await scene.record()).pruned == ()


async def test_a_crash_after_the_logs_are_deleted_deletes_them_once_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prune(scene, 0)
    monkeypatch.setattr(changes, "forget_pruned", _crash_now)
    with pytest.raises(_CrashError):
        await prune(scene)
    monkeypatch.undo()
    record = await scene.record()
    assert [each.id for each in record.pruned] == [0]
    await scene.broker().prune(TOPIC, record)
    assert len(scene.owners.deleted) == 2
    assert (await scene.record()).pruned == ()


def _crash_now(*_: object) -> None:
    raise _CrashError


async def test_a_topic_is_deleted_with_the_logs_that_were_still_to_be_deleted(
    scene: Scene,
) -> None:
    parent = await scene.name(0)
    await prune(scene, 0)
    await scene.topics.delete_segments(TOPIC)
    assert parent in scene.owners.deleted


async def test_a_look_with_an_older_record_prunes_nothing_of_a_topic_that_was_created_anew(
    scene: Scene,
) -> None:
    """The segments of the newer topic have the same names and ids, and are not used up."""
    await prune(scene, 0)
    older = await scene.record()
    assert [each.id for each in older.pruned] == [0]
    created_ms = await scene.topics.delete_segments(TOPIC)
    await scene.topics.forget(TOPIC, created_ms)
    scene.clock.advance(1)
    await scene.topics.create(TOPIC, 1, is_taken=scene.is_taken)
    for segment_id in (0, 1):
        await scene.topics.split(TOPIC, segment_id)
    await scene.topics._change(TOPIC, lambda now: changes.prune(now, {0}))
    before = await scene.record()
    assert [each.id for each in before.pruned] == [0]
    scene.owners.used_up |= {each.name_in(TOPIC) for each in older.sealed}
    await scene.topics.prune(TOPIC, older)
    assert await scene.record() == before
