"""The Pulsar binary protocol: frames, commands, payloads, topic names. No I/O."""

from magnetar.sdk.wire import pulsar_pb2
from magnetar.sdk.wire.errors import (
    FrameError,
    FrameTooLargeError,
    MalformedFrameError,
    MalformedPayloadError,
    PayloadChecksumError,
    SdkError,
    ServiceError,
    TopicNameError,
    UnknownCommandError,
    WireError,
    service_error,
)
from magnetar.sdk.wire.frames import (
    COMMAND_FIELDS,
    FRAME_BYTES_MAX,
    FRAME_SLACK_BYTES,
    MESSAGE_BYTES_MAX,
    FrameDecoder,
    encode_command,
    encode_payload_command,
)
from magnetar.sdk.wire.hot_commands import (
    PING_FRAME,
    PONG_FRAME,
    append_messages,
    encode_message_prefix,
    encode_send_receipts,
)
from magnetar.sdk.wire.payload import (
    broker_entry_metadata,
    check_checksum,
    checksum,
    encode_payload,
    messages_in,
    open_payload,
    split_payload,
)
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, MessageMetadata
from magnetar.sdk.wire.topic_name import TopicName, parse_topic_name

__all__ = [
    "COMMAND_FIELDS",
    "FRAME_BYTES_MAX",
    "FRAME_SLACK_BYTES",
    "MESSAGE_BYTES_MAX",
    "PING_FRAME",
    "PONG_FRAME",
    "BaseCommand",
    "FrameDecoder",
    "FrameError",
    "FrameTooLargeError",
    "MalformedFrameError",
    "MalformedPayloadError",
    "MessageMetadata",
    "PayloadChecksumError",
    "SdkError",
    "ServiceError",
    "TopicName",
    "TopicNameError",
    "UnknownCommandError",
    "WireError",
    "append_messages",
    "broker_entry_metadata",
    "check_checksum",
    "checksum",
    "encode_command",
    "encode_message_prefix",
    "encode_payload",
    "encode_payload_command",
    "encode_send_receipts",
    "messages_in",
    "open_payload",
    "parse_topic_name",
    "pulsar_pb2",
    "service_error",
    "split_payload",
]
