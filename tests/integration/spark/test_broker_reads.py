"""Slices that are read through a broker which lets messages go, or goes, while they are read."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.arrow.stored import broker_reads
from magnetar.arrow.stored.broker_reads import BrokerReads
from magnetar.arrow.stored.slices import LedgerPart
from magnetar.sdk.settings import ClientSettings
from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish_to
from tests.standalone import Standalone
from tests.waiting import wait_until

TOPIC = "persistent://public/default/expiring"
PATH = TOPIC.replace("://", "/")
ENTRIES = 40


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    """A server that looks for messages above their TTL once a second."""
    monkeypatch.setenv("MAGNETAR_BROKER_MESSAGE_EXPIRY_CHECK_INTERVAL_S", "1")
    with Standalone(tmp_path / "data") as standalone:
        yield standalone


def test_what_expires_while_it_is_read_is_read(
    server: Standalone, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TTL acknowledges for all who have not read, readers too; what is stored stays stored."""
    monkeypatch.setattr(broker_reads, "_PERMITS", 4)
    publish_to(client, TOPIC, [b"%d" % number for number in range(ENTRIES)], batching_enabled=False)
    (ledger,) = admin(server, "GET", f"{PATH}/internalStats")["ledgers"]
    reads = BrokerReads(TOPIC, server.url, ClientSettings())
    part = LedgerPart(ledger["ledgerId"], 0, ENTRIES - 1)
    found = reads.entries(part)
    first = [next(found)[0] for _ in range(2)]
    admin(server, "POST", f"{PATH}/messageTTL?messageTTL=1")

    def has_expired() -> bool:
        return all(
            each["msgBacklog"] == 0
            for each in admin(server, "GET", f"{PATH}/stats")["subscriptions"].values()
        )

    wait_until(has_expired, "the reader is moved on")
    admin(server, "POST", f"{PATH}/messageTTL?messageTTL=3600")
    publish_to(client, TOPIC, [b"young"])
    assert [*first, *(entry_id for entry_id, _ in found)] == list(range(ENTRIES))


def test_a_task_waits_for_a_broker_that_is_killed_in_the_middle_and_comes_back(
    server: Standalone, client: pulsar.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task sees the end of its connection, and then that nobody listens."""
    monkeypatch.setattr(broker_reads, "_PERMITS", 4)
    publish_to(client, TOPIC, [b"%d" % number for number in range(ENTRIES)], batching_enabled=False)
    (ledger,) = admin(server, "GET", f"{PATH}/internalStats")["ledgers"]
    refused = threading.Event()

    def pause(pause_s: float) -> None:
        refused.set()
        threading.Event().wait(pause_s)

    reads = BrokerReads(TOPIC, server.url, ClientSettings(), pause=pause)
    found = reads.entries(LedgerPart(ledger["ledgerId"], 0, ENTRIES - 1))
    first = [next(found)[0] for _ in range(2)]
    server.kill()

    def restart() -> None:
        assert refused.wait(60), "nobody waits for the broker"
        server.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        assert [*first, *(entry_id for entry_id, _ in found)] == list(range(ENTRIES))
    finally:
        refused.set()
        restarting.join()
