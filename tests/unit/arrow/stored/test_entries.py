"""Entries of every kind become the rows of their messages, with ids and times of their own."""

import base64
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from magnetar.arrow.stored.arrow_rows import BYTES_MAX, ArrowRows
from magnetar.arrow.stored.column_types import ERROR_FIELD, METADATA_FIELDS
from magnetar.arrow.stored.entries import EntryRows, FetchBefore
from magnetar.arrow.stored.errors import CorruptDataError, SchemaMismatchError
from magnetar.arrow.stored.slices import DROPMALFORMED, FAILFAST, PERMISSIVE, ValueSchema
from magnetar.arrow.stored.values import value_columns
from magnetar.sdk.batch import encode_batch, encode_plain_batch
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.frames import encode_payload
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

SCHEMA = pa.schema([pa.field("value", pa.binary()), *METADATA_FIELDS])
BYTES = ValueSchema()


Entry = tuple[int, int, bytes]


def nothing_before(_ledger_id: int, _entry_id: int) -> Iterator[Entry]:
    return iter(())


class Rows:
    """What a slice becomes, without a bookie."""

    def __init__(
        self,
        fetch_before: FetchBefore = nothing_before,
        *,
        mode: str = FAILFAST,
        schema: pa.Schema = SCHEMA,
        values: ValueSchema = BYTES,
    ) -> None:
        self._rows = ArrowRows(
            schema, topic="t", partition=3, values=value_columns(schema.names, values), mode=mode
        )
        self._entries = EntryRows(
            self._rows,
            topic="t",
            fetch_before=fetch_before,
            decompressed_bytes_max=1 << 20,
            chunked_bytes_max=1 << 20,
        )

    def add(self, entry_id: int, body: bytes, *, skip_through: int = -1, **fields: object) -> None:
        metadata = MessageMetadata(producer_name="p", sequence_id=0)
        for name, value in fields.items():
            setattr(metadata, name, value)
        payload = encode_payload(metadata.SerializeToString(), body)
        self.add_payload(entry_id, payload, skip_through=skip_through)

    def add_payload(self, entry_id: int, payload: bytes, *, skip_through: int = -1) -> None:
        self._entries.add(7, entry_id, payload, skip_through=skip_through)

    @property
    def is_full(self) -> bool:
        return self._rows.is_full

    def take(self) -> pa.RecordBatch:
        return self._rows.take()


def column(batch: pa.RecordBatch, name: str) -> list[object]:
    found: list[object] = batch.column(batch.schema.names.index(name)).to_pylist()
    return found


def ids(batch: pa.RecordBatch) -> list[tuple[int, int, int, int]]:
    found = []
    for each in column(batch, "__messageId"):
        assert isinstance(each, bytes)
        at = MessageId.from_bytes(each)
        found.append((at.ledger_id, at.entry_id, at.partition, at.batch_index))
    return found


def micros(batch: pa.RecordBatch, name: str) -> list[object]:
    values = batch.column(batch.schema.names.index(name))
    return list(values.view(pa.int64()).to_pylist())


def test_single_messages_have_ids_without_index_and_times_of_their_own() -> None:
    rows = Rows()
    for entry_id in range(3):
        rows.add(entry_id, b"%d" % entry_id, publish_time=1_000 + entry_id)
    batch = rows.take()
    assert column(batch, "value") == [b"0", b"1", b"2"]
    assert ids(batch) == [(7, entry_id, 3, -1) for entry_id in range(3)]
    assert micros(batch, "__publishTime") == [1_000_000, 1_001_000, 1_002_000]


def test_a_batch_of_nothing_moves_no_time_to_another_message() -> None:
    rows = Rows()
    rows.add(0, encode_plain_batch([b"a", b"b"], 0), publish_time=5, num_messages_in_batch=2)
    rows.add(1, b"", publish_time=6, num_messages_in_batch=0)
    rows.add(2, b"c", publish_time=7)
    batch = rows.take()
    assert column(batch, "value") == [b"a", b"b", b"c"]
    assert micros(batch, "__publishTime") == [5_000, 5_000, 7_000]
    assert ids(batch) == [(7, 0, 3, 0), (7, 0, 3, 1), (7, 2, 3, -1)]


