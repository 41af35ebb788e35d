"""Cookies: their JSON, and what a start makes of every combination of copies."""

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from magnetar.bookie.cookie import Cookie, DirectoryCookie, Stamp
from magnetar.bookie.cookie_rules import (
    BeginStamp,
    DirectoryView,
    FinishStamp,
    Nothing,
    PublishStamp,
    Wanted,
    next_action,
)
from magnetar.bookie.errors import CookieError

cookies = st.builds(
    Cookie,
    bookie_id=st.text(max_size=10),
    instance_id=st.text(max_size=10),
    incarnation=st.text(max_size=10),
    storage_engine=st.sampled_from(["db", "interleaved"]),
    journals=st.integers(1, 9),
    storage_shards=st.sets(st.integers(1, 99), min_size=1, max_size=4).map(
        lambda counts: tuple(sorted(counts))
    ),
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
    st.sampled_from([*Cookie.model_fields, "surprise"]),
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
ALL = ("data", "journal-0", "ledgers-0")
WANTED = Wanted(bookie_id="b1", instance_id="i1", engine="db", journals=1, ledgers=1)


@pytest.mark.parametrize("has_data", [True, False])
@pytest.mark.parametrize("in_metadata", COPIES)
def test_every_combination_of_copies_is_judged_by_the_rules(
    in_metadata: Cookie | None, has_data: bool
) -> None:
    """Rule 11.1: data without its own cookie, or a known id without its data, never starts."""
    for on_disk in product(COPIES, repeat=3):
        for stamped, added in product(COPIES, (ALL, ())):
            stamp = Stamp(cookie=stamped, added=added) if stamped is not None else None
            views = [
                DirectoryView(
                    f"/{role}",
                    role,
                    DirectoryCookie(directory=role, cookie=cookie) if cookie else None,
                    has_data and role != "data",
                )
                for role, cookie in zip(ALL, on_disk, strict=True)
            ]
            case = (on_disk, stamp, in_metadata)
            try:
                action = next_action(views, stamp, in_metadata, WANTED, incarnation="ff")
            except CookieError:
                continue
            match action:
                case Nothing():
                    assert set(on_disk) == {in_metadata} == {action.cookie}, case
                    assert (action.cookie.bookie_id, action.cookie.instance_id) == ("b1", "i1")
                case BeginStamp() | PublishStamp():
                    assert set(on_disk) == {None}, case
                    assert in_metadata is None, case
                    assert not has_data, case
                case FinishStamp():
                    assert stamp is not None
                    assert stamp.cookie == in_metadata, case
                    # Only what was new with this stamp may be without a cookie, and holds nothing.
                    assert set(on_disk) <= {None, in_metadata}, case
                    if None in on_disk:
                        assert stamp.added, case
                        assert not has_data or None not in on_disk[1:], case
                case _:
                    raise AssertionError(case)
