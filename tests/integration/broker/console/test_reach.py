"""The console for everybody: by keyboard, by name and role, on a phone, in light and dark."""

import pytest
from playwright.sync_api import Locator, expect

from tests.integration.broker.console.browser import PHONE, Console, OpenConsole, violations

VIEWS = {
    "cluster": ("#/", "Brokers"),
    "tenants": ("#/tenants", "Tenants"),
    "namespace": ("#/namespace/shop/orders", "Topics of shop/orders"),
    "topic": ("#/topic/persistent/shop/orders/placed", "Subscriptions"),
    "partitioned": ("#/topic/persistent/shop/orders/parted", "Partitions"),
    "storage": ("#/topic/persistent/shop/orders/placed/storage", "Ledgers"),
    "subscription": ("#/subscription/persistent/shop/orders/placed/stuck", "Consumers"),
    "messages": ("#/topic/persistent/shop/orders/mixed/messages", ""),
    "messages of partitions": ("#/topic/persistent/shop/orders/parted/messages", ""),
    "publish": ("#/topic/persistent/shop/orders/placed/publish", ""),
    "schema": ("#/topic/persistent/shop/orders/placed/schema", "Versions"),
    "policies of a topic": (
        "#/topic/persistent/shop/orders/placed/policies",
        "Policies that count for this topic",
    ),
    "policies": ("#/namespace/shop/orders/policies", "Policies"),
    "permissions": ("#/namespace/shop/orders/permissions", ""),
    "search": ("#/search/sensor", "Found"),
    "transactions": ("#/transactions", ""),
}
"""Where each view is, and a table that it has."""

CONTRAST = """
() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (text) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const layers = [];
    for (let each = node; each; each = each.parentElement)
      layers.push(parse(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, top) => [...over(top, below), 1], [255, 255, 255, 1]);
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    const isControl = node.matches("input, textarea, select");
    if (!(own || isControl) || node.matches(":disabled") || !node.checkVisibility()) continue;
    const below = behind(node);
    const style = getComputedStyle(node);
    const [one, other] = [light(over(parse(style.color), below)), light(below.slice(0, 3))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5)
      poor.push(`${node.tagName} ${node.className} ${node.textContent.slice(0, 30)}: ${ratio}`);
  }
  return poor;
}
"""
"""What has less contrast than 4.5 to 1 with what lies behind it."""


def _shown(tab: Console, name: str) -> Console:
    where, table = VIEWS[name]
    if tab.page.url.startswith(tab.base_url):
        tab.page.evaluate("(where) => { location.hash = where; }", where)
    else:
        tab.open(where)
    if table:
        expect(tab.page.get_by_role("table", name=table, exact=True)).to_be_visible()
    elif name == "messages":
        tab.sees("4 entries with 6 messages")
        for summary in tab.page.locator(".messages summary").all():
            summary.click()
    elif name == "messages of partitions":
        tab.sees("The topic is empty")
    elif name == "publish":
        expect(tab.button("Publish")).to_be_enabled()
    elif name == "permissions":
        tab.sees("No role has a permission of its own here")
    else:
        tab.sees("No transaction is open.")
    return tab


def test_no_view_of_what_is_there_fills_the_log_of_the_browser(console: OpenConsole) -> None:
    tab = console()
    for name in VIEWS:
        _shown(tab, name)
        tab.page.wait_for_load_state("networkidle")
    assert tab.logged == []


def test_no_view_is_wider_than_a_phone(console: OpenConsole) -> None:
    tab = console(size=PHONE)
    width = "document.documentElement.scrollWidth"
    found = {name: _shown(tab, name).page.evaluate(width) for name in VIEWS}
    assert {name: wide for name, wide in found.items() if wide > PHONE[0]} == {}


def test_a_dialog_fits_a_phone(console: OpenConsole) -> None:
    tab = _shown(console(size=PHONE), "topic")
    tab.button("Delete").click()
    box = tab.page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE[0]


def test_rows_on_a_phone_say_what_their_cells_are(console: OpenConsole) -> None:
    tab = _shown(console(size=PHONE), "topic")
    cell = tab.row("Subscriptions", "audit").get_by_role("cell").nth(1)
    label = cell.evaluate("(node) => getComputedStyle(node, '::before').content")
    assert label == '"Consumers"'


UNNAMED = """
() => [...document.querySelectorAll("button, input, select, textarea, a, svg")]
  .filter((node) => node.checkVisibility() && node.getAttribute("aria-hidden") !== "true")
  .filter((node) => !(node.ariaLabel || node.textContent.trim() || node.labels?.length))
  .map((node) => node.outerHTML)
"""
LEVELS = "() => [...document.querySelectorAll('h1, h2, h3')].map((node) => node.tagName)"


def _faults(tab: Console) -> list[str]:
    """What is wrong with a view for somebody who cannot see it, or not well."""
    page = tab.page
    levels = page.evaluate(LEVELS)
    found = [f"no name: {each}" for each in page.evaluate(UNNAMED)]
    if levels.count("H1") != 1 or levels[0] != "H1":
        found.append(f"headings are {levels}")
    if page.get_by_role("main").count() != 1 or page.locator("html[lang=en]").count() != 1:
        found.append("no main part, or no language")
    return found + [f"axe: {each}" for each in violations(page)]