def test_what_is_left_of_a_batch_keeps_its_keys_times_and_properties() -> None:
    """Read by hand and by protobuf alike: the third has properties, the fourth was compacted."""
    extras = [
        SingleMessageMetadata(partition_key="k0", event_time=1_700_000_000_000),
        SingleMessageMetadata(partition_key="k1", event_time=1_700_000_000_001),
        SingleMessageMetadata(partition_key="k2", properties=[KeyValue(key="a", value="b")]),
        SingleMessageMetadata(partition_key="k3", compacted_out=True),
        SingleMessageMetadata(event_time=1_700_000_000_004),
    ]
    values = [b"value %d" % number for number in range(5)]
    body = encode_batch(values, [each.SerializePartialToString() for each in extras], 0)
    rows = Rows()
    rows.add(9, body, skip_through=0, publish_time=5, num_messages_in_batch=5)
    batch = rows.take()
    assert column(batch, "value") == [values[1], values[2], values[4]]
    assert column(batch, "__key") == [b"k1", b"k2", None]
    assert column(batch, "__messageProperties") == [[], [("a", "b")], []]
    assert micros(batch, "__eventTime") == [1_700_000_000_001_000, None, 1_700_000_000_004_000]
    assert ids(batch) == [(7, 9, 3, 1), (7, 9, 3, 2), (7, 9, 3, 4)]


@pytest.mark.parametrize(
    ("key", "is_base64", "expected"),
    [
        ("a2V5", True, b"key"),
        ("abcde", True, b"abcde"),
        ("\u00e9", True, "\u00e9".encode()),
        ("KEY", False, b"\xff\xfe\xfd"),
    ],
    ids=["base64", "no base64", "no ASCII", "no UTF-8"],
)
@pytest.mark.parametrize("is_batch", [True, False])
def test_a_key_that_is_not_what_it_says_is_the_text_there_is_and_stops_nothing(
    key: str, is_base64: bool, expected: bytes, is_batch: bool
) -> None:
    """As consumers have it."""
    kind = SingleMessageMetadata if is_batch else MessageMetadata
    fields = kind(
        partition_key=key,
        partition_key_b64_encoded=is_base64,
        properties=[KeyValue(key="p", value="VAL")],
    )
    # Producers in other languages write bytes that are no text.
    metadata = fields.SerializePartialToString()
    metadata = metadata.replace(b"KEY", b"\xff\xfe\xfd").replace(b"VAL", b"v\xff!")
    rows = Rows()
    if is_batch:
        rows.add(1, encode_batch([b"x"], [metadata], 0), publish_time=1, num_messages_in_batch=1)
    else:
        head = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        rows.add_payload(1, encode_payload(head.SerializeToString() + metadata, b"x"))
    batch = rows.take()
    assert column(batch, "__key") == [expected]
    assert column(batch, "__messageProperties") == [[("p", "v\ufffd!")]]


@pytest.mark.parametrize(
    "fields",
    [
        MessageMetadata(partition_key="k" * BYTES_MAX),
        MessageMetadata(properties=[KeyValue(key="p", value="v" * BYTES_MAX)]),
    ],
    ids=["key", "properties"],
)
def test_keys_and_properties_count_towards_the_size_of_a_batch(fields: MessageMetadata) -> None:
    """Ten thousand messages of nothing else would be gigabytes."""
    rows = Rows()
    assert not rows.is_full
    head = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    head.MergeFrom(fields)
    rows.add_payload(1, encode_payload(head.SerializeToString(), b""))
    assert rows.is_full
    rows.take()
    assert not rows.is_full


def stored(body: bytes, **fields: object) -> bytes:
    """An entry of the producer `p`."""
    metadata = MessageMetadata(producer_name="p", publish_time=1)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return encode_payload(metadata.SerializeToString(), body)


def test_a_message_that_never_began_is_looked_for_up_to_the_one_before_it() -> None:
    """A producer sends its messages one behind the other: before that one there is no chunk."""
    chunked: dict[str, Any] = {
        "uuid": "u",
        "num_chunks_from_msg": 3,
        "sequence_id": 5,
        "publish_time": 1,
    }
    before = [
        stored(b"b", chunk_id=1, **chunked),
        stored(b"of somebody else", sequence_id=1, producer_name="q"),
        stored(b"", marker_type=10, producer_name="", sequence_id=0),
        stored(b"what it sent before", sequence_id=4),
        stored(b"a", chunk_id=0, **chunked),
    ]
    taken: list[bytes] = []

    def fetch_before(_ledger_id: int, _entry_id: int) -> Iterator[Entry]:
        for entry_id, each in zip(range(19, -1, -1), before, strict=False):
            taken.append(each)
            yield 7, entry_id, each

    rows = Rows(fetch_before)
    rows.add(20, b"c", chunk_id=2, **chunked)
    rows.add(21, b"whole", sequence_id=6, publish_time=1)
    assert column(rows.take(), "value") == [b"whole"]
    assert taken == before[:4]


