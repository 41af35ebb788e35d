"""What a restored log and its cursors are like (`planning.py`)."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from magnetar.broker.features.backup.documents import LogBackup
from magnetar.broker.features.backup.planning import RestoredLog, plan
from magnetar.cursors.node import CursorNode
from magnetar.ledger.managed_log.log_ledgers import RESTORED_PROPERTY
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import LogManifest
from magnetar.ledger.position import EARLIEST, Position

LOG = "/managed-ledgers/public/default/persistent/flights"
BASE = ObjectBase("main", "5f0c/ledgers/00/x/")


def ledger(ledger_id: int, state: ObjectState | None = None, *, entries: int = 10) -> LogLedger:
    found = None
    if state is not None:
        found = LedgerObject(state, f"{ledger_id:032x}", 0, 100, 7, 8)
    return LogLedger(ledger_id, entries, 10 * entries, 1, found)


OLD = LogMetadata(
    (
        ledger(4, ObjectState.ONLY),
        ledger(5, ObjectState.COPIED),
        ledger(7, ObjectState.COPYING),
        ledger(8, ObjectState.COPIED),
        LogLedger(9),
    ),
    {
        "pulsar.topic.epoch": "3",
        "magnetar.created_ms": "17",
        "topic.owner": "me",
        "magnetar.delayed.buckets": "{}",
    },
    removed_through=2,
    owner_token=6,
    object_bases=(BASE,),
)


def restored(
    old: LogMetadata = OLD,
    cursors: Mapping[str, CursorNode] | None = None,
    *,
    keeps_gaps: bool = False,
) -> RestoredLog:
    backup = LogBackup(LogManifest("5f0c", LOG, 17, 1, old), cursors or {})
    return plan(backup, "daily", token=1, keeps_gaps=keeps_gaps)


def at(ledger_id: int, entry_id: int, **more: object) -> CursorNode:
    fields = {"epoch": 5, "mark_delete": (ledger_id, entry_id), "properties": {"a": "b"}, **more}
    return CursorNode.model_validate(fields)


def test_a_restored_log_ends_before_the_first_ledger_that_is_in_no_object() -> None:
    node = restored().node
    assert [each.ledger_id for each in node.ledgers] == [4, 5]
    assert [each.object.state for each in node.ledgers if each.object] == [ObjectState.ONLY] * 2
    assert [each.object.attempt for each in node.ledgers if each.object] == [
        each.object.attempt for each in OLD.ledgers[:2] if each.object
    ]
    assert node.object_bases == (BASE,)
    assert (node.removed_through, node.owner_token, node.terminated) == (2, 0, None)
    assert LogMetadata.from_json(node.to_json(), path=LOG) == node


def test_what_is_behind_a_gap_is_counted_and_restored_if_wanted() -> None:
    assert (restored().behind_gap.ledgers, restored().behind_gap.entries) == (1, 10)
    whole = restored(keeps_gaps=True)
    assert [each.ledger_id for each in whole.node.ledgers] == [4, 5, 8]
    assert whole.behind_gap.ledgers == 0


def test_an_empty_ledger_is_no_gap() -> None:
    old = OLD.with_ledgers([OLD.ledgers[0], ledger(6, entries=0), OLD.ledgers[3]])
    assert [each.ledger_id for each in restored(old).node.ledgers] == [4, 8]


def test_an_open_ledger_is_a_gap_though_nobody_counted_its_entries() -> None:
    old = OLD.with_ledgers([OLD.ledgers[0], LogLedger(9)])
    assert [each.ledger_id for each in restored(old).node.ledgers] == [4]


def test_a_log_without_objects_is_restored_empty() -> None:
    old = replace(OLD, ledgers=(LogLedger(9),), object_bases=())
    found = restored(old, {"s": at(9, 3)})
    assert found.node.ledgers == ()
    assert found.cursors["s"].mark_delete == EARLIEST
    assert LogMetadata.from_json(found.node.to_json(), path=LOG) == found.node


def test_properties_stay_but_for_those_that_name_the_old_cluster() -> None:
    properties = restored().node.properties
    assert properties["topic.owner"] == "me"
    assert properties["magnetar.created_ms"] == "17"
    assert properties["pulsar.topic.epoch"] == "4", "producers of the old cluster are fenced"
    assert "magnetar.delayed.buckets" not in properties
    assert '"backup": "daily"' in properties[RESTORED_PROPERTY]


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [(None, None), (Position(8, 9), Position(5, 9)), (Position(5, 9), Position(5, 9))],
)
def test_a_terminated_log_is_terminated_where_it_ends_now(
    terminated: Position | None, expected: Position | None
) -> None:
    ledgers = OLD.ledgers[:2] if terminated == Position(5, 9) else OLD.ledgers[:4]
    old = replace(OLD, ledgers=ledgers, terminated=terminated)
    assert restored(old).node.terminated == expected


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        ((5, 3), (5, 3)),
        ((5, 9), (5, 9)),
        ((4, -1), (4, -1)),
        ((7, 2), (5, 9)),
        ((8, 4), (5, 9)),
        ((9, 3), (5, 9)),
        ((1, 5), (4, -1)),
        ((6, 5), (5, 9)),
        ((30, 1), (5, 9)),
    ],
)
def test_cursors_stand_at_what_exists(mark: tuple[int, int], expected: tuple[int, int]) -> None:
    assert restored(cursors={"s": at(*mark)}).cursors["s"].mark_delete == expected


def test_acknowledgements_of_what_exists_stay() -> None:
    state = at(
        4, 1, ranges=((4, 5, 6), (5, 8, 30), (8, 0, 3)), batches=((5, 2, (5,)), (8, 5, (1,)))
    )
    found = restored(cursors={"s": state}).cursors["s"]
    assert found.ranges == ((4, 5, 6), (5, 8, 9))
    assert found.batches == ((5, 2, (5,)),)
    assert found.properties == {"a": "b"}
    assert found.epoch == 1


@pytest.mark.parametrize("name", ["pulsar.dedup", "magnetar.geo.marks"])
def test_what_was_known_of_lost_messages_is_forgotten(name: str) -> None:
    """Sent again, they would be taken for duplicates."""
    cursors = {name: at(8, 1, position_properties={"p": 4})}
    found = restored(cursors=cursors).cursors[name]
    assert (found.mark_delete, found.position_properties) == (EARLIEST, {})


def test_deduplication_goes_on_from_a_snapshot_of_what_exists() -> None:
    cursors = {"pulsar.dedup": at(5, 1, position_properties={"p": 4})}
    found = restored(cursors=cursors).cursors["pulsar.dedup"]
    assert (found.mark_delete, found.position_properties) == ((5, 1), {"p": 4})


def test_copies_to_other_clusters_go_on_as_those_of_another_life_of_the_log() -> None:
    """The log has another incarnation, of which the other cluster has nothing yet."""
    sent = {"geo.sent.ledger": 5, "geo.sent.entry": 1}
    cursors = {"pulsar.repl.west": at(5, 1, position_properties=sent)}
    found = restored(cursors=cursors).cursors["pulsar.repl.west"]
    assert (found.mark_delete, found.position_properties) == ((5, 1), {})


def test_the_compacted_view_is_made_anew() -> None:
    assert restored(cursors={"__compaction": at(5, 1)}).cursors == {}


def test_ids_of_lost_ledgers_count_as_used() -> None:
    assert max(restored().ids_used) == 9
    assert max(restored(cursors={"s": at(31, 0)}).ids_used) == 31
