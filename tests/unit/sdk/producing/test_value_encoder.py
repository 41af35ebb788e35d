"""From values to messages: what may go as plain payloads, and what may not."""

from magnetar.sdk.producing.value_encoder import ValueEncoder
from magnetar.sdk.schemas import STRING
from magnetar.sdk.schemas.key_value import KeyValue, KeyValueEncoding, KeyValueSchema


def test_values_go_as_plain_payloads_only_if_none_has_a_key() -> None:
    schema = KeyValueSchema(STRING, STRING, KeyValueEncoding.SEPARATED)
    encoder: ValueEncoder[KeyValue[str, str]] = ValueEncoder("t", schema, ())
    without: KeyValue[str, str] = KeyValue(None, "a")
    assert encoder.payloads([without, without]) == [b"a", b"a"]
    assert encoder.payloads([without, KeyValue("k", "b")]) is None
