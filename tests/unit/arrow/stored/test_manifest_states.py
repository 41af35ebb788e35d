"""What a query that asks no server reads of a topic, by the topic's manifest."""

import json

import pytest

from magnetar.arrow.stored.errors import DataLossError, OptionError
from magnetar.arrow.stored.manifest_states import schema_answer, state_of_manifest
from magnetar.arrow.stored.offsets import BEFORE_FIRST
from magnetar.arrow.stored.planning import EntryRange, plan_slices
from magnetar.arrow.stored.topic_schema import parsed
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import (
    LogManifest,
    ManifestSchema,
    ManifestTransactions,
)
from magnetar.ledger.position import Position
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schemas import INT32, STRING, KeyValueEncoding, KeyValueSchema
from magnetar.sdk.wire.topic_name import TopicName

TOPIC = TopicName.parse("t-partition-2")
LOG = f"/managed-ledgers/{TOPIC.storage_name}"
WRITTEN_MS = 1_767_225_700_000
NONE = ManifestTransactions()


def moved(ledger_id: int, *, base: int = 0, state: ObjectState = ObjectState.ONLY) -> LogLedger:
    found = LedgerObject(state, f"{ledger_id:032x}", base, 9, 9, 9)
    return LogLedger(ledger_id, 10, 1_000, 1, found)


def here(ledger_id: int) -> LogLedger:
    return LogLedger(ledger_id, 10, 1_000, 1)


def state_of(
    *ledgers: LogLedger,
    transactions: ManifestTransactions = NONE,
    skips_holes: bool = False,
    removed_through: int = -1,
    stores: dict[str, str] | None = None,
) -> TopicState:
    node = LogMetadata(
        ledgers,
        object_bases=(ObjectBase("main", "a/"), ObjectBase("old", "b/")),
        removed_through=removed_through,
    )
    manifest = LogManifest("5f0c", LOG, 3, WRITTEN_MS, node, (), transactions)

    def find(name: str) -> str | None:
        return "any" if stores is None else stores.get(name)

    return state_of_manifest(TOPIC, manifest, find, skips_holes=skips_holes)


def test_what_is_in_objects_is_read_up_to_the_first_ledger_that_is_in_none() -> None:
    copying = LogLedger(7, 10, 1, 1, LedgerObject(ObjectState.COPYING, "ab" * 16, 0))
    state = state_of(moved(4), moved(5, state=ObjectState.COPIED), copying, LogLedger(9))
    assert (state.name, state.partition) == (str(TOPIC), 2)
    assert [each.ledger_id for each in state.ledgers] == [4, 5]
    assert state.end == MessageId(5, 9)
    assert state.unread == (
        "reading ends at 5:9: ledger 7 was in no object at 2026-01-01T00:01:40+00:00"
    )
    assert state.ledgers[0].object == ("main", f"a/{4:020d}-{4:032x}.mgo")
    assert state.stores == {"main": "any"}


def test_a_topic_that_is_in_objects_as_a_whole_has_nothing_unread() -> None:
    assert state_of(moved(4)).unread == ""
    empty = state_of(removed_through=3)
    assert (empty.ledgers, empty.end, empty.unread) == ((), BEFORE_FIRST, "")
    assert empty.removed_through == 3


@pytest.mark.parametrize("ledgers", [(moved(4), here(5), moved(6)), (here(5), moved(6))])
def test_a_hole_is_an_error_that_names_it_unless_loss_is_allowed(
    ledgers: tuple[LogLedger, ...],
) -> None:
    with pytest.raises(DataLossError, match="ledger 5 is in no object, and ledger 6 behind it is"):
        state_of(*ledgers)
    state = state_of(*ledgers, here(8), skips_holes=True)
    assert state.end == MessageId(6, 9)
    assert "ledgers 5 are passed over" in state.unread
    assert "ledger 8 was in no object" in state.unread


def test_nothing_behind_an_open_transaction_is_read_and_nothing_that_was_aborted() -> None:
    transactions = ManifestTransactions(Position(5, 3), {4: b"\x01"})
    state = state_of(moved(4), moved(5), moved(6), transactions=transactions)
    assert state.end == MessageId(5, 3)
    assert [each.entries for each in state.ledgers] == [10, 4]
    assert state.ledgers[1].bytes == 400
    assert state.aborted == {4: b"\x01"}
    assert "a transaction had no end" in state.unread
    before = state_of(moved(4), transactions=ManifestTransactions(Position(4, -1)))
    assert (before.ledgers, before.end) == ((), BEFORE_FIRST)
    behind = state_of(moved(4), transactions=ManifestTransactions(Position(4, 9)))
    assert behind.unread == ""


def test_slices_name_every_entry_once_as_of_a_topic_on_bookies() -> None:
    state = state_of(moved(4), moved(5), here(7))
    plans = plan_slices(state, BEFORE_FIRST, state.end, entries_max=8)
    assert [each for plan in plans for each in plan.ranges] == [
        EntryRange(4, 0, 7),
        EntryRange(4, 8, 9),
        EntryRange(5, 0, 5),
        EntryRange(5, 6, 9),
    ]


def test_objects_in_several_stores_need_the_list_of_these() -> None:
    both = moved(4, base=1), moved(5)
    assert state_of(*both, stores={"main": "m", "old": "o"}).stores == {"old": "o", "main": "m"}
    with pytest.raises(OptionError, match=r"stores old, main: give the list.*object_stores"):
        state_of(*both)
    with pytest.raises(OptionError, match="old is not given"):
        state_of(*both, stores={"main": "m"})


def test_schemas_are_told_as_brokers_tell_them() -> None:
    avro = schema_answer(ManifestSchema(3, 1, "AVRO", b'{"type":"int"}', {"a": "b"}))
    assert (avro["version"], parsed(avro).definition) == (3, '{"type":"int"}')
    info = KeyValueSchema(STRING, INT32, KeyValueEncoding.SEPARATED).info
    assert info is not None
    stored = ManifestSchema(0, 1, "KEY_VALUE", info.definition, dict(info.properties))
    found = parsed(json.loads(json.dumps(schema_answer(stored))))
    assert found.kind == "KEY_VALUE"
    assert found.key is not None
    assert found.value is not None
    assert (found.key.kind, found.value.kind, found.has_separate_key) == ("STRING", "INT32", True)
    damaged = ManifestSchema(0, 1, "KEY_VALUE", b"x", {})
    assert parsed(schema_answer(damaged)).kind == "BYTES"
