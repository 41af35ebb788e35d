"""Messages are found, followed, copied and published again."""

import time
from datetime import datetime

import pulsar
import pytest
from playwright.sync_api import Route, expect

from tests.http_calls import admin
from tests.integration.broker.console.browser import Console, OpenConsole, violations
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
    tab.field("Start position").select_option("oldest")
    tab.button("Search").click()
    tab.sees("10 entries with 10 messages, the oldest first.")
    assert _previews(tab)[0] == "text 0"
    tab.button("Next").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 10")
    third = tab.page.locator(".messages .id").nth(3).inner_text()
    tab.button("Previous").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 0")
    tab.field("Start position").select_option("id")
    tab.field("Message id").fill("nonsense")
    tab.button("Search").click()
    tab.sees("A message id is ledger:entry, as 17:3.")
    tab.field("Message id").fill(third)
    tab.button("Search").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 13")
    tab.field("Start position").select_option("time")
    local = datetime.fromtimestamp(searched).isoformat(timespec="seconds")
    tab.field("Time").fill(local)
    tab.button("Search").click()
    expect(tab.page.locator(".messages .preview").first).to_have_text("text 20")


WIDE = "persistent://shop/orders/wide-messages"
WIDE_VIEW = "#/topic/persistent/shop/orders/wide-messages/messages"
WIDE_PLACE = "/admin/v2/persistent/shop/orders/wide-messages"
PARTITIONS = 3


