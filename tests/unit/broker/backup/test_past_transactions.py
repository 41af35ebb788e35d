"""The transactions of a restored topic (`past_transactions.py`)."""

from dataclasses import dataclass
from typing import cast

from magnetar.broker.features.backup.documents import LogBackup
from magnetar.broker.features.backup.past_transactions import aborted_in, with_past
from magnetar.broker.features.backup.planning import plan
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.markers import encode_marker, with_transaction
from magnetar.broker.features.transactions.topic_log import property_of, since_in
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase, ObjectState
from magnetar.ledger.offloading.log_manifest import LogManifest
from magnetar.ledger.offloading.store_set import StoredLedgers
from magnetar.ledger.ports import ObjectPlace
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, encode_payload

LOG = "/managed-ledgers/public/default/persistent/flights"
COMMITTED, ABORTED, OPEN = (TransactionId(0, number) for number in (1, 2, 3))


def message(txn: TransactionId | None = None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    entry = encode_payload(metadata.SerializeToString(), b"payload")
    return entry if txn is None else with_transaction(entry, txn)


def end(txn: TransactionId, *, commits: bool) -> bytes:
    return encode_marker(txn, commits=commits, now_ms=1)


LEDGERS = {
    4: [message(OPEN), message(), message(COMMITTED)],
    5: [
        message(ABORTED),
        end(COMMITTED, commits=True),
        end(ABORTED, commits=False),
        message(OPEN),
    ],
}


@dataclass
class Reader:
    entries: list[bytes]

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        return self.entries[first : min(last + 1, first + 2)]

    async def close(self) -> None: ...


class Objects:
    """What is needed of the stores."""

    def __init__(self) -> None:
        self.opened: list[ObjectPlace] = []

    async def open(self, place: ObjectPlace, *, password: bytes) -> Reader:
        self.opened.append(place)
        return Reader(LEDGERS[place.ledger_id])


def node(since: Position) -> LogMetadata:
    ledgers = (
        LogLedger(
            each, len(entries), 9, 1, LedgerObject(ObjectState.COPIED, f"{each:032x}", 0, 9, 9, 9)
        )
        for each, entries in LEDGERS.items()
    )
    bases = (ObjectBase("main", "5f0c/ledgers/00/x/"),)
    return LogMetadata(tuple(ledgers), object_bases=bases).with_properties(property_of(since))


async def test_what_was_aborted_or_has_no_end_is_passed_over_and_all_else_is_seen() -> None:
    restored = plan(LogBackup(LogManifest("i", LOG, 1, 1, node(Position(3, 9)))), "daily", token=1)
    assert restored.has_transactions
    state = await aborted_in(restored, cast(StoredLedgers, Objects()))
    hidden = [
        (ledger_id, entry_id)
        for ledger_id, entries in LEDGERS.items()
        for entry_id in range(len(entries))
        if Position(ledger_id, entry_id) in state.aborted
    ]
    assert hidden == [(4, 0), (5, 0), (5, 3)]
    assert not state.open


async def test_ids_of_former_transactions_are_forgotten() -> None:
    """Coordinators begin at 0 again: a new transaction must not be taken for one that ended."""
    restored = plan(LogBackup(LogManifest("i", LOG, 1, 1, node(Position(3, 9)))), "daily", token=1)
    state = await aborted_in(restored, cast(StoredLedgers, Objects()))
    for txn in (COMMITTED, ABORTED, OPEN):
        assert txn not in state.ended
        state.on_entry(txn, Position(9, 0))
    assert set(state.open) == {COMMITTED, ABORTED, OPEN}


async def test_only_what_is_behind_the_first_transaction_is_read() -> None:
    objects = Objects()
    restored = plan(LogBackup(LogManifest("i", LOG, 1, 1, node(Position(4, 2)))), "daily", token=1)
    state = await aborted_in(restored, cast(StoredLedgers, objects))
    assert [each.ledger_id for each in objects.opened] == [5]
    assert objects.opened[0].key == f"5f0c/ledgers/00/x/{5:020d}-{5:032x}.mgo"
    assert Position(4, 0) not in state.aborted


def test_new_transactions_begin_behind_what_was_restored() -> None:
    restored = plan(LogBackup(LogManifest("i", LOG, 1, 1, node(Position(3, 9)))), "daily", token=1)
    assert since_in(with_past(restored.node).properties, of="x") == Position(5, 3)
