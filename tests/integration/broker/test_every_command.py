"""Every command of the protocol in wrong forms: that connection ends, and nobody else notices.

The tables come from the protocol's own description, so a command that is added is in them.
"""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from magnetar.sdk.wire import BaseCommand, encode_command
from magnetar.sdk.wire.frames import COMMAND_FIELDS
from tests.integration.broker.raw_connection import RawConnection, send_frame
from tests.standalone import Standalone

_U32 = struct.Struct(">I")
_TOPIC = "persistent://public/default/beside"
_ONLY_BROKERS_SEND = {
    "connected",
    "send_receipt",
    "send_error",
    "message",
    "success",
    "error",
    "producer_success",
    "reached_end_of_topic",
    "active_consumer_change",
    "authChallenge",
    "watchTopicListSuccess",
    "watchTopicUpdate",
    "topicMigrated",
    "scalableTopicUpdate",
    "scalableTopicAssignmentUpdate",
    "watchScalableTopicsUpdate",
    "watchTcAssignmentsUpdate",
}


def is_for_clients(name: str) -> bool:
    is_answer = name.endswith("Response") and name != "authResponse"
    return is_answer or name in _ONLY_BROKERS_SEND


def has_required(name: str) -> bool:
    part = getattr(BaseCommand(), name)
    return any(field.is_required for field in part.DESCRIPTOR.fields)


def fill(part: Any) -> None:
    """Set what is required, to whatever its default is."""
    part.SetInParent()
    for field in part.DESCRIPTOR.fields:
        if not field.is_required:
            continue
        if field.message_type is not None:
            fill(getattr(part, field.name))
        else:
            setattr(part, field.name, getattr(part, field.name))


def minimal(name: str, number: int) -> BaseCommand:
    command = BaseCommand(type=number)  # type: ignore[arg-type]
    fill(getattr(command, name))
    assert command.IsInitialized()
    return command


def framed(command: bytes) -> bytes:
    return _U32.pack(4 + len(command)) + _U32.pack(len(command)) + command


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def with_content(number: int, content: bytes) -> bytes:
    """A command of a type, with this in its field; types and fields have the same numbers."""
    tag = varint(number << 3 | 2)
    return framed(b"\x08" + varint(number) + tag + varint(len(content)) + content)


def with_wrong_types(name: str, number: int) -> bytes:
    """Every field of the command is there, numbers as text and text as numbers."""
    content = b""
    for field in getattr(BaseCommand(), name).DESCRIPTOR.fields:
        is_number = field.cpp_type not in (
            FieldDescriptor.CPPTYPE_STRING,
            FieldDescriptor.CPPTYPE_MESSAGE,
        )
        content += varint(field.number << 3 | (2 if is_number else 0))
        content += b"\x01x" if is_number else b"\x01"
    return with_content(number, content)


FORMS: dict[str, bytes] = {}
for _number, _name in COMMAND_FIELDS.items():
    FORMS[f"{_name} without its field"] = framed(b"\x08" + varint(_number))
    FORMS[f"{_name} that is cut off"] = framed(b"\x08" + varint(_number) + b"\xfa")
    FORMS[f"{_name} with garbage"] = with_content(_number, b"\xff\xff\xff")
    if has_required(_name):
        FORMS[f"{_name} without required fields"] = with_content(_number, b"")
        FORMS[f"{_name} of wrong types"] = with_wrong_types(_name, _number)
    if is_for_clients(_name):
        FORMS[f"{_name} from a client"] = encode_command(minimal(_name, _number))


class Beside:
    """A producer whose receipts show that it is left alone."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._sent = 0
        connection.connect()
        connection.open_producer(_TOPIC)

    def check(self) -> None:
        self._connection.send(send_frame(b"as ever", sequence_id=self._sent))
        answer = self._connection.receive()
        assert answer.type == BaseCommand.SEND_RECEIPT, answer
        assert answer.send_receipt.sequence_id == self._sent
        self._sent += 1


@pytest.fixture(scope="module")
def beside(server: Standalone) -> Iterator[Beside]:
    with RawConnection(server.port) as connection:
        yield Beside(connection)


@pytest.mark.parametrize("name", FORMS)
def test_a_wrong_form_ends_its_connection_alone(
    server: Standalone, beside: Beside, name: str
) -> None:
    with RawConnection(server.port) as connection:
        connection.connect()
        connection.send_all_it_takes(FORMS[name])
        said = {each.type for each in connection.receive_until_closed()}
    assert said <= {BaseCommand.ERROR}
    beside.check()


@pytest.mark.parametrize("number", COMMAND_FIELDS, ids=COMMAND_FIELDS.get)
def test_nothing_but_connect_comes_first(server: Standalone, beside: Beside, number: int) -> None:
    name = COMMAND_FIELDS[number]
    with RawConnection(server.port) as connection:
        connection.send_all_it_takes(encode_command(minimal(name, number)))
        if name == "connect":
            assert connection.receive().type == BaseCommand.CONNECTED
        else:
            assert {each.type for each in connection.receive_until_closed()} <= {BaseCommand.ERROR}
    beside.check()
