import base64
import json
from email.utils import formatdate
from typing import Any

import pytest

from magnetar.deploy.findings import (
    State,
    bookies_finding,
    clock_finding,
    disk_finding,
    token_finding,
)

NOW_S = 1_795_000_000.0


def token(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.signature"


@pytest.mark.parametrize(
    ("claims", "state", "said"),
    [
        ({"sub": "me"}, State.OK, "without an end"),
        ({"sub": "me", "exp": NOW_S + 3 * 86_400}, State.OK, "expires in 3 d"),
        ({"sub": "me", "exp": NOW_S + 7_200}, State.WARNING, "expires in 2 h"),
        ({"sub": "me", "exp": NOW_S}, State.FAILED, "expired 0 s ago"),
        ({"sub": "me", "nbf": NOW_S + 600}, State.FAILED, "valid only in 10 min"),
        ({"sub": "me", "exp": 10**400}, State.OK, "expires in"),
        ({"sub": "me", "exp": -(10**400)}, State.FAILED, "expired"),
        ({"sub": "me", "nbf": 10**400}, State.FAILED, "valid only in"),
        ({"sub": "me", "exp": float("inf")}, State.OK, "expires in"),
    ],
)
def test_a_token_says_how_long_it_is_valid(claims: dict[str, Any], state: State, said: str) -> None:
    found = token_finding(token(**claims), now_s=NOW_S)
    assert found.state is state
    assert said in found.text
    assert found.status == (15 if state is State.FAILED else 0)


@pytest.mark.parametrize("text", ["secret", "a.b", "a.!.c", "e30.W10.x"])
def test_what_is_no_web_token_is_for_the_broker_to_judge(text: str) -> None:
    found = token_finding(text, now_s=NOW_S)
    assert found.state is State.WARNING
    assert text not in found.text


def test_claims_nested_too_deep_to_be_read_are_no_web_token() -> None:
    body = base64.urlsafe_b64encode(b"[" * 100_000).decode()
    assert token_finding(f"e30.{body}.x", now_s=NOW_S).state is State.WARNING


@pytest.mark.parametrize(
    ("apart_s", "state"),
    [(0, State.OK), (4, State.OK), (6, State.WARNING), (60, State.WARNING), (62, State.FAILED)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_clocks_that_are_apart_are_told(apart_s: float, state: State, sign: int) -> None:
    there_s = NOW_S + sign * apart_s - (1 if sign < 0 else 0)
    found = clock_finding(formatdate(there_s), before_s=NOW_S, after_s=NOW_S)
    assert found is not None
    assert found.state is state


def test_a_slow_answer_does_not_make_clocks_differ() -> None:
    found = clock_finding(formatdate(NOW_S), before_s=NOW_S - 30, after_s=NOW_S + 30)
    assert found is not None
    assert found.state is State.OK
    assert clock_finding("", before_s=NOW_S, after_s=NOW_S) is None


def storage(*states: str, waiting: int = 0, lost: int = 0) -> dict[str, Any]:
    return {
        "bookies": [{"id": f"b{at}", "state": state} for at, state in enumerate(states)],
        "recovery": {"ledgers_waiting": waiting, "ledgers_lost": lost},
    }


def test_bookies_that_take_nothing_are_named() -> None:
    found = bookies_finding(storage("writable", "readonly", "lost", waiting=3))
    assert [each.state for each in found] == [
        State.OK,
        State.WARNING,
        State.WARNING,
        State.WARNING,
    ]
    assert "b1" in found[1].text
    assert "b2" in found[2].text
    assert "3 ledgers wait" in found[3].text


def test_no_writable_bookie_and_lost_entries_are_failures() -> None:
    found = bookies_finding(storage("readonly", lost=1))
    failed = [each for each in found if each.state is State.FAILED]
    assert [each.check for each in failed] == ["bookies", "recovery"]


@pytest.mark.parametrize(
    ("free", "state"), [(50, State.OK), (10, State.OK), (9, State.WARNING), (4, State.FAILED)]
)
def test_a_disk_without_room_is_told(free: int, state: State) -> None:
    assert disk_finding("/data", free=free, total=100).state is state
