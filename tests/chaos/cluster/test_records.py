"""What the drill's clients write down comes back, and payloads say which message they are."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.chaos.cluster.checker import Message, Position, Windows, check
from tests.chaos.cluster.moves import moves_in
from tests.chaos.cluster.records import SUFFIX, Recorder, Records, message_of, payload_of
from tests.chaos.cluster.watch import Watch


def test_a_payload_says_which_message_it_is() -> None:
    for number in range(500):
        message = Message("produce-1-0", number)
        assert message_of(payload_of(message)) == message


@pytest.mark.parametrize(
    "spoiled", [b"", b"p", b"p|7", b"p|x|", b"p|7|nothing of ours", b"\xff|7|"]
)
def test_another_payload_is_noticed(spoiled: bytes) -> None:
    assert message_of(spoiled) is None


def test_a_payload_that_lost_its_end_is_noticed() -> None:
    payload = next(
        each for number in range(100) if len(each := payload_of(Message("p", number))) > 50
    )
    assert message_of(payload[:-1]) is None
    assert message_of(payload + b"x") is None


def _play(directory: Path, messages: int) -> None:
    """A topic with one producer, a reader, a consumer, and the last reader."""
    recorders = {name: Recorder(directory, name) for name in ("p", "r", "c", "finish")}
    for number in range(messages):
        message, position = Message("p", number), Position(3, number, -1)
        recorders["p"].sending("t", message)
        recorders["p"].acknowledged("t", message, position)
        recorders["r"].read("t", "r", message, position)
        recorders["c"].delivered("t", "s", message, position)
        recorders["c"].acked("t", "s", position)
        recorders["finish"].read("t", "finish", message, position)
    for recorder in recorders.values():
        recorder.end()


def test_records_come_back_as_a_history_that_can_be_judged(tmp_path: Path) -> None:
    _play(tmp_path, 30)
    Recorder(tmp_path, "c").tried_again("acknowledge: Timeout")
    Recorder(tmp_path, "c").wrong("at 3:4 is\nnonsense")
    records = Records().load(tmp_path, content_reader="finish", ordered=["s"])
    problems, counts = check(records.histories["t"], Windows([]))
    assert problems == []
    assert (counts.acknowledged, counts.in_topics, counts.read) == (30, 30, 30)
    assert (counts.consumed, counts.acked) == (30, 30)
    assert records.histories["t"].subscriptions["s"].is_ordered
    assert records.tried_again == {"acknowledge: Timeout": 1}
    assert records.wrong == ["c: at 3:4 is nonsense"]
    assert records.ended == {"p", "r", "c", "finish"}


def test_the_watch_sees_what_was_appended_since(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    _play(tmp_path, 2)
    watch.look()
    keys = set(watch.last_s)
    assert ("a", "t", "p") in keys
    assert ("d", "t", "s") in keys
    before_s = max(watch.last_s.values())
    assert set(watch.quiet_since(before_s, keys)) == keys
    Recorder(tmp_path, "p").acknowledged("t", Message("p", 2), Position(3, 2, -1))
    watch.look()
    assert set(watch.quiet_since(before_s, keys)) == keys - {("a", "t", "p")}


def test_a_publish_gap_that_still_lasts_counts(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    now_s = time.monotonic()
    (tmp_path / f"p{SUFFIX}").write_text(
        f"a t p 0 3:0:-1 {now_s - 700}\na t p 1 3:1:-1 {now_s - 500}\n"
    )
    watch.look()
    assert watch.longest_publish_gap_s() >= 500
    Recorder(tmp_path, "p").acknowledged("t", Message("p", 2), Position(3, 2, -1))
    watch.look()
    assert watch.longest_publish_gap_s() >= 500
    watch.forget_gaps()
    assert watch.longest_publish_gap_s() < 500


def test_moves_are_found_in_the_log_of_a_broker(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    now = datetime.now(UTC)
    lines = [
        {"event": "topic_fenced", "timestamp": now.isoformat()},
        {"event": "topic_loaded", "timestamp": now.isoformat()},
        {"event": "bundle_unloaded", "timestamp": (now + timedelta(seconds=5)).isoformat()},
    ]
    path.write_text("\n".join([*map(json.dumps, lines), "no topic_closed of ours"]) + "\n")
    first, second = moves_in([path])
    assert 4.9 < second - first < 5.1
