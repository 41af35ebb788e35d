"""Commands of the binary protocol, good and odd: fields are filled by what the protocol says they
are. All chance comes from the random source that is passed in.
"""

import random
import struct
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from magnetar.sdk.wire import (
    COMMAND_FIELDS,
    BaseCommand,
    MessageMetadata,
    encode_command,
    encode_payload,
    encode_payload_command,
    pulsar_pb2,
)

NAMESPACE = "fuzz/n"
TOPICS = (
    *(f"persistent://{NAMESPACE}/{name}" for name in ("a", "b", "c", "d", "a-partition-0")),
    f"non-persistent://{NAMESPACE}/volatile",
)
_ODD_TOPICS = (
    *("", "a", "a/b", f"persistent://{NAMESPACE}/", "persistent://no/where/x", "ftp://fuzz/n/x"),
    *(f"persistent://{NAMESPACE}/ü", f"persistent://{NAMESPACE}/a%2Fb", "x" * 300, "persistent://"),
    *(f"persistent://{NAMESPACE}/p-partition-99999999999", "non-persistent://fuzz/n/\x00"),
    *(f"topic://{NAMESPACE}/a", "topic://a", f"segment://{NAMESPACE}/a/0000-ffff-0"),
)
_WORDS: dict[str, tuple[str, ...]] = {
    "topic": TOPICS,
    "subscription": ("s", "t", "u", ""),
    "namespace": (NAMESPACE, NAMESPACE, "public/default", "no/where", "", "a"),
    "topics_pattern": (
        ".*",
        "a.*",
        "(a|b)*",
        "(",
        "[",
        "a{1,9999}",
        f"persistent://{NAMESPACE}/.*",
    ),
    "producer_name": ("", "p", "q", "ü"),
    "auth_method_name": ("none", "token", "basic", "tls", ""),
    "schema_type": ("STRING", ""),
}
_ODD_STRINGS = ("", "x", "ü", "\x00", "a b", "x" * 500, "\U0001f600", "earliest")
_NUMBERS: dict[str, tuple[int, ...]] = {
    "producer_id": (0, 0, 1, 2),
    "consumer_id": (0, 0, 1, 2),
    "messagePermits": (1, 10, 1000, 0, (1 << 32) - 1),
    "partition": (-1, 0, 1),
    "num_messages": (1, 1, 2, 0, 1 << 30),
    "num_messages_in_batch": (1, 1, 2, 1000, 0),
    "protocol_version": (0, 6, 12, 20, 21, 99),
}
_EDGES_64 = (0, 1, 2, 10, 1 << 31, 1 << 53, (1 << 63) - 1)
_UNSIGNED_64_MAX = (1 << 64) - 1
_DEPTH_MAX = 3
_TYPES = (
    pulsar_pb2.CommandSubscribe.Exclusive,
    pulsar_pb2.CommandSubscribe.Shared,
    pulsar_pb2.CommandSubscribe.Failover,
    pulsar_pb2.CommandSubscribe.Key_Shared,
)
_BODY_BYTES_MAX = 300

