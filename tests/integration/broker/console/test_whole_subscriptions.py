"""A subscription of a partitioned topic is worked on as a whole."""

import pulsar
from playwright.sync_api import expect

from tests.http_calls import admin
from tests.integration.broker.console.browser import Console, OpenConsole
from tests.standalone import Standalone

PLACE = "/admin/v2/persistent/shop/orders/wide"
PARTITIONS = 3
EACH = 4
"""Messages in each partition."""


def _fill(server: Standalone) -> None:
    admin(server, "PUT", f"{PLACE}/partitions", PARTITIONS)
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("persistent://shop/orders/wide", "desk").close()
    for number in range(PARTITIONS):
        producer = client.create_producer(f"persistent://shop/orders/wide-partition-{number}")
        for text in range(EACH):
            producer.send(str(text).encode())
    client.close()


def _backlogs(server: Standalone) -> list[int]:
    parts = admin(server, "GET", f"{PLACE}/partitioned-stats")["partitions"]
    return [each["subscriptions"]["desk"]["msgBacklog"] for _, each in sorted(parts.items())]


def _do(tab: Console, button: str, answer: str, told: str) -> None:
    tab.button(button).click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name=answer, exact=True).click()
    expect(dialog).to_be_hidden()
    notice = tab.page.locator(".notice").filter(has_text=told)
    expect(notice).to_be_visible()
    notice.get_by_role("button", name="Close").click()


def test_what_is_done_to_a_subscription_is_done_in_every_partition(
    console: OpenConsole, shop: Standalone
) -> None:
    _fill(shop)
    tab = console().open("#/topic/persistent/shop/orders/wide")
    tab.row("Subscriptions", "desk").get_by_role("link").click()
    tab.heading("desk")
    tab.sees("In 3 partitions of 3 something is in the way.")
    tab.button("Count the messages").click()
    tab.sees(f"{PARTITIONS * EACH} messages in {PARTITIONS * EACH} entries wait.")
    tab.field("Entries to skip in each partition").fill("3")
    _do(tab, "Skip", "Skip", "Skipped in all of 3 partitions.")
    assert _backlogs(shop) == [EACH - 3] * PARTITIONS
    for place, told, left in (
        ("the beginning", "The subscription was moved.", EACH),
        ("the end", "The subscription was moved.", 0),
        ("the beginning", "The subscription was moved.", EACH),
    ):
        tab.field("Reset to").select_option(place)
        _do(tab, "Reset", "Reset", told)
        assert _backlogs(shop) == [left] * PARTITIONS
    tab.field("Expire what is older than").fill("30")
    tab.field("Unit").select_option("days")
    _do(tab, "Expire", "Expire", "Older messages expire now.")
    assert _backlogs(shop) == [EACH] * PARTITIONS
    tab.field("Reset to").select_option("a time")
    tab.field("Time").fill("2020-01-01T00:00:00")
    _do(tab, "Reset", "Reset", "The subscription was moved.")
    assert _backlogs(shop) == [EACH] * PARTITIONS
    _do(tab, "Clear the backlog", "Clear", "The backlog is cleared.")
    assert _backlogs(shop) == [0] * PARTITIONS


def test_a_subscription_moves_to_a_message(console: OpenConsole, shop: Standalone) -> None:
    place = "/admin/v2/persistent/shop/orders/moved"
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("persistent://shop/orders/moved", "desk").close()
    producer = client.create_producer("persistent://shop/orders/moved")
    ids = [producer.send(b"x") for _ in range(5)]
    client.close()
    tab = console().open("#/subscription/persistent/shop/orders/moved/desk")
    tab.field("Reset to").select_option("a message")
    tab.field("Message id").fill(f"{ids[3].ledger_id()}:{ids[3].entry_id()}")
    _do(tab, "Reset", "Reset", "The subscription was moved.")
    stats = admin(shop, "GET", f"{place}/stats")
    assert stats["subscriptions"]["desk"]["msgBacklog"] == 2


def test_a_subscription_that_is_not_there_has_nothing_but_the_notice(console: OpenConsole) -> None:
    tab = console().open("#/subscription/persistent/shop/orders/placed/nope")
    expect(tab.page.get_by_role("alert")).to_contain_text("has no subscription nope")
    expect(tab.button("Clear the backlog")).to_be_hidden()
    expect(tab.page.get_by_text("Loading.")).to_be_hidden()
