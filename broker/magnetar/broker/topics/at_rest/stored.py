"""The stored state of a topic that is not loaded: its size, and the backlogs of its subscriptions.

The list of ledgers and the nodes of the cursors are read from the metadata store; nothing is
loaded. A backlog is an upper bound if acknowledgements beyond the node lie in a ledger. It lacks
the entries of a ledger that a crash left open, because their number is unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.base import naming
from magnetar.cursors import list_cursors, read_stored
from magnetar.ledger.errors import NoNodeError
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_retention import bytes_behind
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import TopicName

SUBSCRIPTIONS_MAX: Final = 200
"""Most cursors that are read for one answer; the others are left out."""


@dataclass(frozen=True, slots=True)
class RestingBacklog:
    """The backlog of one subscription."""

    entries: int
    bytes: int
    is_upper_bound: bool


@dataclass(frozen=True, slots=True)
class RestingTopic:
    """Size and backlogs of a topic that is not loaded."""

    storage_bytes: int
    backlogs: Mapping[str, RestingBacklog]

    def shown(self) -> dict[str, Any]:
        """Return the values as JSON, with the names that statistics use."""
        return {
            "storageSize": self.storage_bytes,
            "subscriptions": {
                name: {
                    "msgBacklog": each.entries,
                    "backlogSize": each.bytes,
                    "isUpperBound": each.is_upper_bound,
                }
                for name, each in self.backlogs.items()
            },
        }


async def resting_backlogs(store: MetadataStore, name: TopicName) -> RestingTopic | None:
    """Read the stored state of a topic; return None if the topic does not exist.

    Raises:
        LedgerError, CursorError: it cannot be read now.
    """
    path = naming.log_path(name)
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    ledgers = LogMetadata.from_json(node.value, path=path).ledgers
    backlogs: dict[str, RestingBacklog] = {}
    names = [
        each for each in await list_cursors(store, path) if not naming.is_internal_cursor(each)
    ]
    for cursor in names[:SUBSCRIPTIONS_MAX]:
        stored = await read_stored(store, path, cursor)
        if stored is not None:
            place = stored.mark_delete
            backlogs[cursor] = RestingBacklog(
                entries_behind(ledgers, place), bytes_behind(ledgers, place), stored.has_ledger
            )
    return RestingTopic(bytes_behind(ledgers, EARLIEST), backlogs)


def entries_behind(ledgers: Sequence[LogLedger], position: Position) -> int:
    """Return how many entries of the listed ledgers lie behind a position."""
    total = 0
    for ledger in ledgers:
        if ledger.ledger_id > position.ledger_id:
            total += max(0, ledger.entries)
        elif ledger.ledger_id == position.ledger_id:
            total += max(0, ledger.entries - 1 - position.entry_id)
    return total
