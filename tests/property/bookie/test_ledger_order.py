"""Ids in order, however they come."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.integrity import scrubber


@given(st.lists(st.integers(0, (1 << 63) - 1), unique=True), st.integers(1, 5), st.booleans())
def test_ids_are_put_in_order(ids: list[int], part: int, is_sorted: bool) -> None:
    ids = sorted(ids) if is_sorted else ids
    with patch.object(scrubber, "_SORTED_AT_ONCE", part):
        assert list(scrubber.in_order(ids)) == sorted(ids)
