"""Outcomes of ADDS: round trip, and arbitrary bytes."""

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire_adds import decode_outcome, encode_outcome

_I64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@given(st.lists(st.tuples(_I64, _I64), max_size=20), st.binary(max_size=30))
def test_what_is_said_is_heard(adds: list[tuple[int, int]], text: bytes) -> None:
    body = encode_outcome([number for add in adds for number in add], text)
    assert decode_outcome(body) == ([pack(">qq", *add) for add in adds], text)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_outcomes_or_our_error(body: bytes) -> None:
    try:
        pairs, text = decode_outcome(body)
    except BookieProtocolError:
        return
    assert body[4:] == b"".join(pairs) + text