class Before:
    """Many entries before a slice, in ledger 6, and those of the slice that were read, as a search
    gets them."""

    def __init__(self, *nearest_first: bytes) -> None:
        others = [stored(b"x", producer_name=f"q-{number}", sequence_id=0) for number in range(100)]
        self.entries = [*others, *nearest_first, *others]
        self.slice: list[bytes] = []
        self.fetched = 0

    def fetch(self, ledger_id: int, entry_id: int) -> Iterator[Entry]:
        count = len(self.entries)
        before = [(6, count - 1 - at, each) for at, each in enumerate(self.entries)]
        of_slice = [(7, at, each) for at, each in enumerate(self.slice)]
        for each in [*reversed(of_slice), *before]:
            if each[:2] < (ledger_id, entry_id):
                self.fetched += 1
                yield each


def _end(of: str) -> dict[str, Any]:
    """The last chunk of a message of a producer that stored nothing else."""
    return {**_chunk(1, 2, b"end", uuid=of), "producer_name": of}


def test_one_search_in_vain_does_for_all_ends_without_a_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = Before()
    rows = Rows(before.fetch)
    for number in range(50):
        rows.add(number, **_end(f"u-{number}"))
    rows.add(50, b"whole", publish_time=1)
    assert column(rows.take(), "value") == [b"whole"]
    assert before.fetched == len(before.entries)
    assert len(caplog.messages) == 1


def test_a_search_goes_on_where_others_have_ended() -> None:
    """Each is ended by an earlier message of its producer, far before the slice."""
    before = Before(*[stored(b"x", producer_name="p", sequence_id=4)] * 3)
    rows = Rows(before.fetch)
    for number in range(50):
        end = _chunk(1, 2, b"end", uuid=f"u-{number}")
        rows.add(number, **end)
        before.slice.append(stored(**end))
    rows.add(50, **_end("of another producer"))
    rows.add(51, **_end("of one more"))
    assert column(rows.take(), "value") == []
    assert before.fetched == len(before.entries)


def test_a_search_that_goes_on_finds_a_message_that_began_before_all_others() -> None:
    begun = {**_chunk(0, 2, b"begun, ", uuid="begun"), "producer_name": "begun"}
    before = Before(stored(b"x", producer_name="p", sequence_id=4))
    before.entries.append(stored(**begun))
    rows = Rows(before.fetch)
    rows.add(0, **_chunk(1, 2, b"end", uuid="never begun"))
    assert before.fetched == 101
    rows.add(1, **_end("begun"))
    assert column(rows.take(), "value") == [b"begun, end"]
    assert before.fetched == len(before.entries)


def test_no_search_goes_past_an_earlier_message_of_the_producer_in_the_slice() -> None:
    """Below there may be more entries than a search may read, which would be an error."""
    before = Before(stored(b"x", producer_name="p", sequence_id=4))
    rows = Rows(before.fetch)
    rows.add(0, **_chunk(1, 2, b"end", uuid="never begun"))
    rows.add(1, b"whole", publish_time=1, producer_name="late", sequence_id=4)
    rows.add(2, **{**_end("late"), "producer_name": "late"})
    assert before.fetched == 101
    assert column(rows.take(), "value") == [b"whole"]


def test_an_end_that_is_stored_again_is_not_searched_for() -> None:
    before = Before(stored(**_end("ended")), stored(b"x", producer_name="p", sequence_id=4))
    rows = Rows(before.fetch)
    rows.add(0, **_chunk(1, 2, b"end", uuid="never begun"))
    whole = {**_end("whole"), "producer_name": "whole"}
    rows.add(1, **{**whole, "chunk_id": 0, "body": b"begun, "})
    rows.add(2, **whole)
    fetched = before.fetched
    rows.add(3, **whole)
    rows.add(4, **_end("ended"))
    assert before.fetched == fetched == 102
    assert column(rows.take(), "value") == [b"begun, end"]


