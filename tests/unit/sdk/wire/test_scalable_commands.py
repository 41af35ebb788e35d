"""The commands of Pulsar 5: numbers on the wire, what is absent, and bytes written by hand.

The bytes follow the field numbers of the sheet of Pulsar 5, sections 1.2 and 1.3.
"""

import pytest

from magnetar.sdk.wire import (
    COMMAND_FIELDS,
    BaseCommand,
    FrameDecoder,
    MalformedFrameError,
    encode_command,
)
from magnetar.sdk.wire import pulsar_pb2 as pb

_NUMBERS = {
    70: "SCALABLE_TOPIC_LOOKUP",
    71: "SCALABLE_TOPIC_UPDATE",
    72: "SCALABLE_TOPIC_CLOSE",
    73: "SCALABLE_TOPIC_SUBSCRIBE",
    74: "SCALABLE_TOPIC_SUBSCRIBE_RESPONSE",
    75: "SCALABLE_TOPIC_ASSIGNMENT_UPDATE",
    76: "WATCH_SCALABLE_TOPICS",
    77: "WATCH_SCALABLE_TOPICS_UPDATE",
    78: "WATCH_SCALABLE_TOPICS_CLOSE",
    79: "WATCH_TC_ASSIGNMENTS",
    80: "WATCH_TC_ASSIGNMENTS_UPDATE",
    81: "WATCH_TC_ASSIGNMENTS_CLOSE",
    82: "SCALABLE_TOPIC_UNSUBSCRIBE",
}


def _framed(command: bytes) -> bytes:
    sized = len(command).to_bytes(4, "big") + command
    return len(sized).to_bytes(4, "big") + sized


def _decoded(data: bytes) -> BaseCommand:
    ((command, _),) = FrameDecoder().feed(data)
    return command


@pytest.mark.parametrize(("number", "name"), _NUMBERS.items())
def test_the_type_and_the_field_of_a_command_have_its_number(number: int, name: str) -> None:
    assert BaseCommand.Type.Name(number) == name
    assert number in COMMAND_FIELDS


def test_a_lookup_is_read_and_creates_what_is_missing_unless_it_says_no() -> None:
    request = _decoded(_framed(bytes.fromhex("0846 b20405 0807 120174"))).scalableTopicLookup
    assert (request.session_id, request.topic) == (7, "t")
    assert request.create_if_missing
    assert not _decoded(
        _framed(bytes.fromhex("0846 b20407 0807 120174 1800"))
    ).scalableTopicLookup.create_if_missing


def test_a_layout_is_written_with_the_numbers_of_its_fields() -> None:
    update = pb.CommandScalableTopicUpdate(
        session_id=1,
        dag=pb.ScalableTopicDAG(
            epoch=2,
            segments=[
                pb.SegmentInfoProto(
                    segment_id=0,
                    hash_start=0,
                    hash_end=65535,
                    state=pb.ACTIVE,
                    created_at_epoch=0,
                    created_at_ms=3,
                    legacy_topic_name="l",
                )
            ],
            controller_broker_url="c",
        ),
        resolved_topic_name="r",
    )
    segment = bytes.fromhex("0800 1000 18ffff03 2000 3800 4803 5a016c")
    dag = b"\x08\x02\x12" + bytes([len(segment)]) + segment + bytes.fromhex("220163")
    body = b"\x08\x01\x12" + bytes([len(dag)]) + dag + bytes.fromhex("2a0172")
    whole = bytes.fromhex("0847 ba04") + bytes([len(body)]) + body
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE, scalableTopicUpdate=update)
    assert encode_command(command) == _framed(whole)


def test_a_registration_is_read_and_its_answer_written() -> None:
    body = bytes.fromhex("0801 120174 1a0173 220163 2809 3001")
    command = _decoded(_framed(bytes.fromhex("0849 ca04") + bytes([len(body)]) + body))
    request = command.scalableTopicSubscribe
    assert (request.request_id, request.topic, request.subscription) == (1, "t", "s")
    assert (request.consumer_name, request.consumer_id) == ("c", 9)
    assert request.consumer_type == pb.CHECKPOINT
    answer = pb.CommandScalableTopicSubscribeResponse(
        request_id=1,
        assignment=pb.ScalableConsumerAssignment(
            layout_epoch=2,
            segments=[
                pb.ScalableAssignedSegment(
                    segment_id=4, hash_start=0, hash_end=1, segment_topic="l"
                )
            ],
        ),
    )
    segment = bytes.fromhex("0804 1000 1801 22016c")
    assignment = b"\x08\x02\x12" + bytes([len(segment)]) + segment
    expected = b"\x08\x01\x22" + bytes([len(assignment)]) + assignment
    assert answer.SerializeToString() == expected


@pytest.mark.parametrize("number", sorted(_NUMBERS))
def test_a_command_without_its_required_fields_is_malformed(number: int) -> None:
    tag = (number << 3 | 2) & 0x7F | 0x80, (number << 3 | 2) >> 7
    with pytest.raises(MalformedFrameError, match="lacks a required field"):
        _decoded(_framed(bytes([8, number, *tag, 0])))


def test_flags_8_and_9_announce_layouts_and_coordinators() -> None:
    fields = pb.FeatureFlags.DESCRIPTOR.fields_by_number
    assert fields[8].name == "supports_scalable_topics"
    assert fields[9].name == "supports_tc_metadata_discovery"
