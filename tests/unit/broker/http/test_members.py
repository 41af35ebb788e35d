"""Servers that came and went: noticed between two looks, in a bounded list."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.broker.http import members as members_module
from magnetar.broker.http.members import EVENTS_MAX, Members, MembersWatch
from magnetar.broker.http.view import BrokerView
from magnetar.ledger.system import SystemClock


def _told(members: Members) -> list[tuple[int, str, str, str]]:
    return [(each["at_ms"], each["kind"], each["name"], each["text"]) for each in members.shown()]


def test_what_changes_between_two_looks_is_told_newest_first() -> None:
    members = Members()
    members.look("bookie", {"a": "serving", "b": "serving"}, 1)
    assert members.shown() == []
    members.look("bookie", {"a": "read-only"}, 2)
    members.look("broker", {"x": "serving"}, 3)
    members.look("bookie", {"a": "read-only", "b": "serving", "c": "read-only"}, 4)
    assert _told(members) == [
        (4, "bookie", "c", "came, read-only"),
        (4, "bookie", "b", "came"),
        (2, "bookie", "b", "went away"),
        (2, "bookie", "a", "is read-only, was serving"),
    ]


def test_old_events_are_forgotten() -> None:
    members = Members()
    for number in range(2 * EVENTS_MAX):
        members.look("bookie", {"a": "serving"} if number % 2 else {}, number)
    assert len(members.shown()) == EVENTS_MAX
    assert members.shown()[0]["at_ms"] == 2 * EVENTS_MAX - 1


async def test_an_unexpected_error_does_not_end_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_module, "LOOK_EVERY_S", 0.0)
    looks: asyncio.Queue[None] = asyncio.Queue()

    def bookies() -> dict[str, object]:
        looks.put_nowait(None)
        raise KeyError("a defect")

    broker = SimpleNamespace(services=SimpleNamespace(clock=SystemClock()), bookies=bookies)
    watch = MembersWatch(cast(BrokerView, broker))
    watch.start()
    async with asyncio.timeout(10.0):
        for _ in range(3):
            await looks.get()
    await watch.stop()
