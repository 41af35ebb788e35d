"""The readable part of a topic, from the newest manifest beside its objects. Pure.

A query reads from the first ledger up to the first one that is in no object: data that was on
bookies only is not readable. A ledger in no object *before* one that is in an object is a hole, and
a loss.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from magnetar.arrow.stored.errors import DataLossError, OptionError
from magnetar.arrow.stored.offsets import BEFORE_FIRST, shown_id
from magnetar.arrow.stored.topic_states import LedgerState, TopicState
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.offloading.log_manifest import LogManifest, ManifestSchema
from magnetar.ledger.position import Position
from magnetar.sdk.errors import SchemaDefinitionError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.schema import SchemaInfo, SchemaType
from magnetar.sdk.schemas.key_value import split_info
from magnetar.sdk.wire.topic_name import TopicName


def state_of_manifest(
    topic: TopicName,
    manifest: LogManifest,
    find_store: Callable[[str], str | None],
    *,
    skips_holes: bool = False,
) -> TopicState:
    """Return the readable state of a topic or partition.

    Args:
        find_store: returns the settings, as JSON, of the store with this name in the brokers'
            configuration; None if the options do not give it.
        skips_holes: whether to skip ledgers that are in no object.

    Raises:
        DataLossError: a ledger in no object is before one that is in an object.
        OptionError: an object is in a store that the options do not give.
    """
    node, transactions = manifest.node, manifest.transactions
    moved, left, skipped = _moved(topic, node, skips_holes=skips_holes)
    ledgers = [_state(each, node) for each in moved]
    reason = ""
    if left is not None:
        reason = f"ledger {left.ledger_id} was in no object"
    if transactions.read_through is not None:
        cut = _through(ledgers, transactions.read_through)
        if cut != ledgers:
            ledgers, reason = cut, "a transaction had no end"
    end = MessageId(ledgers[-1].ledger_id, ledgers[-1].entries - 1) if ledgers else BEFORE_FIRST
    written = datetime.fromtimestamp(manifest.written_ms / 1000, UTC).isoformat("T", "seconds")
    unread = f"reading ends at {shown_id(end)}: {reason} at {written}" if reason else ""
    if skipped:
        passed = f"ledgers {', '.join(map(str, skipped))} are passed over: they were in no object"
        unread = "; ".join(filter(None, (passed, unread)))
    return TopicState(
        str(topic),
        topic.partition_index,
        tuple(ledgers),
        end,
        aborted=dict(transactions.aborted),
        removed_through=node.removed_through,
        stores=_stores_of(topic, ledgers, node, find_store),
        unread=unread,
    )


def _moved(
    topic: TopicName, node: LogMetadata, *, skips_holes: bool
) -> tuple[list[LogLedger], LogLedger | None, list[int]]:
    """Return the ledgers in objects, the first later one that is in none, and the ids of skipped
    ones."""
    moved: list[LogLedger] = []
    waiting: list[LogLedger] = []
    skipped: list[int] = []
    for ledger in node.ledgers:
        if not ledger.is_in_object:
            waiting.append(ledger)
            continue
        if waiting and not skips_holes:
            raise DataLossError(
                f"{topic}: ledger {waiting[0].ledger_id} is in no object, and ledger "
                f"{ledger.ledger_id} behind it is: it was on bookies only when the manifest was "
                "written, as small ledgers are for a while. Read the topic from the cluster, or "
                "set failOnDataLoss to false to pass over what is missing"
            )
        skipped += [each.ledger_id for each in waiting]
        waiting.clear()
        moved.append(ledger)
    return moved, waiting[0] if waiting else None, skipped


def _state(ledger: LogLedger, node: LogMetadata) -> LedgerState:
    found = ledger.object
    assert found is not None
    base = node.object_bases[found.base]
    stored = base.store, base.key(ledger.ledger_id, found.attempt)
    return LedgerState(ledger.ledger_id, ledger.entries, ledger.bytes, stored)


def _through(ledgers: Sequence[LedgerState], last: Position) -> list[LedgerState]:
    """Return the ledgers up to an entry. Sizes are reduced in proportion."""
    found: list[LedgerState] = []
    for each in ledgers:
        entries = each.entries
        if each.ledger_id > last.ledger_id:
            break
        if each.ledger_id == last.ledger_id:
            entries = min(entries, last.entry_id + 1)
        if entries > 0:
            size = each.bytes * entries // each.entries
            found.append(LedgerState(each.ledger_id, entries, size, each.object))
    return found


def _stores_of(
    topic: TopicName,
    ledgers: Sequence[LedgerState],
    node: LogMetadata,
    find_store: Callable[[str], str | None],
) -> Mapping[str, str]:
    names = list(dict.fromkeys(each.object[0] for each in ledgers if each.object is not None))
    found = {name: find_store(name) for name in names}
    missing = [name for name, settings in found.items() if settings is None]
    # A URL alone matches any name, but only one.
    if missing or len(names) > len(set(found.values())):
        raise OptionError(
            "objects",
            f"{topic}: its objects are in the brokers' stores {', '.join(names)}"
            f"{f', and {missing[0]} is not given' if missing else ''}: give the list that the "
            "brokers' setting object_stores is",
        )
    return {name: settings for name, settings in found.items() if settings is not None}


def schema_answer(schema: ManifestSchema) -> dict[str, Any]:
    """Return a schema version in the form of the brokers' HTTP answer."""
    answer: dict[str, Any] = {
        "version": schema.version,
        "type": schema.type,
        "properties": dict(schema.properties),
    }
    if schema.type != SchemaType.KEY_VALUE.value:
        return {**answer, "data": schema.data.decode(errors="replace")}
    try:
        parts = split_info(SchemaInfo(SchemaType.KEY_VALUE, schema.data, schema.properties))
    except SchemaDefinitionError:
        return {**answer, "type": "BYTES", "data": ""}
    key, value, _ = parts
    definitions = {"key": key.definition.decode(), "value": value.definition.decode()}
    return {**answer, "data": json.dumps(definitions)}
