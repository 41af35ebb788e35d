"""Pages, headers and rounds: what was encoded comes back, other bytes give a value or our error."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes.index_mark import Promise
from magnetar.bookie.indexes.pages import page_format
from magnetar.bookie.indexes.pages.ledger_set import LedgerSet
from magnetar.bookie.indexes.pages.page_files import directory_of, file_name, ledger_of
from magnetar.bookie.indexes.pages.page_format import LedgerHeader, Page
from magnetar.bookie.indexes.pages.round_format import (
    ROUND_HEAD_BYTES,
    Round,
    Write,
    body_bytes_of,
    decode_round,
    encode_round,
)

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
ids = st.integers(0, (1 << 63) - 1)
states = st.binary(max_size=page_format.STATE_BYTES_MAX)
headers = st.builds(
    lambda ledger_id, page_bytes, height, state: LedgerHeader(
        ledger_id, page_bytes, height, min(height, 3), 4 * height, state
    ),
    ids,
    st.sampled_from((64, 8192)),
    st.integers(0, 30),
    states,
)
pages = st.builds(
    Page,
    st.integers(0, 30),
    ids,
    st.lists(u64, min_size=6, max_size=6).map(lambda cells: array("Q", cells)),
)
rounds = st.builds(
    Round,
    st.builds(Promise, st.just("interleaved"), u64, u32, u64, u64),
    st.lists(ids, max_size=3),
    st.lists(st.builds(Write, ids, u64, st.binary(max_size=100)), max_size=4),
)


@given(headers)
def test_a_header_comes_back(header: LedgerHeader) -> None:
    data = page_format.encode_header(header)
    assert len(data) == page_format.HEADER_BYTES
    assert page_format.decode_header(data, header.ledger_id) == header


@given(headers, st.integers(0), st.integers(1, 255))
def test_a_damaged_or_foreign_header_is_refused(header: LedgerHeader, at: int, mask: int) -> None:
    data = bytearray(page_format.encode_header(header))
    refused(lambda: page_format.decode_header(bytes(data), header.ledger_id ^ 1))
    data[at % len(data)] ^= mask
    refused(lambda: page_format.decode_header(bytes(data), header.ledger_id))


@given(pages, ids, u64)
def test_a_page_comes_back(page: Page, ledger_id: int, number: int) -> None:
    data = page_format.encode_page(ledger_id, number, page)
    assert len(data) == 64
    assert page_format.decode_page(data, ledger_id, number, page_bytes=64) == page


@given(pages, ids, u64, st.integers(0), st.integers(1, 255))
def test_a_page_that_is_damaged_or_elsewhere_is_refused(
    page: Page, ledger_id: int, number: int, at: int, mask: int
) -> None:
    data = bytearray(page_format.encode_page(ledger_id, number, page))

    def decode(ledger_id: int, number: int) -> Page:
        return page_format.decode_page(bytes(data), ledger_id, number, page_bytes=64)

    refused(lambda: decode(ledger_id ^ 1, number))
    refused(lambda: decode(ledger_id, number ^ 1))
    data[at % len(data)] ^= mask
    refused(lambda: decode(ledger_id, number))


@given(rounds, st.binary(max_size=50))
def test_a_round_comes_back_whatever_lies_behind_it(todo: Round, behind: bytes) -> None:
    data = b"".join(encode_round(todo))
    assert len(data) == ROUND_HEAD_BYTES + body_bytes_of(data)
    assert decode_round(data + behind) == todo


@given(rounds, st.integers(0), st.integers(1, 255))
def test_a_damaged_or_torn_round_is_none(todo: Round, at: int, mask: int) -> None:
    data = bytearray(b"".join(encode_round(todo)))
    at %= len(data)
    refused(lambda: decode_round(bytes(data[:at])))
    data[at] ^= mask
    refused(lambda: decode_round(bytes(data)))


@given(rounds, rounds, st.integers(0))
def test_a_round_half_written_over_another_is_none_or_one_of_them(
    old: Round, new: Round, at: int
) -> None:
    before, after = b"".join(encode_round(old)), b"".join(encode_round(new))
    at %= len(after) + 1
    try:
        found = decode_round(after[:at] + before[at:])
    except StorageCorruptError:
        return
    assert found in (old, new)


@given(st.binary(max_size=2000), ids, u64)
def test_arbitrary_bytes_give_a_value_or_our_error(data: bytes, ledger_id: int, n: int) -> None:
    refused(lambda: page_format.decode_header(data, ledger_id))
    refused(lambda: page_format.decode_header(data[:1024].ljust(1024, b"\0"), ledger_id))
    refused(lambda: page_format.decode_page(data, ledger_id, n, page_bytes=len(data)))
    refused(lambda: decode_round(data))


@given(ids)
def test_a_file_name_comes_back(ledger_id: int) -> None:
    assert ledger_of(file_name(ledger_id)) == ledger_id
    assert len(directory_of(ledger_id)) == 5


@given(st.text(max_size=20))
def test_other_names_are_no_page_files(name: str) -> None:
    assert ledger_of(name) is None


@given(st.lists(ids), st.lists(ids))
def test_the_digest_depends_on_the_ledgers_and_not_on_their_order(
    some: list[int], others: list[int]
) -> None:
    one, two = LedgerSet(), LedgerSet()
    one.fill(some + others)
    two.fill(others[::-1])
    two.fill(some)
    assert (len(one), one.digest) == (len(two), two.digest)
    assert one.ascending() == sorted({*some, *others})
    for ledger_id in {*some, *others}:
        one.discard(ledger_id)
        assert one.digest != two.digest
        one.add(ledger_id)
        assert one.digest == two.digest


def refused(decode: object) -> None:
    assert callable(decode)
    try:
        decode()
    except StorageCorruptError:
        return
    raise AssertionError("accepted")
