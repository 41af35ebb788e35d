"""Storage of a topic, its ledgers and cursors, in the shape of Pulsar's tools. Pure.

Source: HTTP sheet, section 9.6 and 9.2 (ManagedLedgerInfo).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from magnetar.broker.features.offloading import Offload, Scrubbing
from magnetar.broker.features.transactions.topic_transactions import state_of
from magnetar.broker.topic import Topic
from magnetar.broker.topic.subscription import Subscription
from magnetar.cursors import AckRange, Cursor
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.managed_log.log_metadata import LogLedger
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.offloading.scrub_plan import Finding
from magnetar.ledger.position import EARLIEST, Position

Stats = dict[str, Any]

RANGES_MAX = 1000
"""Ranges of individually acknowledged entries that are shown per cursor, at most."""


INTERNAL_CONSTANTS: Final[Mapping[str, tuple[Any, str]]] = {
    "underReplicated": (False, "`magnetar admin recovery` tells which ledgers lack copies"),
}
"""Constant fields: the value, and why."""

INTERNAL_ABSENT: Final[Mapping[str, str]] = {
    "lastLedgerCreationFailureTimestamp": "a failure is logged, and tried again",
    "metadata": "the metadata of ledgers is the bookies' own: `magnetar ledger show` tells it",
}
"""Fields of Pulsar that are left out, and why."""

_CONSTANTS: Final = {name: value for name, (value, _) in INTERNAL_CONSTANTS.items()}
_NO_LEDGER: Final[Stats] = {
    "ledgerId": -1,
    "entries": -1,
    "size": -1,
    "offloaded": False,
    **_CONSTANTS,
}


def topic_internal_stats(topic: Topic, *, schema_ledgers: Iterable[int] = ()) -> Stats:
    """Return the storage of one topic. `schema_ledgers`: ledgers of the definitions of its
    schema."""
    log = topic.log
    ledgers = list(log.ledgers)
    current = ledgers[-1] if ledgers and not ledgers[-1].is_closed else None
    scrubbing = topic.find(Scrubbing)
    findings = scrubbing.findings if scrubbing is not None else {}
    return {
        "entriesAddedCounter": topic.line.entries_in,
        "numberOfEntries": sum(each.entries for each in ledgers),
        "totalSize": bytes_behind(ledgers, EARLIEST),
        "currentLedgerEntries": current.entries if current is not None else 0,
        "currentLedgerSize": current.bytes if current is not None else 0,
        "lastLedgerCreatedTimestamp": _time(getattr(log, "ledger_created_ms", 0)),
        "waitingCursorsCount": sum(
            each.is_open and each.cursor.is_caught_up and bool(each.consumers)
            for each in topic.subscriptions.values()
        ),
        "pendingAddEntriesCount": getattr(log, "pending_batches", 0),
        "lastConfirmedEntry": _text(log.last_confirmed),
        "state": _state(topic, current),
        "ledgers": [
            _ledger(topic, each, findings.get(each.ledger_id), is_open=each is current)
            for each in ledgers
        ],
        "schemaLedgers": [
            {**_NO_LEDGER, "ledgerId": each, "entries": 1} for each in schema_ledgers
        ],
        "cursors": {
            name: _cursor(topic, each) for name, each in topic.subscriptions.items() if each.is_open
        },
        "compactedLedger": _compacted(topic),
        # Not in Pulsar: with entriesAddedCounter, it gives the mean number of messages per entry.
        "messagesAddedCounter": topic.line.messages_in,
        # Not in Pulsar: tells readers of the ledgers whether a ledger that they have not read is
        # gone.
        "removedThrough": getattr(log, "removed_through", -1),
        **_transactions(topic),
        **_object_stores(topic),
    }


def _object_stores(topic: Topic) -> Stats:
    """Return the object stores that the topic's ledgers name, for readers of the objects. Not in
    Pulsar."""
    offloading = topic.find(Offload)
    stores = offloading.stores() if offloading is not None else {}
    return {"objectStores": stores} if stores else {}


def _transactions(topic: Topic) -> Stats:
    """Return what readers of the ledgers must know of a topic's transactions: how far they may
    read, and the entries of aborted ones by ledger (`PositionSet.dump`). Not in Pulsar."""
    buffer = state_of(topic)
    if buffer is None:
        return {}
    shown = {"maxReadPosition": _text(topic.visibility.last), "aborted": buffer.aborted.dump()}
    return {"transactions": shown}


def _state(topic: Topic, current: LogLedger | None) -> str:
    if topic.log.terminated is not None:
        return "Terminated"
    return "LedgerOpened" if current is not None else "ClosedLedger"


def _ledger(topic: Topic, ledger: LogLedger, finding: Finding | None, *, is_open: bool) -> Stats:
    """Return one ledger. The open one is shown as empty."""
    return {
        "ledgerId": ledger.ledger_id,
        "entries": 0 if is_open else ledger.entries,
        "size": 0 if is_open else ledger.bytes,
        "offloaded": ledger.is_in_object,
        **_CONSTANTS,
        **_object(topic, ledger, finding),
    }


def _object(topic: Topic, ledger: LogLedger, finding: Finding | None) -> Stats:
    """Return where the ledger is in an object store, and whether bookies still have it; also what
    is wrong with the object, if it was not whole when it was read back. Not in Pulsar."""
    log = topic.log
    if ledger.object is None or not isinstance(log, ManagedLog):
        return {}
    found = ledger.object
    shown = {
        "state": found.state.value,
        "store": log.objects.base(found).store,
        "key": log.objects.key(ledger.ledger_id, found, found.attempt),
        "bytes": found.bytes,
        "copiedTimestamp": _time(found.at_ms),
    }
    if finding is not None:
        shown["scrub"] = finding.verdict.value
    return {"object": shown}


def _compacted(topic: Topic) -> Stats:
    return {**_NO_LEDGER, **topic.shown().get("compacted_ledger", {})}


def _cursor(topic: Topic, subscription: Subscription) -> Stats:
    cursor, dispatcher = subscription.cursor, subscription.dispatcher
    log = topic.log
    last = log.last_confirmed
    read = log.next_position(
        dispatcher.read_after if dispatcher is not None else cursor.mark_delete
    )
    is_durable = isinstance(cursor, Cursor)
    stored = cursor.statistics if isinstance(cursor, Cursor) else None
    ledger = stored.cursor_ledger_id if stored is not None else -1
    is_reading = dispatcher is not None and dispatcher.source.is_reading
    return {
        "markDeletePosition": _text(cursor.mark_delete),
        "readPosition": _text(read),
        "waitingReadOp": cursor.is_caught_up and bool(subscription.consumers),
        "pendingReadOps": int(is_reading),
        "messagesConsumedCounter": max(
            0, topic.line.entries_in - log.entries_between(cursor.mark_delete, last)
        ),
        "cursorLedger": ledger,
        "cursorLedgerLastEntry": stored.ledger_last_entry if stored is not None else -1,
        "individuallyDeletedMessages": _ranges(cursor.ranges(RANGES_MAX)),
        "lastLedgerSwitchTimestamp": _time(stored.ledger_created_ms if stored is not None else 0),
        "state": "Open" if is_durable and ledger >= 0 else "NoLedger",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": log.entries_between(cursor.mark_delete, last),
        "totalNonContiguousDeletedMessagesRange": cursor.range_count,
        "subscriptionHavePendingRead": is_reading,
        "subscriptionHavePendingReplayRead": (
            dispatcher is not None and dispatcher.is_reading_again
        ),
        "properties": dict(cursor.position_properties) if isinstance(cursor, Cursor) else {},
    }


def topic_info(topic: Topic) -> Stats:
    """Return what the metadata store has of a topic."""
    shown: Stats = {
        "version": -1,
        "creationDate": "",
        "modificationDate": "",
        "ledgers": [
            {
                "ledgerId": each.ledger_id,
                "entries": each.entries,
                "size": each.bytes,
                "timestamp": each.closed_ms,
                "isOffloaded": each.is_in_object,
            }
            for each in topic.log.ledgers
        ],
        "cursors": {
            name: _cursor_info(cursor)
            for name, each in topic.subscriptions.items()
            if each.is_open and isinstance(cursor := each.cursor, Cursor)
        },
        "properties": dict(topic.log.properties),
    }
    terminated = topic.log.terminated
    if terminated is not None:
        shown["terminatedPosition"] = _position(terminated)
    return shown


def _cursor_info(cursor: Cursor) -> Stats:
    return {
        "version": -1,
        "creationDate": "",
        "modificationDate": _time(cursor.last_active_ms),
        "cursorsLedgerId": cursor.statistics.cursor_ledger_id,
        "markDelete": _position(cursor.persisted_mark_delete),
        "individualDeletedMessages": [
            {
                "from": {"ledgerId": ledger_id, "entryId": first - 1},
                "to": {"ledgerId": ledger_id, "entryId": last},
            }
            for ledger_id, first, last in cursor.ranges(RANGES_MAX)
        ],
        "properties": dict(cursor.position_properties),
    }


def offline_backlog(topic: Topic, *, broker: str, now_ms: int) -> Stats:
    """Return the backlogs of a topic's durable cursors, whether or not clients are connected."""
    ledgers = list(topic.log.ledgers)
    last = topic.log.last_confirmed
    cursors = {
        name: each.cursor
        for name, each in topic.subscriptions.items()
        if each.is_open and each.is_durable
    }
    behind = {name: each.backlog_entries for name, each in cursors.items()}
    return {
        "topicName": str(topic.name),
        "brokerName": broker,
        "storageSize": bytes_behind(ledgers, EARLIEST),
        "totalMessages": topic.log.entries_between(Position(-1, -1), last),
        "messageBacklog": sum(behind.values()),
        "dataLedgerDetails": [
            {
                "entries": each.entries,
                "timestamp": each.closed_ms,
                "size": each.bytes,
                "ledgerId": each.ledger_id,
            }
            for each in ledgers
        ],
        "cursorDetails": {
            name: {
                "cursorBacklog": behind[name],
                "cursorLedgerId": (
                    each.statistics.cursor_ledger_id if isinstance(each, Cursor) else -1
                ),
            }
            for name, each in cursors.items()
        },
        "statGeneratedAt": _time(now_ms),
    }


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


def _position(position: Position) -> Stats:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def _ranges(ranges: Sequence[AckRange]) -> str:
    """Format ranges as Pulsar does: the lower end is excluded, the upper end included."""
    inside = ",".join(
        f"({ledger_id}:{first - 1}..{ledger_id}:{last}]" for ledger_id, first, last in ranges
    )
    return f"[{inside}]"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if ms else ""
