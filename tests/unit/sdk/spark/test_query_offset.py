"""The offset of a streaming query: what lies in checkpoints."""

import pytest

from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark.errors import OffsetError
from magnetar.sdk.spark.query_offset import QueryOffset

TOPIC = "persistent://public/default/t"


def test_a_checkpoint_gives_back_what_was_logged() -> None:
    topics = {TOPIC: MessageId(5, 3, 1), "u": MessageId(-1, -1)}
    offset = QueryOffset(topics, "spark-1", {TOPIC: 7}, {TOPIC: 9}, {"u": -1})
    assert QueryOffset.from_json(offset.to_json()) == offset
    with pytest.raises(OffsetError):
        QueryOffset.from_json({"index": 5})
