"""One browser for the tests of the console, and the server of the folder above with topics."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pulsar
import pytest
from playwright.sync_api import Browser, sync_playwright
from pulsar.schema import Array, AvroSchema, Double, Integer, Record, String

from tests.http_calls import admin
from tests.integration.broker.console.browser import OpenConsole, consoles, launch
from tests.standalone import Standalone

HOSTILE = "<img src=x onerror=alert(1)>"
"""What runs a script wherever a string becomes markup."""


class Line(Record):  # type: ignore[misc]  # the client's schemas have no types
    sku = String()
    pieces = Integer()


class Order(Record):  # type: ignore[misc]
    number = Integer(required=True)
    customer = String()
    total = Double()
    lines = Array(Line())


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all files of this folder, and gone with the last of them: while it is there, the
    thread has an event loop that runs, in which no test of another folder could have its own."""
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def shop(server: Standalone) -> Iterator[Standalone]:
    """The server, with a tenant whose topics show everything there is to be seen."""
    admin(server, "PUT", "/admin/v2/tenants/shop", {"allowedClusters": ["standalone"]})
    for namespace in ("orders", "many"):
        admin(server, "PUT", f"/admin/v2/namespaces/shop/{namespace}")
        # Topics that nobody uses would go after a minute, in the middle of the tests.
        stay = {
            "deleteWhileInactive": False,
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
        }
        admin(server, "POST", f"/admin/v2/namespaces/shop/{namespace}/inactiveTopicPolicies", stay)
    for number in range(40):
        admin(server, "PUT", f"/admin/v2/persistent/shop/many/sensor-{number:03d}", {})
    admin(server, "PUT", "/admin/v2/persistent/shop/orders/parted/partitions", 3)
    hostile = quote(HOSTILE, safe="")
    admin(server, "PUT", f"/admin/v2/persistent/shop/orders/{hostile}", {})
    client = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        _fill(client)
        yield server
    finally:
        client.close()


def _fill(client: "pulsar.Client") -> None:
    schema = AvroSchema(Order)
    placed = client.create_producer("persistent://shop/orders/placed", schema=schema)
    client.subscribe("persistent://shop/orders/placed", "audit", schema=schema).close()
    client.subscribe(
        "persistent://shop/orders/placed", "stuck", schema=schema, receiver_queue_size=3
    )
    client.subscribe(f"persistent://shop/orders/{HOSTILE}", HOSTILE).close()
    for number in range(12):
        lines = [Line(sku="a-1", pieces=number)]
        order = Order(number=number, customer="Zoë", total=1.5, lines=lines)
        placed.send(order, partition_key=f"key-{number}", properties={"source": "web"})
    mixed = client.create_producer(
        "persistent://shop/orders/mixed",
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,  # a batch is what is flushed
        compression_type=pulsar.CompressionType.LZ4,
    )
    large_numbers = b'{"big": 12345678901234567890, "list": [1, {}]}'
    for payload in (large_numbers, "Grüße".encode(), bytes(range(256))):
        mixed.send_async(payload, None)
        mixed.flush()
    for number in range(3):
        mixed.send_async(f"batched {number}".encode(), None, properties={"n": str(number)})
    mixed.flush()
    bad = client.create_producer(f"persistent://shop/orders/{HOSTILE}")
    payload = json.dumps({"html": HOSTILE}).encode()
    bad.send(payload, partition_key=HOSTILE, properties={HOSTILE: HOSTILE})


@pytest.fixture
def console(browser: Browser, shop: Standalone) -> Iterator[OpenConsole]:
    with consoles(browser, shop.http_url) as make:
        yield make