@pytest.mark.parametrize("is_dark", [False, True])
def test_every_view_is_for_everybody_in_light_and_dark(console: OpenConsole, is_dark: bool) -> None:
    """Contrast in both; names, headings and what axe finds do not depend on colours."""
    tab = console(is_dark=is_dark)
    background = "getComputedStyle(document.body).backgroundColor"
    poor = {}
    for name in VIEWS:
        found = _shown(tab, name).page.evaluate(CONTRAST)
        found += [] if is_dark else _faults(tab)
        if found:
            poor[name] = found
    assert poor == {}
    assert (tab.page.evaluate(background) == "rgb(17, 21, 26)") is is_dark
    tab.button("Token").click()
    assert tab.page.evaluate(CONTRAST) == []


def test_nothing_moves_for_whoever_wants_it_so(console: OpenConsole) -> None:
    moving = "document.getAnimations().length"
    for is_calm in (True, False):
        tab = _shown(console(is_calm=is_calm), "publish")
        tab.page.evaluate("document.addEventListener('animationstart', () => { window.seen = 1 })")
        tab.button("Token").click()
        expect(tab.page.get_by_role("dialog")).to_be_visible()
        if is_calm:
            assert tab.page.evaluate(moving) == 0
        else:
            tab.page.wait_for_function("window.seen === 1")


def _tab_to(tab: Console, target: Locator, *, at_most: int = 60) -> None:
    """Press Tab until something has the focus, which must be seen wherever it is on the way."""
    for _ in range(at_most):
        tab.page.keyboard.press("Tab")
        outline = tab.page.evaluate(
            "document.activeElement === document.body ? 'body' : "
            "getComputedStyle(document.activeElement).outlineStyle"
        )
        assert outline != "none", tab.page.evaluate("document.activeElement.outerHTML")
        if target.evaluate("(node) => node === document.activeElement"):
            return
    raise AssertionError(f"{target} is not reached by Tab")


def test_from_the_cluster_to_a_cleared_backlog_by_keyboard_alone(console: OpenConsole) -> None:
    tab = _shown(console(), "cluster")
    keys = tab.page.keyboard
    _tab_to(tab, tab.page.get_by_role("link", name="Skip to content"))
    keys.press("Enter")
    expect(tab.page.locator("main")).to_be_focused()
    go = tab.page.get_by_label("Find a namespace or topic")
    tab.page.reload()
    _tab_to(tab, go)
    keys.type("shop/orders/keyed")
    keys.press("Enter")
    # Whoever comes to a view by keyboard is at its beginning.
    heading = tab.page.get_by_role("heading", name="keyed", exact=True)
    expect(heading).to_be_focused()
    tab.heading("keyed")
    _tab_to(tab, tab.page.get_by_role("link", name="Publish", exact=True))
    keys.press("Enter")
    expect(heading).to_be_focused()
    expect(tab.button("Publish")).to_be_visible()
    _tab_to(tab, tab.field("Payload"))
    keys.type("by keyboard")
    _tab_to(tab, tab.button("Publish"))
    keys.press("Enter")
    tab.sees("Published as ")
    _tab_to(tab, tab.page.get_by_role("link", name="Look at it"))
    keys.press("Enter")
    expect(heading).to_be_focused()
    summary = tab.page.locator(".messages summary")
    expect(summary).to_be_visible()
    _tab_to(tab, summary)
    keys.press("Enter")
    expect(tab.page.locator(".messages pre")).to_have_text("by keyboard")
    overview = tab.page.get_by_role("link", name="Overview")
    tab.page.keyboard.press("Shift+Tab")
    tab.page.evaluate("document.querySelector('h1').focus()")
    _tab_to(tab, overview)
    keys.press("Enter")
    expect(heading).to_be_focused()
    _tab_to(tab, tab.field("New subscription"))
    keys.type("keys")
    _tab_to(tab, tab.field("Start position"))
    keys.press("ArrowDown")
    keys.press("Enter")
    tab.page.get_by_role("main").get_by_role("button", name="Create", exact=True).focus()
    keys.press("Enter")
    link = tab.row("Subscriptions", "keys").get_by_role("link")
    expect(link).to_be_visible()
    link.focus()
    keys.press("Enter")
    expect(tab.page.get_by_role("heading", name="keys", exact=True)).to_be_focused()
    tab.heading("keys")
    clear = tab.button("Clear the backlog")
    expect(clear).to_be_visible()
    _tab_to(tab, clear)
    keys.press("Enter")
    dialog = tab.page.get_by_role("dialog")
    # The first key that comes to mind does no harm.
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    keys.press("Enter")
    expect(dialog).to_be_hidden()
    # Where the question came from, there it goes on.
    expect(clear).to_be_focused()
    keys.press("Enter")
    keys.press("Tab")
    expect(dialog.get_by_role("button", name="Clear")).to_be_focused()
    keys.press("Enter")
    tab.sees("The backlog is cleared.")
