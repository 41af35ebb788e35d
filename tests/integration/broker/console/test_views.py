"""What each view of the console tells, on a real server in a real browser."""

import re
from dataclasses import dataclass

from playwright.sync_api import Request, Route, expect

from magnetar.sdk.blocking import Client
from magnetar.sdk.schemas import INSTANT, AvroSchema
from tests.http_calls import admin, call
from tests.integration.broker.console.browser import OpenConsole
from tests.standalone import Standalone

TOPIC = "#/topic/persistent/shop/orders"


@dataclass
class Ordered:
    item: str
    count: int


def test_a_browser_gets_the_page_and_other_clients_a_hint(
    console: OpenConsole, shop: Standalone
) -> None:
    tab = console().open("")
    tab.heading("Cluster")
    answer = tab.page.request.get(f"{shop.http_url}/", headers={"Accept": "*/*"})
    assert answer.status == 404
    assert "/openapi.json" in answer.json()["reason"]


def test_the_cluster_says_who_serves_who_stores_and_whether_copies_are_missing(
    console: OpenConsole,
) -> None:
    tab = console().open()
    expect(tab.row("Brokers", "standalone")).to_contain_text("this one, leader")
    expect(tab.row("Bookies", "bookie-1")).to_contain_text("writable")
    tab.sees("every ledger has its copies")
    tab.sees("No ledger is known to lack a copy.")
    plot = tab.page.get_by_role("img", name="Messages: in")
    expect(plot).to_be_visible()


def test_the_cluster_shows_the_disks_of_bookies_and_what_is_nearly_full(
    console: OpenConsole,
) -> None:
    tab = console().open()
    disks = tab.page.get_by_role("table", name="Disks of bookies")
    expect(disks.get_by_role("row")).to_have_count(4)
    ledgers = disks.get_by_role("row").filter(has_text="/ledgers")
    expect(ledgers).to_contain_text(re.compile("takes (no )?entries|almost full"))
    expect(ledgers).to_contain_text(re.compile(r"[GT]B\s*\d+ %"))

    def changed(route: Route) -> None:
        answer = route.fetch()
        first = answer.json()[0]
        first["directories"][2] |= {"level": "almost full", "free_bytes": 1, "total_bytes": 20}
        first["read_only_reasons"] = ["a disk of the bookie is full"]
        silent = {**first, "id": "bookie-2", "directories": [], "problem": "no answer within 3 s"}
        route.fulfill(response=answer, json=[first, silent])

    tab.page.route("**/magnetar/v1/bookies/disks", changed)
    expect(ledgers).to_contain_text("almost full")
    needs = tab.page.get_by_role("table", name="What needs a person")
    expect(needs).to_contain_text("is 95 % full; 1 B are free")
    expect(needs).to_contain_text("does not answer: no answer within 3 s")
    expect(tab.row("Disks of bookies", "bookie-2")).to_contain_text("no answer within 3 s")
    tab.page.unroute("**/magnetar/v1/bookies/disks")


def test_the_cluster_shows_the_metadata_store_and_a_lost_contact(console: OpenConsole) -> None:
    tab = console().open()
    region = tab.page.get_by_role("region", name="Metadata store, as this broker sees it")
    expect(region).to_contain_text("a file on this machine")
    expect(region).to_contain_text(re.compile(r"connected for \d"))
    expect(region).to_contain_text("contact lost 0 times, session lost 0 times")
    expect(region).to_contain_text(re.compile(r"Median(under )?[\d.]+ ms"))

    def suspended(route: Route) -> None:
        answer = route.fetch()
        zookeeper = {"kind": "ZooKeeper", "servers": "zk-1:2181,zk-2:2181", "state": "suspended"}
        route.fulfill(response=answer, json={**answer.json(), **zookeeper, "session_id": "0x2a"})

    tab.page.route("**/magnetar/v1/metadata", suspended)
    expect(region).to_contain_text("ZooKeeper at zk-1:2181,zk-2:2181")
    expect(region).to_contain_text("0x2a, ends after")
    needs = tab.page.get_by_role("table", name="What needs a person")
    expect(needs).to_contain_text("the session is suspended")
    tab.page.unroute("**/magnetar/v1/metadata")


