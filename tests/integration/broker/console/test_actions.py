"""What the console changes: after a question where something is lost, and told in words."""

import pulsar
import pytest
from playwright.sync_api import expect

from tests.http_calls import admin, call
from tests.integration.broker.console.browser import WAIT_MS, Console, OpenConsole
from tests.standalone import Standalone

NAMESPACE = "shop/orders"


def _topic(server: Standalone, name: str, *, messages: int = 5) -> str:
    """A topic with a subscription that has a backlog; its place below /admin/v2."""
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    topic = f"persistent://{NAMESPACE}/{name}"
    client.subscribe(topic, "desk").close()
    producer = client.create_producer(topic)
    for number in range(messages):
        producer.send(str(number).encode())
    client.close()
    return f"/admin/v2/persistent/{NAMESPACE}/{name}"


def _backlog(server: Standalone, place: str) -> int:
    stats = admin(server, "GET", f"{place}/stats")
    return int(stats["subscriptions"]["desk"]["msgBacklog"])


def _names(server: Standalone) -> str:
    return call(server, "GET", f"/admin/v2/persistent/{NAMESPACE}", expect=200).text


def _dialog(tab: Console, button: str, answer: str, typed: str = "") -> None:
    """Answer the question that a button asks."""
    tab.button(button).click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    if typed:
        expect(dialog.get_by_role("button", name=answer, exact=True)).to_be_disabled()
        dialog.get_by_label(f"Type {typed} to go on").fill(typed)
    dialog.get_by_role("button", name=answer, exact=True).click()
    expect(dialog).to_be_hidden()


def test_a_topic_is_created_and_deleted_after_its_name_was_typed(
    console: OpenConsole, shop: Standalone
) -> None:
    tab = console().open(f"#/namespace/{NAMESPACE}")
    tab.field("Name").fill("shop/orders/brief")
    tab.button("Create").click()
    tab.sees('A topic name has no "/": that parts tenant, namespace and topic.')
    tab.field("Name").fill("brief")
    tab.button("Create").click()
    tab.sees("brief is there.")
    tab.row(f"Topics of {NAMESPACE}", "brief").get_by_role("link").click()
    tab.heading("brief")
    _dialog(tab, "Delete", "Cancel")
    assert "/brief" in _names(shop)
    _dialog(tab, "Delete", "Delete", typed="brief")
    tab.sees("brief was deleted.")
    tab.heading(NAMESPACE)
    assert "/brief" not in _names(shop)


def test_a_refusal_is_told_in_the_brokers_words(console: OpenConsole, shop: Standalone) -> None:
    _topic(shop, "in-use")
    tab = console().open(f"#/topic/persistent/{NAMESPACE}/in-use")
    _dialog(tab, "Delete", "Delete", typed="in-use")
    expect(tab.page.locator(".notice.error")).to_contain_text("Delete: That cannot be done:")
    assert "/in-use" in _names(shop)


def test_skipping_and_clearing_ask_first_and_then_do_it(
    console: OpenConsole, shop: Standalone
) -> None:
    place = _topic(shop, "skipped")
    tab = console().open(f"#/subscription/persistent/{NAMESPACE}/skipped/desk")
    tab.field("Entries to skip").fill("2")
    _dialog(tab, "Skip", "Cancel")
    assert _backlog(shop, place) == 5
    _dialog(tab, "Skip", "Skip")
    tab.sees("Skipped.")
    assert _backlog(shop, place) == 3
    tab.button("Clear the backlog").click()
    tab.page.keyboard.press("Escape")  # means no
    assert _backlog(shop, place) == 3
    _dialog(tab, "Clear the backlog", "Clear")
    tab.sees("The backlog is cleared.")
    assert _backlog(shop, place) == 0
    tab.field("Time").fill("2020-01-01T00:00:00")
    _dialog(tab, "Reset", "Reset")
    tab.sees("The subscription was moved.")
    assert _backlog(shop, place) == 5
    _dialog(tab, "Delete", "Delete", typed="desk")
    tab.heading("skipped")
    assert admin(shop, "GET", f"{place}/subscriptions") == []


