from typing import Any

import pytest

from magnetar.deploy.errors import SettingsError
from magnetar.deploy.message_format import parse_format
from magnetar.sdk.batch import EntrySource, MessageBatch
from magnetar.sdk.message import Message
from magnetar.sdk.wire import MessageMetadata, encode_payload

SOURCE = EntrySource("persistent://public/default/orders")


def message(data: bytes = b"\xffbody", **fields: Any) -> Message:
    given = {"producer_name": "p", "sequence_id": 1, "publish_time": 1_700_000_000_123, **fields}
    payload = encode_payload(MessageMetadata(**given).SerializeToString(), data)
    return MessageBatch(payload, SOURCE, 3, 4).messages()[0]


def printed(text: str, **fields: Any) -> bytes:
    return parse_format(text).bytes_of(message(**fields), as_is=False)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("%k %v", b"key \xffbody\n"),
        ("%i", b"3:4\n"),
        ("%t", b"persistent://public/default/orders\n"),
        ("%T %e", b"1700000000123 0\n"),
        ("%d", b"2023-11-14T22:13:20.123+00:00\n"),
        ("%p{a}/%p{b}", b"1/\n"),
        ("%p", b'{"a": "1"}\n'),
        (r"100%%\t\\", b"100%\t\\\n"),
        ("%k{%k}", b"key{key}\n"),
    ],
)
def test_placeholders_stand_for_parts_of_the_message(text: str, wanted: bytes) -> None:
    properties = [{"key": "a", "value": "1"}]
    assert printed(text, partition_key="key", properties=properties) == wanted


def test_a_line_ends_once_or_by_a_zero_byte() -> None:
    assert printed("x") == printed(r"x\n") == printed("x\n") == b"x\n"
    assert printed(r"x\0") == b"x\0"


def test_a_message_without_a_key_prints_none_and_bytes_stay_bytes() -> None:
    assert printed("[%k]") == b"[]\n"
    assert printed("%k", partition_key="/w==", partition_key_b64_encoded=True) == b"\xff\n"


def test_a_time_beyond_every_calendar_is_a_number() -> None:
    assert printed("%d", publish_time=1 << 62) == b"%d\n" % (1 << 62)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%z", "unknown '%z'; known are %%, %v, %k"),
        (r"\x", "known are"),
        ("50%", "'%' at its end"),
        ("a\\", "at its end"),
    ],
)
def test_a_bad_format_says_what_there_is(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match="bad --format") as refused:
        parse_format(text)
    assert said in str(refused.value)
