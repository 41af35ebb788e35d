"""A Chromium for the tests of the console, and how a test sees the page."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # no types
from playwright.sync_api import Browser, Locator, Page, Playwright, expect

_NAMES = ("chromium", "chromium-browser", "google-chrome")

WAIT_MS = 45_000
"""For a busy machine: what is waited for takes a second or two."""

DESKTOP = (1280, 860)
PHONE = (390, 844)


def violations(page: Page) -> list[str]:
    """What axe finds wrong with a page for people with disabilities."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html']}" for each in found for node in each["nodes"]
    ]


def launch(playwright: Playwright) -> Browser:
    """The machine's Chromium (deploy/bootstrap/chromium.sh), without a window."""
    names = (os.environ.get("CHROMIUM", ""), *_NAMES)
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    assert path is not None, "no Chromium is installed: sh deploy/bootstrap/chromium.sh"
    expect.set_options(timeout=WAIT_MS)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


class Console:
    """The page of one broker in a browser tab."""

    def __init__(self, page: Page, base_url: str) -> None:
        self.page = page
        self.base_url = base_url
        self.troubles: list[str] = []
        """Exceptions of scripts, and what the page's policy has forbidden."""
        self.logged: list[str] = []
        """What the browser has written into its own log, as it does of each refused request."""
        self._watched = {
            "pageerror": lambda error: self.troubles.append(str(error)),
            "console": self._on_console,
            "dialog": lambda dialog: self.troubles.append(f"a script said {dialog.message}"),
        }
        for event, listener in self._watched.items():
            page.on(event, listener)  # type: ignore[call-overload]  # one overload per event

    def leave(self) -> None:
        """Leave the tab as a new one is: empty, and with nothing stored."""
        for event, listener in self._watched.items():
            self.page.remove_listener(event, listener)
        tools = self.page.context.new_cdp_session(self.page)
        what = {"origin": self.base_url, "storageTypes": "all"}
        tools.send("Storage.clearDataForOrigin", what)
        tools.send("Network.clearBrowserCache")
        tools.detach()
        self.page.goto("about:blank")

    def _on_console(self, message: "object") -> None:
        text = str(getattr(message, "text", ""))
        self.logged.append(f"{text} {getattr(message, 'location', '')}")
        if "Content Security Policy" in text or "TrustedHTML" in text:
            self.troubles.append(text)

    def open(self, where: str = "#/") -> "Console":
        """Go to a view by its address behind the #, as by a bookmark; the page is loaded once."""
        if self.page.url == f"{self.base_url}/{where}":
            self.page.reload()
        elif self.page.url.startswith(self.base_url):
            self.page.evaluate("(where) => { location.hash = where; }", where)
        else:
            self.page.goto(f"{self.base_url}/{where}")
        return self

    def heading(self, text: str) -> None:
        """Wait until the view of this heading is there."""
        expect(self.page.locator("h1")).to_have_text(text)

    def row(self, table: str, name: str) -> Locator:
        """The row of a table, by what stands in its first cell."""
        rows = self.page.get_by_role("table", name=table, exact=True).get_by_role("row")
        return rows.filter(has=self.page.get_by_role("rowheader", name=name, exact=True))

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def field(self, name: str) -> Locator:
        return self.page.get_by_label(name, exact=True)

    def sees(self, text: str) -> None:
        """Wait until this text can be read."""
        expect(self.page.get_by_text(text).first).to_be_visible()


OpenConsole = Callable[..., Console]


class _Look(NamedTuple):
    """Properties of a tab that are fixed when it is opened."""

    size: tuple[int, int] = DESKTOP
    is_dark: bool = False
    is_calm: bool = True


_tabs: WeakKeyDictionary[Browser, dict[_Look, list[Page]]] = WeakKeyDictionary()
"""Tabs that tests have left. A new one is a new process, which takes two seconds of processor."""


@contextmanager
def consoles(browser: Browser, default_url: str) -> Iterator[OpenConsole]:
    """Makes consoles, each in a tab and with a storage of its own. At the end, none of them may
    have had trouble."""
    idle = _tabs.setdefault(browser, {})
    made: list[tuple[Console, _Look]] = []

    def make(*, url: str = default_url, **look: Any) -> Console:
        of = _Look(**look)
        pages = idle.setdefault(of, [])
        made.append((Console(pages.pop() if pages else _new_tab(browser, of), url), of))
        return made[-1][0]

    try:
        yield make
        assert [each.troubles for each, _ in made if each.troubles] == []
    except BaseException:
        for each, _ in made:
            each.page.context.close()
        raise
    for each, of in made:
        each.leave()
        idle[of].append(each.page)


def _new_tab(browser: Browser, look: _Look) -> Page:
    context = browser.new_context(
        viewport={"width": look.size[0], "height": look.size[1]},
        color_scheme="dark" if look.is_dark else "light",
        reduced_motion="reduce" if look.is_calm else "no-preference",
    )
    context.set_default_timeout(WAIT_MS)
    return context.new_page()
