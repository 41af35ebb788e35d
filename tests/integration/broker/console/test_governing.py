"""Policies with their units, permissions, schemas, transactions, scalable topics."""

from playwright.sync_api import expect

from magnetar.sdk.blocking import Client
from tests.http_calls import admin, call
from tests.integration.broker.console.browser import OpenConsole
from tests.standalone import Standalone

SPACE = "/admin/v2/namespaces/shop/governed"


def _space(server: Standalone, name: str = "governed") -> None:
    call(server, "PUT", f"/admin/v2/namespaces/shop/{name}")


def test_policies_are_told_with_units_and_set_in_units(
    console: OpenConsole, shop: Standalone
) -> None:
    _space(shop)
    retention = {"retentionTimeInMinutes": 4320, "retentionSizeInMB": -1}
    admin(shop, "POST", f"{SPACE}/retention", retention)
    tab = console().open("#/namespace/shop/governed")
    tab.page.get_by_role("link", name="Policies", exact=True).click()
    expect(tab.row("Policies", "Retention")).to_contain_text(
        "Retention time: 3 d; Retention size: without limit"
    )
    tab.field("Expire unacknowledged messages after").fill("1.5")
    tab.field("Unit of expire unacknowledged messages after").select_option("hours")
    tab.button("Set message TTL").click()
    expect(tab.row("Policies", "Message TTL")).to_contain_text("1 h 30 min")
    assert admin(shop, "GET", f"{SPACE}/messageTTL") == 5400
    tab.field("Backlogs up to").fill("10")
    tab.field("Unit of backlogs up to").select_option("GB")
    tab.field("Above it").select_option("refuse producers")
    tab.button("Set backlog quota").click()
    expect(tab.row("Policies", "Backlog quota map")).to_contain_text("10 GB")
    quotas = admin(shop, "GET", f"{SPACE}/backlogQuotaMap")
    assert quotas["destination_storage"]["policy"] == "producer_exception"
    tab.button("Remove message TTL").click()
    expect(tab.row("Policies", "Message TTL")).to_have_count(0)
    tab.field("Keep acknowledged messages for").fill("")
    tab.button("Set retention").click()
    tab.sees("give a time first.")
    admin(shop, "PUT", "/admin/v2/persistent/shop/governed/one", {})
    tab.open("#/topic/persistent/shop/governed/one/policies")
    expect(tab.row("Policies that count for this topic", "Retention")).to_contain_text("3 d")


def test_permissions_are_granted_and_taken_away(console: OpenConsole, shop: Standalone) -> None:
    _space(shop)
    tab = console().open("#/namespace/shop/governed/permissions")
    tab.sees("No role has a permission of its own here")
    tab.field("Role").fill("clerk")
    tab.button("Grant").click()
    tab.sees("choose what the role may do first.")
    tab.field("produce").check()
    tab.field("consume").check()
    tab.button("Grant").click()
    expect(tab.row("Permissions", "clerk")).to_contain_text("consume, produce")
    found = admin(shop, "GET", f"{SPACE}/permissions")
    assert {role: set(actions) for role, actions in found.items()} == {
        "clerk": {"produce", "consume"}
    }
    tab.button("Revoke clerk").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    tab.sees("No role has a permission of its own here")
    assert admin(shop, "GET", f"{SPACE}/permissions") == {}


def test_versions_of_a_schema_are_compared(console: OpenConsole, shop: Standalone) -> None:
    place = "/admin/v2/schemas/shop/orders/versioned/schema"
    old = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
    new = old.replace("]}", ',{"name":"b","type":["null","int"],"default":null}]}')
    tab = console().open("#/topic/persistent/shop/orders/versioned/schema")
    tab.sees("The topic has no schema")
    for definition in (old, new):
        admin(shop, "POST", place, {"type": "AVRO", "schema": definition, "properties": {}})
    tab.page.reload()
    tab.sees("2 versions.")
    difference = tab.page.get_by_role("region", name="Difference")
    expect(difference.locator(".added").filter(has_text='"b"')).to_have_count(1)
    expect(difference.locator(".removed").filter(has_text='"a"')).to_have_count(0)
    tab.page.get_by_label("with", exact=True).select_option(index=0)
    expect(difference.locator(".added")).to_have_count(0)


def test_an_open_transaction_is_seen_and_aborted(console: OpenConsole, shop: Standalone) -> None:
    client = Client(shop.url)
    client.transaction(timeout_ms=600_000).begin()
    tab = console().open("#/transactions")
    table = tab.page.get_by_role("table", name="Open transactions")
    expect(table.get_by_role("row")).to_have_count(2)
    tab.button("Abort").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Abort", exact=True).click()
    tab.sees("No transaction is open.")
    client.close()


def test_the_layout_of_a_scalable_topic_is_a_picture_over_time(
    console: OpenConsole, shop: Standalone
) -> None:
    _space(shop)
    place = "/admin/v2/scalable/shop/governed/growing"
    admin(shop, "PUT", f"{place}?numInitialSegments=2")
    tab = console().open("#/namespace/shop/governed")
    tab.page.get_by_role("link", name="growing").click()
    tab.heading("growing")
    tab.sees("2 segments take messages, of 2 there are")
    expect(tab.page.locator("rect.segment.active")).to_have_count(2)
    tab.button("Split it").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Split", exact=True).click()
    tab.sees("3 segments take messages, of 4 there are")
    expect(tab.page.locator("rect.segment.active")).to_have_count(3)
    expect(tab.row("Segments", "0")).to_contain_text("sealed")
    picture = tab.page.get_by_role("img", name="Layout over time: 4 segments")
    expect(picture).to_be_visible()
