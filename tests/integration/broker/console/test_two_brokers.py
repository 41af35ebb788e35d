"""Tokens, rights, and topics that another broker owns: the console on two secured brokers."""

import json
import os
import signal
from collections.abc import Iterator

import pulsar
import pytest
from playwright.sync_api import Browser, expect

from tests.integration.broker.console.browser import Console, OpenConsole, consoles
from tests.integration.broker.security.pair import Pair
from tests.integration.broker.security.secured import token_for
from tests.processes import HOST

NAMESPACE = "/admin/v2/persistent/public/default"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    try:
        made.start()
        info = {"adminRoles": ["acme-admin"], "allowedClusters": ["standalone"]}
        clusters = made.ask(0, "GET", "/admin/v2/clusters")[1]
        info["allowedClusters"] = clusters
        assert made.ask(0, "PUT", "/admin/v2/tenants/acme", info)[0] == 204
        assert made.ask(0, "PUT", "/admin/v2/namespaces/acme/ns")[0] == 204
        yield made
    finally:
        for process in reversed(made.processes):
            process.kill()


@pytest.fixture
def console(browser: Browser, pair: Pair) -> Iterator[OpenConsole]:
    with consoles(browser, f"http://{HOST}:{pair.http_ports[0]}") as make:
        yield make


def _sign_in(tab: Console, role: str) -> Console:
    tab.open()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("The broker does not know who you are")
    dialog.get_by_label("Token").fill(token_for(role))
    dialog.get_by_role("button", name="Use it").click()
    expect(dialog).to_be_hidden()
    return tab


def _elsewhere(pair: Pair) -> str:
    """A topic with a message, which the second broker owns."""
    client = pulsar.Client(
        f"pulsar://{HOST}:{pair.ports[0]}",
        authentication=pulsar.AuthenticationToken(token_for("root")),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        for number in range(64):
            name = f"topic-{number}"
            place = f"/lookup/v2/topic/persistent/public/default/{name}"
            client.create_producer(f"persistent://public/default/{name}").close()
            if str(pair.ports[1]) in pair.ask(0, "GET", place)[1]["brokerUrl"]:
                producer = client.create_producer(f"persistent://public/default/{name}")
                producer.send(b"from elsewhere")
                return name
    finally:
        client.close()
    raise AssertionError("one broker has everything")


def test_a_token_is_asked_for_kept_in_the_tab_only_and_forgotten(console: OpenConsole) -> None:
    tab = _sign_in(console(), "root")
    expect(tab.page.get_by_role("table", name="Brokers").get_by_role("rowheader")).to_have_count(2)
    kept = "JSON.stringify([Object.keys(sessionStorage), localStorage.length, document.cookie])"
    assert json.loads(tab.page.evaluate(kept)) == [["magnetar.token"], 0, ""]
    tab.button("Token set").click()
    tab.button("Forget it").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("does not know who you are")
    assert json.loads(tab.page.evaluate(kept))[0] == []
    tab.page.keyboard.press("Escape")
    # Who says no is asked no more, and told why there is nothing to see.
    tab.sees("Trying again in")
    expect(dialog).to_have_count(0)


def test_a_wrong_token_is_said_in_words(console: OpenConsole) -> None:
    tab = console().open()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Token").fill("no.token.at-all")
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("The broker does not know who you are")


def test_a_tenants_administrator_sees_the_tenant_and_elsewhere_the_refusal(
    console: OpenConsole,
) -> None:
    tab = _sign_in(console(), "acme-admin")
    tab.sees("You may not do this:")
    tab.sees("not shown to you")
    tab.page.get_by_label("Find a namespace or topic").fill("acme/ns")
    tab.button("Go").click()
    tab.heading("acme/ns")
    tab.field("Name").fill("mine")
    tab.button("Create").click()
    tab.sees("mine is there.")
    expect(tab.row("Topics of acme/ns", "mine")).to_contain_text("quiet")
    tab.open("#/namespace/public/default")
    expect(tab.page.locator("#trouble")).to_contain_text("You may not do this:")


def test_a_topic_of_another_broker_is_shown_and_worked_on_from_here(
    console: OpenConsole, pair: Pair
) -> None:
    topic = _elsewhere(pair)
    tab = _sign_in(console(), "root")
    tab.open(f"#/topic/persistent/public/default/{topic}")
    tab.sees(f"{HOST}:{pair.http_ports[1]}")
    tab.field("New subscription").fill("desk")
    tab.field("Start position").select_option("the first message")
    tab.page.get_by_role("main").get_by_role("button", name="Create", exact=True).click()
    expect(tab.row("Subscriptions", "desk")).to_contain_text("no consumer is connected")
    tab.page.get_by_role("link", name="Publish", exact=True).click()
    tab.field("Payload").fill("from the console")
    tab.button("Publish").click()
    tab.sees("Published as ")
    tab.page.get_by_role("link", name="Look at it").click()
    expect(tab.page.locator(".messages .preview")).to_have_text(
        ["from the console", "from elsewhere"]
    )
    tab.open(f"#/subscription/persistent/public/default/{topic}/desk")
    tab.button("Clear the backlog").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Clear").click()
    tab.sees("The backlog is cleared.")
    status, stats = pair.ask(1, "GET", f"{NAMESPACE}/{topic}/stats")
    assert (status, stats["subscriptions"]["desk"]["msgBacklog"]) == (200, 0)
    hosts = {each.partition("/admin")[0] for each in _asked_while_reloading(tab)}
    assert hosts == {tab.base_url}


def _asked_while_reloading(tab: Console) -> list[str]:
    """Where the page has sent its requests: to no broker but its own."""
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.reload()
    tab.sees("What happens")
    tab.sees("No consumer is connected")
    return [each for each in asked if "/admin/" in each]


def test_what_needs_a_person_is_told_of_all_brokers_and_who_does_not_answer(
    console: OpenConsole, pair: Pair
) -> None:
    topic = _elsewhere(pair)
    status, _ = pair.ask(
        1, "PUT", f"{NAMESPACE}/{topic}/subscription/left", {"ledgerId": -1, "entryId": -1}
    )
    assert status in (204, 409)
    tab = _sign_in(console(), "root")
    needs = tab.page.get_by_role("table", name="What needs a person")
    row = needs.get_by_role("row").filter(has_text=f"public/default/{topic} / left")
    expect(row).to_contain_text("no consumer is connected")
    tab.open("#/namespace/public/default")
    expect(tab.row("Topics of public/default", topic)).to_contain_text("no consumer is connected")
    os.kill(pair.processes[-1].pid, signal.SIGSTOP)
    try:
        tab.open()
        expect(needs).to_contain_text("the broker does not answer")
        expect(needs).to_contain_text(f"{HOST}:{pair.http_ports[1]}")
    finally:
        os.kill(pair.processes[-1].pid, signal.SIGCONT)