def test_a_search_in_vain_takes_no_message_away() -> None:
    """Of one message, the beginning is before the slice; of another one, it was dropped since."""
    begun = {**_chunk(0, 2, b"begun, ", uuid="begun"), "producer_name": "begun"}
    before = Before(stored(**begun))
    rows = Rows(before.fetch)
    rows.add(0, **_end("never begun"))
    rows.add(1, **_end("begun"))
    dropped = {**_chunk(0, 2, b"dropped, ", uuid="dropped"), "producer_name": "dropped"}
    rows.add(2, **dropped)
    before.entries.insert(0, stored(**dropped))
    rows.add(3, **_chunk(0, 2, bytes(1 << 20), uuid="large"))
    rows.add(4, **_end("dropped"))
    assert column(rows.take(), "value") == [b"begun, end", b"dropped, end"]


def _chunk(number: int, of: int, body: bytes, *, uuid: str = "u") -> dict[str, Any]:
    return {
        "body": body,
        "uuid": uuid,
        "chunk_id": number,
        "num_chunks_from_msg": of,
        "sequence_id": 5,
        "publish_time": 1,
    }


def test_a_message_beyond_the_limit_is_refused_and_not_put_together() -> None:
    """The message's chunks were dropped one after the other; they must not all come back at its
    end."""
    part = b"x" * (400 << 10)
    stored_chunks = [stored(**_chunk(number, 4, part)) for number in range(3)]
    fetched: list[bytes] = []

    def fetch_before(_ledger_id: int, _entry_id: int) -> Iterator[Entry]:
        for entry_id, each in reversed(list(enumerate(stored_chunks))):
            fetched.append(each)
            yield 7, entry_id, each

    rows = Rows(fetch_before)
    for number in range(3):
        rows.add(number, **_chunk(number, 4, part))
    with pytest.raises(CorruptDataError, match=r"7:3: it is a message of .* maxChunkedBytes"):
        rows.add(3, **_chunk(3, 4, part))
    assert len(fetched) <= 2


@pytest.mark.parametrize(
    ("numbers", "messages"),
    [
        ([0, 1, 2, 2], 1),
        ([0, 1, 2, 1, 2], 1),
        ([0, 1, 1, 2], 1),
        ([0, 1, 2, 0, 1, 2], 2),
    ],
)
@pytest.mark.parametrize("slice_entries", [1, 2, 6])
def test_chunks_that_are_stored_again_make_a_message_as_often_as_for_consumers(
    numbers: list[int], messages: int, slice_entries: int
) -> None:
    """As when a connection ends before the receipts come, wherever slices are cut."""
    entries = [_chunk(number, 3, b"%d" % number) for number in numbers]

    def fetch_before(_ledger_id: int, entry_id: int) -> Iterator[Entry]:
        found = [(7, at, stored(**each)) for at, each in enumerate(entries[:entry_id])]
        return reversed(found)

    found: list[object] = []
    for first in range(0, len(entries), slice_entries):
        rows = Rows(fetch_before)
        for entry_id, each in enumerate(entries[first : first + slice_entries], first):
            rows.add(entry_id, **each)
        found += column(rows.take(), "value")
    assert found == [b"012"] * messages


@pytest.mark.parametrize(("number", "of"), [(5, 2), (-1, 2), (2, 2)])
def test_a_chunk_with_a_number_that_its_message_does_not_have_is_refused(
    number: int, of: int
) -> None:
    rows = Rows()
    with pytest.raises(CorruptDataError, match=f"7:0: it is chunk {number} of a message of {of}"):
        rows.add(0, **_chunk(number, of, b"a"))


def test_a_time_that_spark_does_not_have_is_null_and_stops_nothing() -> None:
    rows = Rows()
    rows.add(0, b"a", publish_time=1_000, event_time=1_700_000_000_000_000_000)
    rows.add(1, b"b", publish_time=(1 << 64) - 1, event_time=7)
    rows.add(2, encode_plain_batch([b"c", b"d"], 0), publish_time=5, num_messages_in_batch=2)
    batch = rows.take()
    assert column(batch, "value") == [b"a", b"b", b"c", b"d"]
    assert micros(batch, "__publishTime") == [1_000_000, None, 5_000, 5_000]
    assert micros(batch, "__eventTime") == [None, 7_000, None, None]


def test_a_key_in_base64_of_several_lines_is_decoded() -> None:
    key = bytes(range(100))
    rows = Rows()
    for entry_id, text in enumerate((base64.encodebytes(key).decode(), "not base64!\r\n")):
        rows.add(entry_id, b"x", publish_time=1, partition_key=text, partition_key_b64_encoded=True)
    assert column(rows.take(), "__key") == [key, b"not base64!\r\n"], "what is none stays as it is"


