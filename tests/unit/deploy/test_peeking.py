from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.broker.http.raw_message import raw_message
from magnetar.deploy.errors import DeployError
from magnetar.deploy.peeking import messages_of
from magnetar.ledger.position import Position
from magnetar.sdk.batch import encode_batch
from magnetar.sdk.message import Message
from magnetar.sdk.wire import MessageMetadata, encode_payload, parse_topic_name
from magnetar.sdk.wire.pulsar_pb2 import SingleMessageMetadata

TOPIC = parse_topic_name("orders-partition-2")


def sent(body: bytes, **fields: Any) -> tuple[Mapping[str, str], bytes]:
    """An entry as a broker sends it."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=7, **fields)
    headers, content = raw_message(
        Position(3, 4), encode_payload(metadata.SerializeToString(), body)
    )
    return {name.lower(): value for name, value in headers.items()}, content


def peeked(body: bytes, **fields: Any) -> list[Message]:
    return messages_of(TOPIC, *sent(body, **fields))


def test_a_single_message_has_all_that_its_producer_gave() -> None:
    (found,) = peeked(
        b"body",
        partition_key="k",
        ordering_key=b"\xff",
        event_time=1_700_000_000_123,
        properties=[{"key": "a", "value": "ü"}],
    )
    assert (found.data, found.key, found.ordering_key) == (b"body", "k", b"\xff")
    assert (found.publish_time_ms, found.event_time_ms) == (7, 1_700_000_000_123)
    assert found.properties == {"a": "ü"}
    assert str(found.message_id) == "3:4:2"


@pytest.mark.parametrize("key", ["100%", "a b", "ü%", "a\r\nb", "%41", ""])
def test_a_key_is_what_it_was(key: str) -> None:
    (found,) = peeked(b"", partition_key=key)
    assert found.given_key == key


def test_a_key_of_bytes_and_a_message_without_a_value_are_told() -> None:
    (found,) = peeked(b"", partition_key="/w==", partition_key_b64_encoded=True, null_value=True)
    assert found.given_key == b"\xff"
    assert found.is_null


def test_a_batch_is_its_messages_but_for_those_that_compaction_removed() -> None:
    def extra(**fields: Any) -> bytes:
        return SingleMessageMetadata(**fields).SerializePartialToString()

    extras = [extra(partition_key="a"), extra(compacted_out=True), extra(event_time=9)]
    body = encode_batch([b"one", b"gone", b"two"], extras, 1)
    found = peeked(body, num_messages_in_batch=3)
    assert [each.data for each in found] == [b"one", b"two"]
    assert [str(each.message_id) for each in found] == ["3:4:2:0", "3:4:2:2"]
    assert (found[0].key, found[1].event_time_ms) == ("a", 9)


def test_an_encrypted_batch_is_shown_as_it_is_stored() -> None:
    (found,) = peeked(
        b"?", num_messages_in_batch=3, encryption_keys=[{"key": "k", "value": b"secret"}]
    )
    assert found.is_encrypted
    assert found.data == b"?"


def test_an_answer_that_is_no_entry_is_refused() -> None:
    headers, body = sent(b"cut", num_messages_in_batch=3)
    for each in (headers, {}, {**headers, "x-pulsar-publish-time": "soon"}):
        with pytest.raises(DeployError, match="no entry of"):
            messages_of(TOPIC, each, body)
