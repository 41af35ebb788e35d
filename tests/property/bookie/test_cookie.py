"""Cookies: their JSON, and what a start makes of every combination of copies."""

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from magnetar.bookie.cookie import Cookie, CookieAction, next_action
from magnetar.bookie.errors import CookieError

cookies = st.builds(
    Cookie,
    bookie_id=st.text(max_size=10),
    instance_id=st.text(max_size=10),
    incarnation=st.text(max_size=10),
)


@given(cookies)
def test_json_round_trip(cookie: Cookie) -> None:
    assert Cookie.model_validate_json(cookie.to_json()) == cookie


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValidationError):
        Cookie.model_validate_json(data)


@given(
    cookies,
    st.sampled_from(
        ["format", "bookie_id", "instance_id", "incarnation", "storage_shards", "surprise"]
    ),
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just([])),
)
def test_a_changed_field_is_read_as_it_is_or_refused(
    cookie: Cookie, name: str, value: object
) -> None:
    fields = json.loads(cookie.to_json())
    fields[name] = value
    try:
        decoded = Cookie.model_validate_json(json.dumps(fields))
    except ValidationError:
        return
    assert name != "surprise"
    assert json.loads(decoded.to_json()) == fields


OURS = Cookie(bookie_id="b1", instance_id="i1", incarnation="aa")
COPIES = (
    None,
    OURS,
    Cookie(bookie_id="b1", instance_id="i1", incarnation="bb"),
    Cookie(bookie_id="b2", instance_id="i1", incarnation="aa"),
    Cookie(bookie_id="b1", instance_id="i2", incarnation="aa"),
)


@pytest.mark.parametrize("is_empty", [True, False])
def test_every_combination_of_copies_is_judged_by_the_rules(is_empty: bool) -> None:
    """Rule 11.1: data without its own cookie, or a known id without its data, never starts."""
    for on_disk, stamping, in_metadata in product(COPIES, repeat=3):
        try:
            action = next_action(
                directory="/data",
                bookie_id="b1",
                instance_id="i1",
                on_disk=on_disk,
                stamping=stamping,
                in_metadata=in_metadata,
                is_directory_empty=is_empty,
            )
        except CookieError:
            action = None
        case = (on_disk, stamping, in_metadata)
        if action is CookieAction.NOTHING:
            assert on_disk == in_metadata != None, case  # noqa: E711  # a chain reads best here
            assert on_disk is not None
            assert (on_disk.bookie_id, on_disk.instance_id) == ("b1", "i1"), case
        elif action is not None:
            assert on_disk is None, case
            assert is_empty, case
        if action is CookieAction.BEGIN_STAMP:
            assert in_metadata is None, case
        elif action is CookieAction.STAMP_METADATA:
            assert in_metadata is None, case
            assert stamping is not None, case
            assert (stamping.bookie_id, stamping.instance_id) == ("b1", "i1"), case
        elif action is CookieAction.FINISH_STAMP:
            assert stamping == in_metadata, case
        if on_disk is None and in_metadata is not None and stamping != in_metadata:
            assert action is None, case