_ASKED = tuple(
    getattr(BaseCommand, name)
    for name in (
        *("PRODUCER", "PRODUCER", "SUBSCRIBE", "SUBSCRIBE", "ACK", "ACK", "FLOW", "FLOW"),
        *("SEEK", "UNSUBSCRIBE", "CLOSE_PRODUCER", "CLOSE_CONSUMER", "LOOKUP"),
        *("REDELIVER_UNACKNOWLEDGED_MESSAGES", "PARTITIONED_METADATA", "CONSUMER_STATS"),
        *("GET_LAST_MESSAGE_ID", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA", "GET_OR_CREATE_SCHEMA"),
        *("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_CLOSE", "AUTH_RESPONSE", "PING", "PONG"),
        *("TC_CLIENT_CONNECT_REQUEST", "NEW_TXN", "ADD_PARTITION_TO_TXN", "END_TXN"),
        *("ADD_SUBSCRIPTION_TO_TXN", "END_TXN_ON_PARTITION", "END_TXN_ON_SUBSCRIPTION"),
        *("SCALABLE_TOPIC_LOOKUP", "SCALABLE_TOPIC_CLOSE", "SCALABLE_TOPIC_SUBSCRIBE"),
        *("SCALABLE_TOPIC_UNSUBSCRIBE", "WATCH_SCALABLE_TOPICS", "WATCH_TC_ASSIGNMENTS"),
    )
)
_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Input:
    """One frame, and the request in it that must be answered; None: maybe none is there."""

    data: bytes
    request_id: int | None
    name: str
    may_swallow: bool = False
    """The frame's size may lie: what comes behind is taken for a part of it."""


def connect_frame(chance: random.Random | None = None) -> bytes:
    """CONNECT; with a source of chance one that is odd."""
    command = BaseCommand(type=BaseCommand.CONNECT)
    if chance is not None:
        _fill(command.connect, chance, 0)
    else:
        command.connect.client_version = "fuzz"
        command.connect.protocol_version = 21
    return encode_command(command)


def one_input(chance: random.Random, request_id: int) -> Input:
    """A frame: mostly whole, with odd values in it."""
    lot = chance.random()
    if lot < 0.3:
        data = _send(chance)
        if chance.random() < 0.15:
            return Input(spoil_frame(chance, data), None, "spoiled send", may_swallow=True)
        return Input(data, None, "send")
    kinds = _ASKED if lot < 0.98 else tuple(COMMAND_FIELDS)
    command = _command(chance, chance.choice(kinds), request_id)
    name = COMMAND_FIELDS[command.type]
    data = encode_command(command)
    if chance.random() < 0.2:
        return Input(spoil_frame(chance, data), None, f"spoiled {name}", may_swallow=True)
    inner = getattr(command, name)
    return Input(data, inner.request_id if _is_request(inner) else None, name)


def opening(chance: random.Random, request_id: int) -> list[Input]:
    """A producer and a consumer of one topic, so that what follows has something to be about."""
    topic = chance.choice(TOPICS)
    producer = pulsar_pb2.CommandProducer(topic=topic, producer_id=0, request_id=request_id)
    subscribe = pulsar_pb2.CommandSubscribe(
        topic=topic,
        subscription=chance.choice(("s", "t")),
        subType=chance.choice(_TYPES),
        consumer_id=0,
        request_id=request_id + 1,
    )
    flow = pulsar_pb2.CommandFlow(consumer_id=0, messagePermits=1000)
    made = (
        BaseCommand(type=BaseCommand.PRODUCER, producer=producer),
        BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe),
        BaseCommand(type=BaseCommand.FLOW, flow=flow),
    )
    asked = (request_id, request_id + 1, None)
    return [
        Input(encode_command(command), id, COMMAND_FIELDS[command.type])
        for command, id in zip(made, asked, strict=True)
    ]


def spoil_frame(chance: random.Random, data: bytes) -> bytes:
    """Changed bytes, a size that lies, an end that is missing or has more behind it."""
    match chance.randrange(6):
        case 0 | 1:
            spoiled = bytearray(data)
            for _ in range(chance.randint(1, 4)):
                spoiled[chance.randrange(8, len(data))] ^= chance.randint(1, 255)
            return bytes(spoiled)
        case 2:
            sizes = (0, 3, 4, len(data) - 4, 1 << 20, (1 << 32) - 1, chance.getrandbits(8))
            at = chance.choice((0, 4))
            return data[:at] + _U32.pack(chance.choice(sizes)) + data[at + 4 :]
        case 3:  # cut, with sizes that fit
            command = data[8 : 8 + chance.randrange(len(data) - 7)]
            return _U32.pack(4 + len(command)) + _U32.pack(len(command)) + command
        case 4:  # a payload behind a command that has none
            more = chance.randbytes(chance.randrange(1, 60))
            return _U32.pack(len(data) - 4 + len(more)) + data[4:] + more
    command = chance.randbytes(chance.randrange(1, 60))
    return _U32.pack(4 + len(command)) + _U32.pack(len(command)) + command


