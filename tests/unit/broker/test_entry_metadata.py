"""The prefix that a broker stores in front of a message: its bytes, and what wrong ones are."""

import pytest

from magnetar.broker.base.entry import admit, messages_of, publish_time_ms_of, stored_time_ms_of
from magnetar.broker.base.entry_metadata import (
    INDEX_MAX,
    PREFIX_BYTES_MAX,
    EntryMetadata,
    PrefixEncoder,
    bare,
    metadata_in,
    part_prefixes,
    prefix_size,
    varint,
)
from magnetar.broker.base.errors import MessageChecksumError
from magnetar.sdk.wire import broker_entry_metadata, check_checksum, split_payload
from tests.unit.broker.harness import batch, entry

BEGUN_MS = 1_767_225_600_000


def prefix(index: int, *, since: int = 0) -> bytes:
    return PrefixEncoder(BEGUN_MS, unbroken_since=since).encode(index)


def raw(fields: bytes) -> bytes:
    return b"\x0e\x02" + len(fields).to_bytes(4, "big") + fields


def test_a_prefix_is_read_by_those_who_know_pulsars_fields_only() -> None:
    stored = prefix(300, since=7) + entry(b"hello")
    read = broker_entry_metadata(stored)
    assert read is not None
    assert (read.broker_timestamp, read.index) == (BEGUN_MS, 300)


def test_a_prefix_has_these_bytes() -> None:
    assert prefix(300)[:6] == b"\x0e\x02\x00\x00\x00\x0a"
    assert prefix(300)[6:] == b"\x08" + varint(BEGUN_MS) + b"\x10\xac\x02"
    assert prefix(300, since=7)[6:].endswith(b"\x10\xac\x02\x88\xfa\x01\x07")


def test_what_stands_behind_a_prefix_is_the_message_as_it_was_sent() -> None:
    sent = batch(3)
    stored = prefix(2) + sent
    assert bare(stored) == sent
    assert bare(sent) == sent
    assert check_checksum(stored)
    assert messages_of(stored) == 3
    metadata, body_at = split_payload(stored)
    assert (metadata.num_messages_in_batch, stored[body_at:]) == (3, b"batch")


def test_an_entry_before_the_first_message_has_a_time_and_no_index() -> None:
    assert metadata_in(prefix(-1) + entry()) == EntryMetadata(BEGUN_MS, None, 0)


def test_the_largest_numbers_fit_into_the_largest_prefix() -> None:
    encoded = PrefixEncoder(2**64 - 1, unbroken_since=INDEX_MAX).encode(INDEX_MAX)
    assert len(encoded) == PREFIX_BYTES_MAX
    assert metadata_in(encoded) == EntryMetadata(2**64 - 1, INDEX_MAX, INDEX_MAX)


def test_entries_with_and_without_a_prefix_are_parted() -> None:
    stored = [entry(b"a"), prefix(0) + entry(b"b"), entry(b"c")]
    entries, prefixes = part_prefixes(stored)
    assert list(entries) == [entry(b"a"), entry(b"b"), entry(b"c")]
    assert prefixes == [b"", prefix(0), b""]


def test_entries_that_have_no_prefix_are_the_same_objects() -> None:
    stored = [entry(b"a"), entry(b"b")]
    assert part_prefixes(stored) == (stored, None)
    assert part_prefixes(stored)[0] is stored


@pytest.mark.parametrize(
    "fields",
    [
        b"\x08",  # a tag without a value
        b"\x10" + b"\xff" * 11,  # a number that does not end
        b"\x10" + varint(INDEX_MAX + 1),
        b"\x10\x05" + b"\x88\xfa\x01\x07",  # unbroken since an index behind its own
        b"\x13\x01",  # a group
        b"\x0a\x7fx",  # a text that is cut off
    ],
)
def test_a_prefix_that_cannot_be_read_is_no_index_and_harms_no_message(fields: bytes) -> None:
    stored = raw(fields) + entry(b"hello")
    assert metadata_in(stored) is None
    assert bare(stored) == entry(b"hello")


def test_fields_of_later_releases_are_passed_over() -> None:
    fields = b"\x08\x01\x10\x02" + b"\x1a\x03abc" + b"\x25\x00\x00\x00\x00" + b"\x29" + b"\x00" * 8
    assert metadata_in(raw(fields)) == EntryMetadata(1, 2, 0)


def test_a_prefix_beyond_the_end_of_the_entry_is_none() -> None:
    torn = b"\x0e\x02\x00\x00\x01\x00abc"
    assert (prefix_size(torn), bare(torn), metadata_in(torn)) == (0, torn, None)


def test_a_client_may_not_send_a_prefix() -> None:
    with pytest.raises(MessageChecksumError, match="broker alone writes"):
        admit(prefix(0) + entry())


def test_an_entry_is_as_old_as_its_broker_says_and_else_as_its_producer_says() -> None:
    assert stored_time_ms_of(prefix(0) + entry(publish_time=5)) == BEGUN_MS
    assert stored_time_ms_of(entry(publish_time=5)) == 5
    assert publish_time_ms_of(prefix(0) + entry(publish_time=5)) == 5
