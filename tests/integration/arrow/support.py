"""What the tests of the Arrow reader share: where to read, and rows to compare."""

from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import pulsar
import pyarrow as pa

from tests.http_calls import HasHttp, admin
from tests.integration.pulsar_client.support import read_next


class Server(HasHttp, Protocol):
    """A server that also says where its brokers and its metadata are."""

    @property
    def url(self) -> str: ...
    @property
    def metadata_url(self) -> str: ...


def at_bookies(server: Server) -> dict[str, Any]:
    """Read straight from the bookies."""
    return {**through_brokers(server), "metadata_url": server.metadata_url}


def through_brokers(server: Server) -> dict[str, Any]:
    return {"service_url": server.url, "admin_url": server.http_url}


def keep_topics(server: HasHttp) -> None:
    """Topics without subscriptions stay, however long a test takes to come to them."""
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 3_600,
        "deleteWhileInactive": False,
    }
    admin(server, "POST", "namespaces/public/default/inactiveTopicPolicies", policy)


class Row(NamedTuple):
    """A message, as either reader has it."""

    value: bytes
    key: bytes | None
    properties: dict[str, str]
    publish_ms: int
    event_ms: int
    place: tuple[int, int, int]
    """Ledger, entry, index in the batch."""


def rows_of_client(client: pulsar.Client, topic: str) -> list[Row]:
    """All messages that the official client's reader gives."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[Row] = []
    while reader.has_message_available():
        message = read_next(reader)
        at = message.message_id()
        found.append(
            Row(
                message.data(),
                message.partition_key().encode() or None,
                message.properties(),
                message.publish_timestamp(),
                message.event_timestamp(),
                (at.ledger_id(), at.entry_id(), at.batch_index()),
            )
        )
    reader.close()
    return found


def rows_of(table: pa.Table) -> list[Row]:
    """All rows of a table of bytes."""
    return [
        Row(
            each["value"] or b"",
            each["__key"],
            dict(each["__messageProperties"]),
            _ms(each["__publishTime"]),
            _ms(each["__eventTime"]),
            _place(each["__messageId"]),
        )
        for each in table.to_pylist()
    ]


def _ms(found: Any) -> int:
    if found is None:
        return 0
    assert isinstance(found, datetime)
    return round((found - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def _place(serialized: bytes) -> tuple[int, int, int]:
    at = pulsar.MessageId.deserialize(serialized)
    return at.ledger_id(), at.entry_id(), at.batch_index()
