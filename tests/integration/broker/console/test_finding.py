"""Finding what needs a person: in the list, by sorting, by a part of a name; and in time."""

import os
import signal
import time

import pulsar
import pytest
from playwright.sync_api import Route, expect

from tests.http_calls import admin
from tests.integration.broker.console.browser import OpenConsole
from tests.standalone import Standalone

TOPIC = "#/topic/persistent/shop/orders"


def test_the_cluster_lists_what_needs_a_person_and_where(console: OpenConsole) -> None:
    tab = console().open()
    needs = tab.page.get_by_role("table", name="What needs a person")
    row = needs.get_by_role("row").filter(has_text="shop/orders/placed / audit")
    expect(row).to_contain_text("no consumer is connected")
    expect(row).to_contain_text("Start a consumer, or delete the subscription")
    expect(row).to_contain_text("12")
    largest = tab.page.get_by_role("table", name="Largest backlogs")
    expect(largest).to_contain_text("persistent://shop/orders/placed")
    row.get_by_role("link").click()
    tab.heading("audit")


def test_topics_are_sorted_by_a_number_and_those_that_need_nobody_left_out(
    console: OpenConsole,
) -> None:
    tab = console().open("#/namespace/shop/orders")
    expect(tab.row("Topics of shop/orders", "placed")).to_contain_text("no consumer is connected")
    tab.sees("need a person.")
    backlog = tab.page.get_by_role("columnheader", name="Backlog", exact=True)
    tab.button("Backlog").click()
    expect(backlog).to_have_attribute("aria-sort", "descending")
    expect(tab.page.get_by_role("rowheader").first).to_have_text("placed")
    tab.button("Topic").click()
    names = tab.page.get_by_role("rowheader").all_inner_texts()
    assert names == sorted(names)
    tab.button("Topic").click()
    expect(tab.page.get_by_role("rowheader").first).to_have_text(names[-1])
    tab.field("Only what needs a person").check()
    expect(tab.row("Topics of shop/orders", "mixed")).to_have_count(0)
    expect(tab.row("Topics of shop/orders", "placed")).to_be_visible()


def test_a_part_of_a_name_is_enough_to_find_a_topic(console: OpenConsole) -> None:
    tab = console().open("#/tenants")
    box = tab.page.get_by_label("Find a namespace or topic")
    box.press_sequentially("sensor-01")
    options = tab.page.locator("#suggestions option")
    expect(options.first).to_have_attribute("value", "shop/many/sensor-010")
    tab.button("Go").click()
    tab.heading("Search: sensor-01")
    tab.sees("10 names found.")
    tab.page.get_by_role("link", name="shop/many/sensor-013").click()
    tab.heading("sensor-013")
    box.fill("parted")  # found once: its partitions are found in it
    box.press("Enter")
    tab.heading("parted")


def test_a_topic_at_rest_tells_what_is_stored_of_it(console: OpenConsole, shop: Standalone) -> None:
    place = "/admin/v2/persistent/shop/orders/resting"
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("persistent://shop/orders/resting", "desk").close()
    producer = client.create_producer("persistent://shop/orders/resting")
    for _ in range(7):
        producer.send(b"x")
    client.close()
    admin(shop, "PUT", f"{place}/unload")
    assert admin(shop, "GET", f"{place}/stats?onlyLoaded=true").keys() == {"atRest"}
    tab = console().open(f"{TOPIC}/resting")
    tab.sees("Subscription desk has a backlog of 7 entries")
    tab.open("#/namespace/shop/orders")
    tab.field("Find a topic").fill("resting")
    expect(tab.row("Topics of shop/orders", "resting")).to_contain_text("at rest")
    expect(tab.row("Topics of shop/orders", "resting").get_by_role("cell").nth(3)).to_have_text("7")


def test_a_plot_begins_with_what_the_broker_has_kept(
    console: OpenConsole, shop: Standalone
) -> None:
    """The broker has a point per minute: here its answer has those of an hour."""
    kept = admin(shop, "GET", "/admin/v2/persistent/shop/orders/placed/history")
    assert kept["intervalMs"] == 60_000

    def with_an_hour(route: Route) -> None:
        points = {"msgRateIn": [900.0, *[1.0] * 58], "msgRateOut": [0.0] * 59, "msgBacklog": []}
        ended_ms = int(time.time() * 1000)
        route.fulfill(json={"endedMs": ended_ms, "intervalMs": 60_000, "points": points})

    tab = console()
    tab.page.route("**/placed/history", with_an_hour)
    tab.open(f"{TOPIC}/placed")
    tab.sees("highest 900/s, last 58 min")
    tab.page.unroute("**/placed/history")


def test_a_consumer_that_hoards_is_named_long_before_a_limit_stops_it(
    console: OpenConsole, shop: Standalone
) -> None:
    """The broker names it after a minute; here its answer has the name."""
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(
        "persistent://shop/orders/keyed-slow",
        "router",
        consumer_type=pulsar.ConsumerType.KeyShared,
        consumer_name="router-2",
    )

    def with_hoarder(route: Route) -> None:
        answer = route.fetch()
        stats = answer.json()
        for each in stats.get("subscriptions", {}).values():
            each["hoarders"] = ["router-2"]
            each["consumers"][0]["unackedMessages"] = 7435
            each["consumers"][0]["firstHeld"] = {"messageId": "17:3", "seconds": 250}
        route.fulfill(response=answer, json=stats)

    tab = console()
    tab.page.route("**/keyed-slow/stats?*", with_hoarder)
    words = "consumer router-2 holds 7,435 messages and acknowledges none"
    tab.open(f"{TOPIC}/keyed-slow")
    why = tab.page.get_by_role("region", name="Why nothing flows")
    expect(why).to_contain_text(words)
    expect(tab.row("Subscriptions", "router")).to_contain_text(words)
    why.get_by_role("link", name="router").click()
    expect(tab.row("Consumers", "router-2")).to_contain_text("hoards: acknowledges none")
    expect(tab.row("Consumers", "router-2")).to_contain_text("17:3 for at least 4 min 10 s")
    tab.page.unroute_all(behavior="wait")  # a look may be under way
    client.close()


@pytest.mark.timeout(120)
def test_a_frozen_broker_is_seen_within_five_seconds(
    console: OpenConsole, shop: Standalone
) -> None:
    tab = console().open(f"{TOPIC}/placed")
    expect(tab.row("Subscriptions", "audit")).to_be_visible()
    live = tab.button("Live")
    frozen_s = time.monotonic()
    os.kill(shop.process.pid, signal.SIGSTOP)
    try:
        told = tab.page.locator("#trouble")
        expect(told).to_contain_text("The broker does not answer: the last answer came")
        seen_s = time.monotonic() - frozen_s
        expect(live).to_have_class("silent")
    finally:
        os.kill(shop.process.pid, signal.SIGCONT)
    expect(told).to_be_hidden()
    expect(live).not_to_have_class("silent")
    assert seen_s < 5