def _send(chance: random.Random) -> bytes:
    send = pulsar_pb2.CommandSend(
        producer_id=chance.choice((0, 0, 0, 0, 1, 2)),
        sequence_id=chance.choice((*range(20), *_EDGES_64)),
    )
    if chance.random() < 0.2:
        _fill(send, chance, 0)
        send.producer_id = 0
    metadata = MessageMetadata(producer_name="fuzz", sequence_id=send.sequence_id, publish_time=1)
    if chance.random() < 0.4:
        _fill(metadata, chance, 0)
    payload = encode_payload(
        metadata.SerializeToString(), chance.randbytes(chance.randrange(_BODY_BYTES_MAX))
    )
    if chance.random() < 0.2:
        broken = bytearray(payload)
        at = chance.randrange(len(broken))
        broken[at : at + chance.randrange(5)] = chance.randbytes(chance.randrange(5))
        payload = bytes(broken)
    return encode_payload_command(BaseCommand(type=BaseCommand.SEND, send=send), payload)


def _command(chance: random.Random, kind: int, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.Type.Name(kind))
    inner = getattr(command, COMMAND_FIELDS[kind])
    inner.SetInParent()
    _fill(inner, chance, 0)
    fields = inner.DESCRIPTOR.fields_by_name
    if "request_id" in fields and (
        fields["request_id"].is_required or inner.HasField("request_id")
    ):
        inner.request_id = request_id
    return command


def _is_request(inner: Message) -> bool:
    """What has a request id is answered, unless it goes the other way."""
    fields = inner.DESCRIPTOR.fields_by_name
    name = inner.DESCRIPTOR.name
    if "request_id" not in fields or not inner.HasField("request_id"):
        return False
    return not name.endswith(("Response", "Success", "Error", "Update")) and name not in _NO_REQUEST


_NO_REQUEST = ("CommandCloseProducer", "CommandCloseConsumer", "CommandTopicMigrated")
"""Answered as well, but those of producers and consumers that are not there need not be."""


def _fill(message: Message, chance: random.Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and (depth > _DEPTH_MAX or chance.random() > 0.35):
            continue
        if field.is_repeated:
            for _ in range(chance.choice((0, 1, 1, 2, 5))):
                _append(getattr(message, field.name), field, chance, depth)
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(inner, chance, depth + 1)
        else:
            setattr(message, field.name, _scalar(field, chance))


def _append(values: Any, field: Any, chance: random.Random, depth: int) -> None:
    if field.message_type is None:
        values.append(_scalar(field, chance))
    else:
        _fill(values.add(), chance, depth + 1)


def _scalar(field: Any, chance: random.Random) -> object:
    kinds = FieldDescriptor
    if field.enum_type is not None:
        return chance.choice(field.enum_type.values).number
    if field.type == kinds.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type == kinds.TYPE_STRING:
        if field.name == "topic" and chance.random() < 0.1:
            return chance.choice(_ODD_TOPICS)
        return chance.choice(_WORDS.get(field.name, _ODD_STRINGS))
    if field.type == kinds.TYPE_BYTES:
        return chance.randbytes(chance.randrange(40))
    if field.type in (kinds.TYPE_DOUBLE, kinds.TYPE_FLOAT):
        return chance.choice((0.0, 1.5, -1.0, float("inf")))
    return _integer(field, chance)


def _integer(field: Any, chance: random.Random) -> int:
    kinds = FieldDescriptor
    values = _NUMBERS.get(field.name)
    number = chance.choice(values if values and chance.random() < 0.95 else _EDGES_64)
    match field.type:
        case kinds.TYPE_INT32 | kinds.TYPE_SINT32 | kinds.TYPE_SFIXED32:
            return chance.choice((-1, min(number, (1 << 31) - 1)))
        case kinds.TYPE_UINT32 | kinds.TYPE_FIXED32:
            return max(0, min(number, (1 << 32) - 1))
        case kinds.TYPE_UINT64 | kinds.TYPE_FIXED64:
            return chance.choice((max(0, number),) * 5 + (_UNSIGNED_64_MAX,))
    return chance.choice((number, number, -1))