NUMBERS = pa.schema([pa.field("value", pa.int32()), *METADATA_FIELDS, ERROR_FIELD])


def with_bad_ones(mode: str) -> Rows:
    """A number; a batch with one that is none in the middle; one encrypted; one in no batch that
    says it is one; a number."""
    rows = Rows(mode=mode, schema=NUMBERS, values=ValueSchema("INT32"))
    rows.add(0, b"\0\0\0\1", publish_time=1)
    batch = encode_plain_batch([b"\0\0\0\2", b"no number", b"\0\0\0\3"], 0)
    rows.add(1, batch, publish_time=2, num_messages_in_batch=3)
    secret = MessageMetadata(producer_name="p", sequence_id=0, publish_time=3, partition_key="k")
    secret.encryption_keys.add(key="key", value=b"sealed")
    rows.add_payload(2, encode_payload(secret.SerializeToString(), b"secret"))
    rows.add(3, b"no batch", publish_time=4, num_messages_in_batch=3)
    rows.add(4, b"\0\0\0\4", publish_time=5)
    return rows


def test_a_message_that_cannot_be_read_fails_the_query_and_is_named() -> None:
    with pytest.raises(CorruptDataError, match=r"t: message 7:2: it is encrypted.*set mode to"):
        with_bad_ones(FAILFAST)
    rows = Rows(schema=NUMBERS, values=ValueSchema("INT32"))
    batch = encode_plain_batch([b"\0\0\0\2", b"no number", b"\0\0\0\3"], 0)
    rows.add(1, batch, skip_through=0, publish_time=2, num_messages_in_batch=3)
    with pytest.raises(SchemaMismatchError, match=r"t: message 7:1:3:1: .*no INT32.*set mode to"):
        rows.take()


def test_permissive_gives_a_row_with_null_and_why() -> None:
    batch = with_bad_ones(PERMISSIVE).take()
    assert column(batch, "value") == [1, 2, None, 3, None, None, 4]
    problems = [str(each)[:20] for each in column(batch, "__error")]
    assert problems == [
        "None", "None", "a value of 9 bytes i", "None", "it is encrypted, and",
        "message 0 of a batch", "None",
    ]  # fmt: skip
    assert ids(batch)[4:] == [(7, 2, 3, -1), (7, 3, 3, -1), (7, 4, 3, -1)]
    assert column(batch, "__key")[4] == b"k"
    assert micros(batch, "__publishTime") == [1_000, 2_000, 2_000, 2_000, 3_000, 4_000, 5_000]


def test_an_unreadable_batch_is_a_row_without_the_key_of_its_first_message() -> None:
    rows = Rows(mode=PERMISSIVE, schema=NUMBERS, values=ValueSchema("INT32"))
    for entry_id, count in enumerate((1, 2)):
        rows.add(
            entry_id, b"no batch", publish_time=1, num_messages_in_batch=count, partition_key="k"
        )
    batch = rows.take()
    assert column(batch, "__key") == [b"k", None]
    assert column(batch, "__error") != [None, None]


def test_dropmalformed_leaves_it_out_and_tells_of_it(caplog: pytest.LogCaptureFixture) -> None:
    batch = with_bad_ones(DROPMALFORMED).take()
    assert column(batch, "value") == [1, 2, 3, 4]
    assert column(batch, "__error") == [None] * 4
    lines = [each.getMessage() for each in caplog.records]
    assert [line.split(" is left out")[0] for line in lines] == [
        "t: message 7:2", "t: message 7:3", "t: message 7:1:3:1",
    ]  # fmt: skip


def test_messages_that_are_left_out_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    rows = Rows(mode=DROPMALFORMED, schema=NUMBERS, values=ValueSchema("INT32"))
    for entry_id in range(1_000):
        rows.add(entry_id, b"no number", publish_time=1)
    assert rows.take().num_rows == 0
    assert len(caplog.records) == 11


def test_an_entry_without_a_readable_head_is_a_row_without_a_time() -> None:
    rows = Rows(mode=PERMISSIVE, schema=NUMBERS, values=ValueSchema("INT32"))
    rows.add_payload(0, b"\xff" * 20)
    batch = rows.take()
    assert micros(batch, "__publishTime") == [None]
    assert column(batch, "__error") != [None]
