"""A read that has failed or was closed has no end any more: a part is never taken for the whole."""

from collections.abc import Generator, Iterator

import pyarrow as pa
import pytest

from magnetar.arrow import reading
from magnetar.arrow.change_token import parse_token
from magnetar.arrow.errors import UnreachableError
from magnetar.arrow.ordered_batches import OrderedBatches
from magnetar.arrow.reading import batches_in_order
from magnetar.arrow.request import checked_changes
from magnetar.arrow.slice_jobs import SliceJob
from magnetar.arrow.stored.column_names import KEY, MESSAGE_ID, TOPIC
from magnetar.arrow.stored.column_types import CHANGE, UPSERT
from magnetar.arrow.stored.slices import LedgerPart, Slice
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.arrow.tables import Changes, _Plan, _Topic
from magnetar.sdk.errors import AlreadyClosedError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData

NAME = "persistent://public/default/t"
SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field(KEY, pa.binary()),
        pa.field(TOPIC, pa.string()),
        pa.field(MESSAGE_ID, pa.binary()),
        pa.field(CHANGE, pa.string()),
    ]
)
REQUEST, _ = checked_changes("t", {"service_url": "pulsar://b:6650", "admin_url": "http://b:8080"})
JOBS = [SliceJob(Slice(NAME, -1, (LedgerPart(1, 0, 9),)), tuple(SCHEMA.names))]


def batch(entry_id: int) -> pa.RecordBatch:
    row = {
        "value": b"v",
        KEY: b"k",
        TOPIC: NAME,
        MESSAGE_ID: MessageIdData(ledgerId=1, entryId=entry_id).SerializeToString(),
        CHANGE: UPSERT,
    }
    return pa.RecordBatch.from_pylist([row], SCHEMA)


class Worker:
    """Reads entries 0 to 2 of 10, and then loses its broker; or all of them."""

    fails = True

    def batches(self, _: SliceJob) -> Generator[pa.RecordBatch, None, None]:
        for entry_id in range(3 if self.fails else 10):
            yield batch(entry_id)
        if self.fails:
            raise UnreachableError("the broker is away")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> type[Worker]:
    class Worked(Worker):
        """A worker of one test."""

    monkeypatch.setattr(reading, "_ThreadWorker", Worked)
    return Worked


@pytest.fixture
def feed() -> Iterator[Changes]:
    state = TopicState(NAME, -1, end=MessageId(1, 9))
    topics = {NAME: _Topic(state, -1, frozenset())}
    feed = Changes(_Plan(REQUEST, SCHEMA, ["value"], JOBS, topics), {})
    yield feed
    feed.close()


def reached(feed: Changes) -> int:
    """Return the last entry that a feed's token covers."""
    return parse_token(feed.token)[NAME].entry_id


def test_a_feed_that_is_read_on_after_an_error_fails_again_and_keeps_its_token(
    feed: Changes,
) -> None:
    for _ in range(3):
        with pytest.raises(UnreachableError):
            list(feed)
        assert reached(feed) == 2


def test_a_closed_feed_refuses_to_be_read_on_and_keeps_its_token(
    feed: Changes, worker: type[Worker]
) -> None:
    worker.fails = False
    next(feed)
    feed.close()
    feed.close()
    for _ in range(2):
        with pytest.raises(AlreadyClosedError):
            next(feed)
        assert reached(feed) == 0


def test_a_feed_that_has_ended_stays_so_also_once_it_is_closed(
    feed: Changes, worker: type[Worker]
) -> None:
    worker.fails = False
    assert len(list(feed)) == 10
    feed.close()
    assert list(feed) == []
    assert reached(feed) == 9


def test_a_feed_that_was_interrupted_refuses_to_be_read_on(
    feed: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: OrderedBatches) -> pa.RecordBatch:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OrderedBatches, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(feed)
    with pytest.raises(AlreadyClosedError, match="interrupted"):
        next(feed)
    assert parse_token(feed.token) == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_feed_whose_batch_was_lost_after_the_read_refuses_to_be_read_on(
    feed: Changes, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The caller never got that batch; a later one would have the token skip it."""

    def failed(*_: object) -> None:
        raise error

    next(feed)
    with monkeypatch.context() as patch:
        patch.setattr(_Plan, "reached", failed)
        with pytest.raises(error):
            next(feed)
    for _ in range(2):
        with pytest.raises(AlreadyClosedError):
            next(feed)
        assert reached(feed) == 0


def test_a_reader_that_is_read_on_after_an_error_fails_again() -> None:
    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches_in_order(REQUEST, JOBS))
    for _ in range(3):
        with pytest.raises(UnreachableError):
            reader.read_all()