def test_one_consumer_and_one_producer_are_disconnected_and_their_clients_come_back(
    console: OpenConsole, shop: Standalone
) -> None:
    topic = f"persistent://{NAMESPACE}/kicked"
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(
            topic, "desk", consumer_type=pulsar.ConsumerType.Shared, consumer_name="clerk-1"
        )
        producer = client.create_producer(topic, producer_name="sensor")
        producer.send(b"held")
        assert consumer.receive(WAIT_MS).data() == b"held"
        tab = console().open(f"#/subscription/persistent/{NAMESPACE}/kicked/desk")
        _dialog(tab, "Disconnect consumer clerk-1", "Cancel")
        tab.button("Disconnect consumer clerk-1").click()
        dialog = tab.page.get_by_role("dialog")
        expect(dialog).to_contain_text("reconnects by itself")
        dialog.get_by_role("button", name="Disconnect", exact=True).click()
        tab.sees("1 consumer disconnected: the client reconnects.")
        # It was not acknowledged.
        assert consumer.receive(WAIT_MS).data() == b"held"
        tab.open(f"#/topic/persistent/{NAMESPACE}/kicked")
        _dialog(tab, "Disconnect producer sensor", "Disconnect")
        tab.sees("1 producer disconnected: the client reconnects.")
        producer.send(b"next")
        assert consumer.receive(WAIT_MS).data() == b"next"
    finally:
        client.close()


def test_a_subscription_is_created_at_the_end_or_at_the_first_message(
    console: OpenConsole, shop: Standalone
) -> None:
    place = _topic(shop, "joined")
    tab = console().open(f"#/topic/persistent/{NAMESPACE}/joined")
    for name, begins in (("old", "the first message"), ("new", "the end")):
        tab.field("New subscription").fill(name)
        tab.field("Start position").select_option(begins)
        tab.page.get_by_role("main").get_by_role("button", name="Create", exact=True).click()
        tab.sees(f"Subscription {name} is there.")
    found = admin(shop, "GET", f"{place}/stats")["subscriptions"]
    assert (found["old"]["msgBacklog"], found["new"]["msgBacklog"]) == (5, 0)


@pytest.mark.parametrize(
    ("button", "typed", "told"),
    [
        ("Unload", "", "was unloaded."),
        ("Compact", "", "is being compacted."),
        ("Terminate", "ending", "is terminated."),
    ],
)
def test_unloading_compacting_and_terminating_ask_first(
    console: OpenConsole, shop: Standalone, button: str, typed: str, told: str
) -> None:
    place = _topic(shop, "ending")
    tab = console().open(f"#/topic/persistent/{NAMESPACE}/ending")
    _dialog(tab, button, "Cancel")
    _dialog(tab, button, button, typed=typed)
    tab.sees(f"ending {told}")
    state = admin(shop, "GET", f"{place}/internalStats")["state"]
    assert (state == "Terminated") == (button == "Terminate")


def test_tenants_and_namespaces_are_created_and_deleted_after_their_names_were_typed(
    console: OpenConsole, shop: Standalone
) -> None:
    tab = console().open("#/tenants")
    tab.field("Tenant").fill("brief")
    tab.button("Create tenant").click()
    tab.sees("brief is there.")
    name = tab.field("Namespace, as tenant/namespace")
    name.fill("brief")
    tab.button("Create namespace").click()
    tab.sees("brief was not created. A namespace is tenant/namespace.")
    name.fill("brief/one")
    tab.button("Create namespace").click()
    tab.row("Tenants", "brief").get_by_role("link", name="one", exact=True).click()
    tab.heading("brief/one")
    tab.page.get_by_role("link", name="Policies", exact=True).click()
    _dialog(tab, "Delete the namespace", "Delete", typed="brief/one")
    tab.heading("Tenants and namespaces")
    _dialog(tab, "Delete brief", "Delete", typed="brief")
    tab.sees("brief was deleted.")
    assert "brief" not in admin(shop, "GET", "/admin/v2/tenants")
