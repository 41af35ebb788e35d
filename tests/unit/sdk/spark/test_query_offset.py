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


def test_offsets_of_other_topics_have_nothing_of_segments() -> None:
    """As older versions wrote them, and read them."""
    logged = QueryOffset({TOPIC: MessageId(5, 3)}, "s").to_json()
    names = ["topics", "subscription", "sliceEntries", "entriesLeft", "removedThrough", "joined"]
    assert list(logged) == names
    assert QueryOffset.from_json({"topics": {TOPIC: "5:3"}}).ended == frozenset()


def test_segments_that_have_ended_and_the_layouts_epoch_are_logged() -> None:
    segment = "segment://public/default/t/0000-ffff-0"
    offset = QueryOffset(
        {segment: MessageId(5, 3)},
        ended=frozenset({segment}),
        epochs={"topic://public/default/t": 4},
    )
    logged = offset.to_json()
    assert logged["endedSegments"] == [segment]
    assert logged["layoutEpochs"] == {"topic://public/default/t": 4}
    assert QueryOffset.from_json(logged) == offset
    for wrong in ({"endedSegments": "x"}, {"layoutEpochs": [4]}, {"endedSegments": [4]}):
        with pytest.raises(OffsetError):
            QueryOffset.from_json({**logged, **wrong})
