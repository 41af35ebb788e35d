"""What `magnetar admin topics stats` prints for people."""

from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from magnetar.deploy import admin_client
from magnetar.deploy.cli import app

STATS = {
    "ownerBroker": "b1",
    "msgInCounter": 5,
    "msgOutCounter": 0,
    "storageSize": 100,
    "numberOfEntries": 2,
    "publishers": [],
    "subscriptions": {},
    "replication": {},
}
WEST = {
    "connected": False,
    "replicationBacklog": 7,
    "replicationDelayInSeconds": 90,
    "problem": "there is no cluster west",
}


def shown(monkeypatch: pytest.MonkeyPatch, stats: Mapping[str, Any]) -> str:
    class Brokers:
        def __init__(self, _url: str) -> None:
            pass

        def get(self, _path: str) -> Mapping[str, Any]:
            return stats

    monkeypatch.setattr(admin_client, "AdminClient", Brokers)
    ended = CliRunner().invoke(app, ["admin", "topics", "stats", "t"])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_each_cluster_is_shown_with_why_it_gets_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, {**STATS, "replication": {"west": WEST}})
    (line,) = [each for each in text.splitlines() if each.strip().startswith("west")]
    assert line.split()[:4] == ["west", "no", "7", "90"]
    assert line.rstrip().endswith("no: there is no cluster west")


def test_a_consumer_is_shown_with_the_first_entry_that_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = {"unackedMessages": 9, "messageAckRate": 0.0, "address": "/1"}
    held = {"messageId": "17:3", "seconds": 240}
    consumers = [
        {**consumer, "consumerName": "hangs", "firstHeld": held},
        {**consumer, "consumerName": "works", "firstHeld": None},
        {**consumer, "consumerName": "at-an-older-broker"},
    ]
    subscription = {
        "type": "Shared",
        "msgBacklog": 9,
        "unackedMessages": 9,
        "whyIdle": None,
        "consumers": consumers,
    }
    text = shown(monkeypatch, {**STATS, "subscriptions": {"s": subscription}})
    shown_lines = {line.split()[0]: line for line in text.splitlines() if " s " in line}
    assert "17:3 for at least 240 s" in shown_lines["hangs"]
    assert shown_lines["works"].split()[4] == "-"
    assert shown_lines["at-an-older-broker"].split()[4] == "-"


def test_a_topic_that_is_copied_nowhere_shows_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "copied to" not in shown(monkeypatch, STATS)