class Wide:
    """A partitioned topic. Messages go to its partitions in turn, each at a time of its own."""

    def __init__(self, server: Standalone) -> None:
        self._client = pulsar.Client(
            server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._client.subscribe(WIDE, "desk").close()
        self._producers = [
            self._client.create_producer(f"{WIDE}-partition-{number}")
            for number in range(PARTITIONS)
        ]
        self._sent_ms = 0

    def _is_later(self) -> bool:
        return time.time() * 1000 >= self._sent_ms + 2

    def send(self, *numbers: int) -> list[str]:
        """Return the ids of the messages, as the console shows them."""
        ids = []
        for each in numbers:
            wait_until(self._is_later, "time goes on")
            self._sent_ms = int(time.time() * 1000)
            producer = self._producers[each % PARTITIONS]
            sent = producer.send(f"text {each}".encode(), partition_key=f"k{each}")
            ids.append(f"{sent.ledger_id()}:{sent.entry_id()}")
        return ids

    def close(self) -> None:
        self._client.close()


def test_messages_of_all_partitions_are_one_list_by_the_time_of_publishing(
    console: OpenConsole, shop: Standalone
) -> None:
    admin(shop, "PUT", f"{WIDE_PLACE}/partitions", PARTITIONS)
    wide = Wide(shop)
    ids = wide.send(*range(14))
    tab = console().open(WIDE_VIEW)
    previews = tab.page.locator(".messages .preview")
    tab.sees("10 entries with 10 messages, the newest first, by the time of publishing.")
    assert previews.all_inner_texts() == [f"text {each}" for each in range(13, 3, -1)]
    newest = tab.page.locator(".messages li").first
    expect(newest.locator("summary")).to_contain_text("partition 1")
    tab.button("Older").click()
    expect(previews).to_have_text([f"text {each}" for each in range(3, -1, -1)])
    expect(tab.button("Older")).to_be_disabled()
    tab.button("Newer").click()
    expect(previews.first).to_have_text("text 13")
    _search(tab, Key_has="k5")
    tab.sees("1 message found in 14 entries, the newest first. There are no more entries.")
    tab.field("Key has").fill("")
    tab.field("Start position").select_option("id")
    tab.field("Message id").fill(ids[7])
    tab.button("Search").click()
    expect(previews).to_have_text([f"text {each}" for each in range(7, 14)])
    tab.field("Message id").fill("999999999:0")
    tab.button("Search").click()
    tab.sees("No message has this id.")

    tab.open("#/subscription/persistent/shop/orders/wide-messages/desk")
    tab.sees("10 entries with 10 messages, the next one first, by the time of publishing.")
    assert previews.all_inner_texts() == [f"text {each}" for each in range(10)]
    tab.button("Next").click()
    expect(previews).to_have_text([f"text {each}" for each in range(10, 14)])
    expect(tab.button("Next")).to_be_disabled()
    tab.button("Previous").click()
    expect(previews.first).to_have_text("text 0")

    tab.open(WIDE_VIEW)
    expect(previews.first).to_have_text("text 13")
    tab.button("Follow new messages").click()
    with tab.page.expect_response("**/partitioned-internalStats?*"):
        pass
    wide.send(14, 15, 16)
    expect(previews).to_have_text(["text 16", "text 15", "text 14"])
    assert violations(tab.page) == []
    wide.close()


def test_partitions_at_rest_are_told_and_loaded_only_when_somebody_wants_it(
    console: OpenConsole, shop: Standalone
) -> None:
    place = "/admin/v2/persistent/shop/orders/half-rest"
    admin(shop, "PUT", f"{place}/partitions", 2)
    client = pulsar.Client(shop.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("persistent://shop/orders/half-rest", "desk").close()
    for number in range(2):
        name = f"persistent://shop/orders/half-rest-partition-{number}"
        client.create_producer(name).send(f"in {number}".encode())
    client.close()
    admin(shop, "PUT", f"{place}-partition-1/unload")
    tab = console().open("#/topic/persistent/shop/orders/half-rest/messages")
    tab.sees("1 partition is at rest")
    expect(tab.page.locator(".messages .preview")).to_have_text(["in 0"])
    stored = admin(shop, "GET", f"{place}/partitioned-internalStats?onlyLoaded=true")["partitions"]
    at_rest = stored["persistent://shop/orders/half-rest-partition-1"]
    assert at_rest.keys() == {"atRest"}
    tab.button("Load them").click()
    expect(tab.page.locator(".messages .preview")).to_have_text(["in 1", "in 0"])
    expect(tab.button("Load them")).to_be_hidden()


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


FOLLOW_EVERY_MS = 1500

NOTE_WAITS = """() => {
    window.waits = [];
    const later = window.setTimeout;
    window.setTimeout = (work, ms) => { window.waits.push(ms); return later(work, ms); };
}"""


@pytest.mark.parametrize(("partitions", "times"), [(10, 1), (40, 4)])
def test_a_topic_of_many_partitions_is_followed_more_slowly(
    console: OpenConsole, shop: Standalone, partitions: int, times: int
) -> None:
    name = f"followed-{partitions}"
    admin(shop, "PUT", f"/admin/v2/persistent/shop/orders/{name}/partitions", partitions)
    tab = console().open(f"#/topic/persistent/shop/orders/{name}/messages")
    tab.sees("The topic is empty")
    tab.page.evaluate(NOTE_WAITS)
    tab.button("Follow new messages").click()
    paces = [number * FOLLOW_EVERY_MS for number in (1, 4)]

    def noted() -> list[int]:
        return [each for each in tab.page.evaluate("window.waits") if each in paces]

    wait_until(lambda: bool(noted()), "the next look is planned")
    assert set(noted()) == {times * FOLLOW_EVERY_MS}


def test_after_a_request_has_failed_no_more_of_its_kind_are_sent(
    console: OpenConsole, shop: Standalone
) -> None:
    place = "/admin/v2/persistent/shop/orders/failing"
    admin(shop, "PUT", f"{place}/partitions", 9)
    for number in range(9):
        admin(shop, "GET", f"{place}-partition-{number}/stats")  # loads it
    tab = console().open("#/topic/persistent/shop/orders/failing/messages")
    tab.sees("The topic is empty")
    asked: list[Route] = []
    tab.page.route("**/messageid/*", lambda route: asked.append(route))
    tab.field("Start position").select_option("time")
    tab.field("Time").fill("2026-01-01T00:00:00")
    tab.button("Search").click()

    def are_asked() -> bool:
        tab.page.evaluate("0")  # lets the requests be seen
        return len(asked) == 3

    wait_until(are_asked, "as many as are sent at a time")
    asked[0].fulfill(status=500, json={"reason": "out of order"})
    tab.sees("The broker cannot do this now: out of order")
    for route in asked[1:]:
        route.fulfill(json={"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    tab.field("Start position").select_option("oldest")
    tab.button("Search").click()
    tab.sees("There are no more.")
    assert len(asked) == 3
    tab.page.unroute_all(behavior="wait")


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
