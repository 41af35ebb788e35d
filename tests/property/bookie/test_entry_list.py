"""Pages of held entry ids against a set."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.requests.entry_list import IdSource, first_held, page_of
from magnetar.ledger.wire_bodies import EntryList, decode_entry_list, encode_entry_list


@st.composite
def sources(draw: st.DrawFn) -> list[IdSource]:
    made: list[IdSource] = []
    for _ in range(draw(st.integers(0, 5))):
        first = draw(st.integers(0, 200))
        last = draw(st.integers(first, first + 100))
        ids = draw(st.none() | st.lists(st.integers(0, 300), unique=True).map(sorted))
        made.append(IdSource(first, last, ids))
    return made


def held_by(each: IdSource) -> set[int]:
    ids = range(each.first, each.last + 1)
    return set(ids) if each.ids is None else set(ids) & set(each.ids)


@given(sources(), st.integers(0, 320), st.integers(1, 8), st.none() | st.integers(0, 320))
def test_pages_together_are_what_is_held(
    given_sources: list[IdSource], first: int, bytes_max: int, unread: int | None
) -> None:
    held = set[int]().union(*map(held_by, given_sources))
    expected = sorted(each for each in held if each >= first and (unread is None or each < unread))
    found: list[int] = []
    at = first
    while True:
        page = page_of(
            given_sources,
            first_held(given_sources, at),
            bitmap_bytes_max=bytes_max,
            unread=None if unread is None else max(unread, at),
        )
        assert decode_entry_list(encode_entry_list(page)) == page
        assert len(page.bitmap) <= bytes_max
        found += page.entry_ids()
        if page.next_entry_id == -1 or page.next_entry_id == unread or page.bitmap == b"":
            break
        assert page.next_entry_id > at
        at = page.next_entry_id
    assert found == expected


@given(st.integers(0, 1 << 40), st.sets(st.integers(0, 500)))
def test_a_page_lists_its_bits(first: int, offsets: set[int]) -> None:
    bitmap = bytearray(64)
    for offset in {0, *offsets}:
        bitmap[offset // 8] |= 1 << offset % 8
    page = EntryList(first, -1, bytes(bitmap).rstrip(b"\0"))
    assert page.entry_ids() == [first + offset for offset in sorted({0, *offsets})]
