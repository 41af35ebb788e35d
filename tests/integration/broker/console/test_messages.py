"""Messages are found, followed, copied and published again."""

import time
from datetime import datetime

import pulsar
import pytest
from playwright.sync_api import expect

from tests.http_calls import admin
from tests.integration.broker.console.browser import Console, OpenConsole
from tests.standalone import Standalone
from tests.waiting import wait_until

NAME = "persistent://shop/orders/searched"
TOPIC = "#/topic/persistent/shop/orders/searched/messages"
COUNT = 40


@pytest.fixture(scope="module")
def searched(shop: Standalone) -> float:
    """A topic with forty messages; returns a time between the first and the last twenty."""
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(NAME, batching_enabled=False)

    def send(numbers: range) -> None:
        for each in numbers:
            properties = {"n": str(each)}
            producer.send(f"text {each}".encode(), partition_key=f"k{each}", properties=properties)

    send(range(COUNT // 2))
    # A time is typed in whole seconds: the publish times around it differ by more.
    middle_s = time.time() + 1.5
    wait_until(lambda: time.time() >= middle_s + 1.5, "what follows is published later")
    send(range(COUNT // 2, COUNT))
    client.close()
    return middle_s


def _search(tab: Console, **wanted: str) -> None:
    for label, text in wanted.items():
        tab.field(label.replace("_", " ")).fill(text)
    tab.button("Search").click()


def _previews(tab: Console) -> list[str]:
    return tab.page.locator(".messages .preview").all_inner_texts()


def test_messages_are_found_by_key_property_and_text(console: OpenConsole, searched: float) -> None:
    tab = console().open(TOPIC)
    tab.sees("10 entries with 10 messages, the newest first.")
    _search(tab, Key_has="k7")
    tab.sees("1 message found in 40 entries, the newest first. There are no more entries.")
    assert _previews(tab) == ["text 7"]
    _search(tab, Key_has="", Property="n=12")
    expect(tab.page.locator(".messages .preview")).to_have_text(["text 12"])
    _search(tab, Property="", Payload_has="TEXT 3")
    tab.sees("11 messages found in 40 entries")
    assert _previews(tab)[0] == "text 39"


def test_messages_are_shown_from_a_message_a_time_or_the_oldest_on(
    console: OpenConsole, searched: float
) -> None:
    tab = console().open(TOPIC)
    tab.field("Begin at").select_option("oldest")
    tab.button("Search").click()
    tab.sees("10 entries with 10 messages, the oldest first.")
    assert _previews(tab)[0] == "text 0"
    tab.button("Further").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 10")
    third = tab.page.locator(".messages .id").nth(3).inner_text()
    tab.button("Back").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 0")
    tab.field("Begin at").select_option("id")
    tab.field("Message id").fill("nonsense")
    tab.button("Search").click()
    tab.sees("A message id is ledger:entry, as 17:3.")
    tab.field("Message id").fill(third)
    tab.button("Search").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 13")
    tab.field("Begin at").select_option("time")
    local = datetime.fromtimestamp(searched).isoformat(timespec="seconds")
    tab.field("Time").fill(local)
    tab.button("Search").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 20")


def test_new_messages_are_followed_as_they_come(console: OpenConsole, shop: Standalone) -> None:
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("persistent://shop/orders/followed")
    producer.send(b"before")
    tab = console().open("#/topic/persistent/shop/orders/followed/messages")
    expect(tab.page.locator(".messages .preview")).to_have_text(["before"])
    tab.button("Follow new messages").click()
    with tab.page.expect_response("**/internalStats"):
        pass
    tab.sees("Waiting for new messages.")
    for text in (b"one", b"two"):
        producer.send(text)
    expect(tab.page.locator(".messages .preview")).to_have_text(["two", "one"])
    tab.button("Follow new messages").click()
    expect(tab.button("Follow new messages")).to_have_attribute("aria-pressed", "false")
    client.close()


def test_a_dead_letter_is_copied_and_published_again_where_it_came_from(
    console: OpenConsole, shop: Standalone
) -> None:
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader("persistent://shop/orders/worked-on", pulsar.MessageId.latest)
    dead = client.create_producer("persistent://shop/orders/worked-on-work-DLQ")
    properties = {
        "REAL_TOPIC": "persistent://shop/orders/worked-on",
        "ORIGIN_MESSAGE_ID": "1:2:-1",
        "source": "web",
    }
    payload = bytes([0, 255, 7])
    dead.send(payload, partition_key="k", properties=properties)
    tab = console().open("#/topic/persistent/shop/orders/worked-on-work-DLQ/messages")
    message = tab.page.locator(".messages li")
    message.locator("summary").click()
    message.get_by_role("button", name="Copy", exact=True).click()
    tab.sees("Copied.")
    message.get_by_role("button", name="Publish again").click()
    tab.heading("worked-on")
    expect(tab.field("Payload")).to_have_value("00 ff 07")
    expect(tab.field("Properties")).to_have_value("source=web")
    tab.sees("Filled in from message ")
    tab.button("Publish").click()
    tab.sees("Published as ")
    again = reader.read_next(30_000)
    assert (again.data(), again.partition_key(), again.properties()) == (
        payload,
        "k",
        {"source": "web"},
    )
    client.close()
    assert admin(shop, "GET", "/admin/v2/persistent/shop/orders/worked-on/stats")["msgInCounter"]
