"""Take the screenshots of the console that docs/console.md shows.

usage: python -m tests.docs_site.screenshots     # writes docs/screenshots/*.png

A standalone with three bookies gets a shop: orders with a schema, a consumer that holds what it
got, and a subscription that nobody reads. Then a Chromium takes a picture of each view.
"""

import tempfile
import time
from itertools import count
from pathlib import Path

import pulsar
from playwright.sync_api import expect, sync_playwright
from pulsar.schema import AvroSchema, Double, Integer, Record, String

from tests.docs_site.paths import ROOT
from tests.http_calls import admin
from tests.integration.broker.console.browser import Console, consoles, launch
from tests.standalone import Standalone

FOLDER = ROOT / "docs" / "screenshots"
SIZE = (1280, 760)
TOPIC = "persistent://shop/orders/placed"
MESSAGES = 400
RATES_S = 12.0
"""Plots need some points, which come with the polls of the page."""

VIEWS = {
    "cluster": ("#/", "What needs a person"),
    "topic": ("#/topic/persistent/shop/orders/placed", "Subscriptions"),
    "messages": ("#/topic/persistent/shop/orders/placed/messages", ""),
}
"""By the name of the file: where the view is, and a table that it has."""


class Order(Record):  # type: ignore[misc]  # the client's schemas have no types
    """What the shop publishes."""

    number = Integer(required=True)
    customer = String()
    total = Double()


def fill(server: Standalone, client: "pulsar.Client") -> "pulsar.Producer":
    """Make the shop; returns the producer of its orders. The clients stay connected."""
    admin(server, "PUT", "/admin/v2/tenants/shop", {"allowedClusters": ["standalone"]})
    admin(server, "PUT", "/admin/v2/namespaces/shop/orders")
    schema = AvroSchema(Order)
    client.subscribe(TOPIC, "archive", schema=schema).close()
    stuck = client.subscribe(
        TOPIC, "billing", pulsar.ConsumerType.Shared, schema=schema, consumer_name="billing-1",
        receiver_queue_size=3,
    )  # fmt: skip
    producer = client.create_producer(TOPIC, producer_name="web-1", schema=schema)
    for number in range(MESSAGES):
        order(producer, number)
    stuck.receive()  # and never acknowledges it
    return producer


def order(producer: "pulsar.Producer", number: int) -> None:
    """Publish one order."""
    customer = f"customer-{number % 7}"
    value = Order(number=number, customer=customer, total=number * 1.25)
    producer.send(value, partition_key=customer, properties={"source": "web"})


def take(tab: Console, name: str, producer: "pulsar.Producer") -> Path:
    """Write the picture of one view."""
    where, table = VIEWS[name]
    tab.open(where)
    if table:
        expect(tab.page.get_by_role("table", name=table, exact=True)).to_be_visible()
    else:
        expect(tab.page.locator(".messages summary").first).to_be_visible()
        tab.page.locator(".messages summary").first.click()
    until_s = time.monotonic() + (RATES_S if table else 0)
    for number in count(MESSAGES):
        if time.monotonic() >= until_s:
            break
        order(producer, number)
        tab.page.wait_for_timeout(100)
    path = FOLDER / f"console-{name}.png"
    tab.page.screenshot(path=path)
    return path


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-screenshots-") as folder,
        Standalone(Path(folder) / "data", arguments=["--bookies", "3"]) as server,
        sync_playwright() as playwright,
    ):
        client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = fill(server, client)
        browser = launch(playwright)
        with consoles(browser, server.http_url) as make:
            tab = make(size=SIZE)
            for name in VIEWS:
                print(take(tab, name, producer))  # noqa: T201
        browser.close()
        client.close()


if __name__ == "__main__":
    main()