def test_the_cluster_warns_where_a_confirmed_message_is_on_one_disk(console: OpenConsole) -> None:
    console().open().sees("A message is confirmed when one disk has it")


def test_the_cluster_shows_what_took_long_in_this_broker(
    console: OpenConsole, shop: Standalone
) -> None:
    tab = console().open()
    region = tab.page.get_by_role("region", name="Slow moments of this broker")
    some = " ms" if admin(shop, "GET", "/magnetar/v1/slow?limit=1") else "Nothing took long"
    expect(region).to_contain_text(re.compile(f"{some}| ms"))


def test_from_the_cluster_to_a_topic_through_tenant_and_namespace(console: OpenConsole) -> None:
    tab = console().open()
    tab.page.get_by_role("link", name="Topics", exact=True).click()
    tab.heading("Tenants and namespaces")
    tab.field("Find a tenant or namespace").fill("shop")
    tab.row("Tenants", "shop").get_by_role("link", name="orders").click()
    tab.heading("shop/orders")
    row = tab.row("Topics of shop/orders", "placed")
    expect(row).to_contain_text("24")
    expect(row).to_contain_text("no consumer is connected")
    expect(tab.row("Topics of shop/orders", "parted")).to_contain_text("3")
    row.get_by_role("link").click()
    tab.heading("placed")


def test_topics_are_found_by_name_and_shown_a_page_at_a_time(console: OpenConsole) -> None:
    tab = console().open("#/namespace/shop/many")
    rows = tab.page.get_by_role("rowheader")
    expect(rows).to_have_count(25)
    tab.sees("1 to 25 of 40")
    tab.button("Next").click()
    tab.sees("26 to 40 of 40")
    expect(rows).to_have_count(15)
    expect(tab.button("Next")).to_be_disabled()
    tab.field("Find a topic").fill("SENSOR 03")
    expect(rows).to_have_text([f"sensor-{number:03d}" for number in [3, *range(30, 40)]])
    tab.field("Find a topic").fill("nothing of this name")
    tab.sees("No topic of this name.")


