"""Hooks of mkdocs.yml: pages made from the code, pages from outside docs/, and links between them.

`python -m mkdocs build` runs them from the root of the repository; see docs/contributing.md.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from tests.docs_site.commands_page import commands_page
from tests.docs_site.notebook_page import notebook_page
from tests.docs_site.paths import (
    RENAMED,
    ROOT,
    outside_pages,
    rewrite_links,
    site_path,
    title_of,
)
from tests.docs_site.sdk_page import sdk_page
from tests.docs_site.settings_page import settings_page

MADE = {
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/sdk.md": sdk_page,
}
"""Pages that are made from the code."""

DECISIONS = """# Decisions

Why Magnetar is built as it is, a page each. A decision is never deleted: a later one supersedes it.

"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name anchors as the pages of the repository do, and list the pages that a "*" stands for."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    assert config.nav is not None
    named = set(_named(config.nav))
    files = [path.relative_to(ROOT).as_posix() for path in _below("docs", "*.md")]
    pages = [site_path(path, _outside()) for path in (*files, *_outside())]
    rest = [page for page in pages if page is not None and page not in named]
    config.nav = _expanded(config.nav, rest)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and rename those that would hide each other."""
    pages = {page: _content(path) for path, page in RENAMED.items()}
    for path in _outside():
        page = site_path(path, _outside())
        assert page is not None
        pages[page] = (ROOT / path).read_text()
    pages |= {page: make() for page, make in MADE.items()}
    pages["decisions/README.md"] = decisions_page()
    for page, content in pages.items():
        standing = files.get_file_from_path(page)
        if standing is not None:
            files.remove(standing)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links between files of the repository lead to the pages of the site."""
    del config, files
    url = os.environ.get("MAGNETAR_REPOSITORY_URL", "").rstrip("/")
    return rewrite_links(markdown, page.file.src_uri, _outside(), url)


def decisions_page() -> str:
    """Return the list of all decisions."""
    listed = [
        f"- [{title_of(path.read_text())}]({path.name})"
        for path in _below("docs/decisions", "*.md")
        if path.name != "README.md"
    ]
    return DECISIONS + "\n".join(listed) + "\n"


@cache
def _outside() -> list[str]:
    return outside_pages()


def _content(path: str) -> str:
    """The page that a file of the repository is."""
    text = (ROOT / path).read_text()
    return notebook_page(text) if path.endswith(".ipynb") else text


def _below(folder: str, glob: str) -> list[Path]:
    return sorted((ROOT / folder).rglob(glob))


def _named(nav: Any) -> list[str]:
    """All pages that a part of the navigation names. Any: it is a tree of lists and mappings."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _named(part)]


def _expanded(nav: Any, rest: list[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(part, rest) for title, part in nav.items()}
    if isinstance(nav, str):
        return nav
    found: list[Any] = []
    for part in nav:
        if isinstance(part, str) and part.endswith("*"):
            folder = part.removesuffix("*")
            found += [page for page in rest if page.startswith(folder)]
        else:
            found.append(_expanded(part, rest))
    return found
