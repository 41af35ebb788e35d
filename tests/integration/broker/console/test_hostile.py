"""Names, keys, properties and payloads that are markup stay text, in every view."""

from urllib.parse import quote

from playwright.sync_api import expect

from tests.http_calls import admin
from tests.integration.broker.console.browser import Console, OpenConsole
from tests.integration.broker.console.conftest import HOSTILE
from tests.standalone import Standalone

NAME = quote(HOSTILE, safe="")
TOPIC = f"#/topic/persistent/shop/orders/{NAME}"


def _harmless(tab: Console) -> None:
    """Nothing of it has become an element; a script that ran would have opened a dialog."""
    assert tab.page.locator("main img, dialog img, #notices img").count() == 0
    assert tab.troubles == []


def test_hostile_names_are_text_in_every_view(console: OpenConsole) -> None:
    tab = console().open("#/namespace/shop/orders")
    row = tab.row("Topics of shop/orders", HOSTILE)
    expect(row).to_contain_text("no consumer is connected")
    expect(row).to_contain_text(HOSTILE)
    _harmless(tab)
    row.get_by_role("link").click()
    tab.heading(HOSTILE)
    expect(tab.row("Subscriptions", HOSTILE)).to_be_visible()
    expect(tab.page.get_by_role("region", name="Why nothing flows")).to_contain_text(HOSTILE)
    _harmless(tab)
    tab.open(f"{TOPIC}/storage")
    expect(tab.row("Cursors", HOSTILE)).to_be_visible()
    tab.open(f"#/subscription/persistent/shop/orders/{NAME}/{NAME}")
    tab.sees("Nothing is delivered just now")
    expect(tab.page.locator(".messages .key-of")).to_have_text(HOSTILE)
    _harmless(tab)


def test_a_hostile_message_is_text(console: OpenConsole) -> None:
    tab = console().open(f"{TOPIC}/messages")
    message = tab.page.locator(".messages li")
    expect(message).to_have_count(1)
    message.locator("summary").click()
    expect(message.locator("pre")).to_contain_text(f'"html": "{HOSTILE}"')
    properties = message.get_by_label("Properties")
    expect(properties.locator("dt")).to_have_text(HOSTILE)
    expect(properties.locator("dd")).to_have_text(HOSTILE)
    for kind in ("text", "hex", "avro"):
        tab.field("Show payloads").select_option(kind)
        _harmless(tab)


def test_hostile_names_in_questions_and_refusals_are_text(console: OpenConsole) -> None:
    tab = console().open(TOPIC)
    tab.button("Delete").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Delete {HOSTILE}?")
    dialog.get_by_label(f"Type {HOSTILE} to go on").fill(HOSTILE)
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(tab.page.locator(".notice.error")).to_contain_text("That cannot be done")
    _harmless(tab)
    tab.open(f"#/topic/persistent/shop/orders/{NAME}-not-there")
    expect(tab.page.get_by_role("alert")).to_contain_text(HOSTILE)
    _harmless(tab)


def test_a_hostile_address_is_text(console: OpenConsole) -> None:
    tab = console().open(f"#/{NAME}/{NAME}")
    tab.sees("there is no such view")
    tab.open("#/%E0%A4%A")  # no UTF-8
    tab.sees("there is no such view")
    tab.page.get_by_label("Find a namespace or topic").fill(f"{HOSTILE} nowhere")
    tab.button("Go").click()
    tab.sees("No namespace and no topic has a name with these words.")
    _harmless(tab)


def test_names_that_a_browser_takes_for_directions_are_asked_about_by_nobody(
    console: OpenConsole,
) -> None:
    tab = console()
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.method + " " + request.url))
    for name in ("..", ".", ""):
        tab.open(f"#/subscription/persistent/shop/orders/kept/{name}")
        tab.sees(f'a browser cannot ask about the name "{name}"')
    assert not any("/admin/" in each for each in asked), asked


def test_an_avro_schema_that_means_harm_does_none(console: OpenConsole, shop: Standalone) -> None:
    """Values of no bytes, without end; and a type that holds itself, again and again."""
    endless = '{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}'
    nothings = (
        '{"type": "record", "name": "R", "fields": [{"name": "nothings", '
        '"type": {"type": "array", "items": "null"}}]}'
    )
    for topic, schema, payload in (
        ("endless", endless, "02" * 200),
        ("nothings", nothings, "fe ff ff ff ff ff ff ff ff 01"),
    ):
        place = f"/admin/v2/schemas/shop/orders/{topic}/schema"
        admin(shop, "POST", place, {"type": "AVRO", "schema": schema, "properties": {}})
        tab = console().open(f"#/topic/persistent/shop/orders/{topic}/publish")
        tab.field("Payload").fill(payload)
        tab.field("Payload format").select_option("hex")
        tab.button("Publish").click()
        tab.sees("Published as ")
        tab.page.get_by_role("link", name="Look at it").click()
        expect(tab.page.locator(".messages .kind")).to_have_text("hex")
        tab.field("Show payloads").select_option("avro")
        expect(tab.page.locator(".messages pre")).to_contain_text("no AVRO of the topic's schema")
        _harmless(tab)