def test_a_topic_says_why_nothing_flows(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/placed")
    why = tab.page.get_by_role("region", name="Why nothing flows")
    expect(why).to_contain_text("audit (12 entries): no consumer is connected.")
    expect(why).to_contain_text("Start a consumer, or delete the subscription")
    expect(why).to_contain_text("stuck (12 entries): the consumers have asked for no more")
    expect(tab.row("Subscriptions", "stuck")).to_contain_text("Exclusive")
    why.get_by_role("link", name="stuck").click()
    tab.heading("stuck")
    tab.sees("Nothing is delivered just now: the consumers have asked for no more messages")
    expect(tab.page.get_by_role("table", name="Consumers")).to_contain_text("asks for none")


def test_a_topic_at_rest_is_not_loaded_by_looking_at_it(
    console: OpenConsole, shop: Standalone
) -> None:
    """A loaded topic without subscriptions is deleted in the end: nobody may do that by looking."""
    loaded = "/admin/v2/broker-stats/topics"
    tab = console().open("#/namespace/shop/many")
    expect(tab.row("Topics of shop/many", "sensor-001")).to_contain_text("at rest")
    tab.row("Topics of shop/many", "sensor-001").get_by_role("link").click()
    tab.heading("sensor-001")
    tab.sees("The topic is at rest.")
    for name in ("Messages", "Storage"):
        link = tab.page.get_by_role("link", name=name, exact=True)
        link.click()
        expect(link).to_have_attribute("aria-current", "page")  # what is seen is the new view
        tab.sees("The topic is at rest.")
    assert "sensor-0" not in call(shop, "GET", loaded, expect=200).text
    tab.button("Load it").click()
    tab.sees("No ledger yet: the first message makes one.")
    assert "sensor-001" in call(shop, "GET", loaded, expect=200).text
    assert "sensor-002" not in call(shop, "GET", loaded, expect=200).text


def test_a_partitioned_topic_shows_its_partitions(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/parted")
    for number in range(3):
        expect(tab.row("Partitions", f"parted-partition-{number}")).to_be_visible()
    tab.row("Partitions", "parted-partition-1").get_by_role("link").click()
    tab.heading("parted-partition-1")


def test_storage_shows_ledgers_and_cursors(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/placed/storage")
    tab.sees("12 entries in 1 ledger")
    expect(tab.page.get_by_role("table", name="Ledgers")).to_contain_text("being written")
    expect(tab.page.get_by_role("table", name="Ledgers")).to_contain_text("bookies")
    expect(tab.row("Cursors", "audit")).to_contain_text("12")


def test_a_look_at_messages_decodes_avro_by_the_schema_of_the_topic(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/placed/messages")
    tab.sees("10 entries with 10 messages, the newest first.")
    newest = tab.page.locator(".messages li").first
    newest.locator("summary").click()
    expect(newest.locator("pre")).to_contain_text('"customer": "Zoë"')
    expect(newest.locator("pre")).to_contain_text('"pieces": 11')
    expect(newest).to_contain_text("key-11")
    expect(newest.get_by_label("Properties")).to_contain_text("web")
    tab.button("Older").click()
    tab.sees("2 entries with 2 messages")


def test_text_json_and_bytes_are_told_apart_and_batches_taken_apart(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/mixed/messages")
    tab.sees("4 entries with 6 messages")
    expect(tab.page.locator(".messages .kind")).to_have_text(
        ["text", "text", "text", "hex", "text", "json"]
    )
    for summary in tab.page.locator(".messages summary").all():
        summary.click()
    payloads = tab.page.locator(".messages pre")
    expect(payloads.nth(2)).to_have_text("batched 2")
    expect(payloads.nth(3)).to_contain_text("000010  10 11 12 13")
    expect(payloads.nth(4)).to_have_text("Grüße")
    # Not 12345678901234567000, as a browser's numbers would have it.
    expect(payloads.nth(5)).to_contain_text('"big": 12345678901234567890')
    tab.field("Show payloads").select_option("hex")
    expect(payloads.nth(0)).to_contain_text("62 61 74 63 68 65 64")


def test_a_published_message_is_stored_and_can_be_looked_at(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/published/publish")
    tab.field("Payload").fill('{"hello": [1, 2]}')
    tab.field("Payload format").select_option("json")
    tab.field("Key").fill("k1")
    tab.field("Properties").fill("one=1\ntwo=a=b")
    tab.button("Publish").click()
    tab.sees("Published as ")
    tab.page.get_by_role("link", name="Look at it").click()
    message = tab.page.locator(".messages li")
    expect(message).to_have_count(1)
    message.locator("summary").click()
    expect(message.locator("pre")).to_contain_text('"hello": [')
    expect(message).to_contain_text("k1")
    expect(message.get_by_label("Properties")).to_contain_text("a=b")


def test_what_cannot_be_published_is_said_in_words(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/placed/publish")
    for kind, text, words in (
        ("json", "{", "Not published: this is not JSON"),
        ("hex", "abc", "Not published: this is not hex"),
        ("base64", "!", "Not published: this is not base64"),
    ):
        tab.field("Payload").fill(text)
        tab.field("Payload format").select_option(kind)
        tab.button("Publish").click()
        expect(tab.page.get_by_role("alert")).to_contain_text(words)


def test_text_is_encoded_by_the_topics_schema_or_refused(
    console: OpenConsole, shop: Standalone
) -> None:
    schema = AvroSchema(Ordered)
    client = Client(shop.url)
    client.producer("persistent://shop/orders/typed", schema=schema)
    client.producer("persistent://shop/orders/moments", schema=INSTANT)
    tab = console().open(f"{TOPIC}/typed/publish")
    tab.sees("(AVRO). Write JSON: it is encoded by the schema.")
    tab.field("Payload").fill('{"item": "nail", "cuont": 7}')
    for kind in ("text", "json"):
        tab.field("Payload format").select_option(kind)
        tab.button("Publish").click()
        expect(tab.page.get_by_role("alert")).to_contain_text("the topic's schema is AVRO: ")
    tab.field("Payload").fill('{"item": "nail", "count": 7}')
    tab.button("Publish").click()
    tab.sees("Published as ")
    tab.page.get_by_role("link", name="Look at it").click()
    message = tab.page.locator(".messages li")
    expect(message).to_have_count(1)
    message.locator("summary").click()
    expect(message.locator("pre")).to_contain_text('"count": 7')
    reader = client.reader("persistent://shop/orders/typed", schema=schema)
    assert reader.read_next(timeout_s=30).value() == Ordered("nail", 7)
    client.close()
    tab = console().open(f"{TOPIC}/moments/publish")
    tab.sees("Its values have no text")
    tab.field("Payload").fill("2001-02-03")
    tab.button("Publish").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("the topic's schema is INSTANT: ")
    tab.field("Payload").fill("00 00 00 00 00 00 00 01 00 00 00 00")
    tab.field("Payload format").select_option("hex")
    tab.button("Publish").click()
    tab.sees("Published as ")


def test_publishing_to_a_terminated_topic_says_so(console: OpenConsole, shop: Standalone) -> None:
    admin(shop, "PUT", "/admin/v2/persistent/shop/orders/ended", {})
    admin(shop, "POST", "/admin/v2/persistent/shop/orders/ended/terminate")
    tab = console().open(f"{TOPIC}/ended/publish")
    tab.field("Payload").fill("too late")
    tab.button("Publish").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("the topic is terminated")
    tab.open(f"{TOPIC}/ended")
    tab.sees("nothing more can be published to it")


def test_what_does_not_exist_is_said_in_words_with_a_way_back(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/nowhere")
    expect(tab.page.get_by_role("alert")).to_contain_text("There is no topic shop/orders/nowhere.")
    tab.page.get_by_role("link", name="To the topics of the namespace").click()
    tab.heading("shop/orders")
    tab.open("#/no/such/view")
    tab.sees("there is no such view")


def test_a_subscription_that_is_not_there_offers_nothing_to_do(console: OpenConsole) -> None:
    tab = console().open("#/subscription/persistent/shop/orders/placed/nope")
    expect(tab.page.get_by_role("alert").first).to_contain_text("no subscription nope")
    expect(tab.button("Delete")).to_be_hidden()
    expect(tab.page.get_by_text("What happens")).to_be_hidden()
    tab.open("#/subscription/persistent/shop/orders/placed/stuck")
    expect(tab.page.get_by_text("What happens")).to_be_visible()


def test_nothing_is_asked_while_nobody_looks_and_seldom_while_nobody_answers(
    console: OpenConsole,
) -> None:
    tab = console()
    asked: list[Request] = []
    ended: list[Request] = []
    tab.page.on("request", lambda request: asked.append(request))
    tab.page.on("requestfinished", lambda request: ended.append(request))
    tab.page.on("requestfailed", lambda request: ended.append(request))
    tab.open(f"{TOPIC}/placed")
    expect(tab.row("Subscriptions", "audit")).to_be_visible()
    # Asks again by itself ...
    tab.page.wait_for_event("request", lambda request: "/stats?" in request.url)
    # ... not while the tab is in the background ...
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); "
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    tab.page.evaluate(hide % "true" + tell)
    # What is just being asked, however long it takes, and what follows on it, are not meant.
    before = (0, 0)
    while len(ended) < len(asked) or before != (len(asked), len(ended)):
        before = (len(asked), len(ended))
        tab.page.wait_for_timeout(1000)
    tab.page.wait_for_timeout(3500)  # more than an interval has to pass
    assert (len(asked), len(ended)) == before
    with tab.page.expect_request("**/stats?*"):
        tab.page.evaluate(hide % "false" + tell)
    # ... and less and less often when there is no answer, which is said.
    tab.page.context.set_offline(True)
    tab.sees("Trying again in 6 s.")
    tab.page.context.set_offline(False)
    tab.page.evaluate(tell)  # Whoever comes back to the tab need not wait.
    expect(tab.page.locator("#trouble")).to_be_hidden()
