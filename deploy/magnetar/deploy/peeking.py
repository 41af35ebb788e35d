"""Messages of an entry that a broker sent over HTTP; a batch gives each of its messages.

The body is the decompressed payload of the whole entry, headers have its metadata. Source: HTTP
sheet, section 9.2.
"""

import base64
import json
import sys
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import unquote

from magnetar.deploy.errors import DeployError
from magnetar.deploy.tools import Shown
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.http_client import HttpAnswer
from magnetar.sdk.message import Message
from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, TopicName, encode_payload
from magnetar.sdk.wire.pulsar_pb2 import EncryptionKeys, KeyValue

_PREFIX = "x-pulsar-"
_KEY_WITHHELD = EncryptionKeys(key="", value=b"")


def show_entry(topic: TopicName, answer: HttpAnswer, shown: Shown) -> None:
    """Print the messages of an entry.

    Raises:
        DeployError: the answer is not an entry.
    """
    messages = messages_of(topic, answer.headers, answer.data)
    if any(each.is_encrypted for each in messages):
        sys.stderr.write("magnetar: the entry is encrypted, and shown as it is stored\n")
    for message in messages:
        shown.show(message)


def messages_of(topic: TopicName, headers: Mapping[str, str], body: bytes) -> list[Message]:
    """Return the messages of an entry. Messages that compaction removed from a batch are left out;
    an encrypted entry is one message.

    Raises:
        DeployError: the answer is not an entry.
    """
    source = EntrySource(str(topic), topic.partition_index)
    try:
        ledger, entry = headers[f"{_PREFIX}message-id"].split(":")
        payload = encode_payload(_metadata(headers).SerializeToString(), body)
        return MessageBatch(payload, source, int(ledger), int(entry)).messages()
    except (KeyError, ValueError, MalformedPayloadError) as error:
        raise DeployError(f"the broker's answer is no entry of {topic}: {error}") from error


def _metadata(headers: Mapping[str, str]) -> MessageMetadata:
    """Return the part of the metadata that is printed."""
    own = {
        name.removeprefix(_PREFIX): value
        for name, value in headers.items()
        if name.startswith(_PREFIX)
    }
    properties: Mapping[str, str] = json.loads(own.get("property", "{}"))
    found = MessageMetadata(
        producer_name=_text(own.get("producer-name", "")),
        sequence_id=int(own.get("sequence-id", 0)),
        publish_time=_milliseconds(own.get("publish-time", "0")),
        properties=[KeyValue(key=key, value=value) for key, value in properties.items()],
        null_value=own.get("null-value") == "true",
        null_partition_key=own.get("null-partition-key") == "true",
        encryption_keys=[_KEY_WITHHELD] if own.get("is-encrypted") == "true" else [],
    )
    if "num-batch-message" in own:
        found.num_messages_in_batch = int(own["num-batch-message"])
    if "event-time" in own:
        found.event_time = _milliseconds(own["event-time"])
    if "partition-key" in own:
        found.partition_key = _text(own["partition-key"])
        found.partition_key_b64_encoded = own.get("partition-key-b64-encoded") == "true"
    if "base64-ordering-key" in own:
        found.ordering_key = base64.b64decode(own["base64-ordering-key"])
    return found


def _milliseconds(text: str) -> int:
    """Parse a time in a header: ISO 8601, or a number for times outside the calendar."""
    if text.isdecimal():
        return int(text)
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _text(value: str) -> str:
    """Decode a text in a header. Brokers percent-encode only a text with characters other than
    printable ASCII: in a text without any, a percent sign is literal."""
    decoded = unquote(value)
    return value if decoded.isascii() and decoded.isprintable() else decoded
