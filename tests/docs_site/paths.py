"""Files of the repository as pages of the docs site, and links between them.

Pages of docs/ keep their paths. The README of the repository is the first page of the site. Other
Markdown files that a page may link to, such as ARCHITECTURE.md and the README of each component,
are pages below `repository/`. Any other file is no page: its link leads to the repository on the
web if that is known, and else becomes plain text.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
OUTSIDE = "repository"
"""Folder of the site with pages from outside docs/."""

OUTSIDE_PAGES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "bookie/**/README.md",
    "broker/**/README.md",
    "cursors/**/README.md",
    "deploy/**/README.md",
    "ledger/**/README.md",
    "sdk/**/README.md",
    "tests/**/README.md",
)
FOR_PROGRAMS = ("deploy/magnetar/deploy/tour_data/README.md",)
"""Files of that kind that are no pages."""

RENAMED = {
    "README.md": "README.md",
    "docs/README.md": "documents.md",
    # On the site, "index" is the page of a folder.
    "docs/formats/index.md": "formats/index-records.md",
    # Notebooks are pages with what their cells have shown.
    "docs/examples/first_steps.ipynb": "examples/first_steps.md",
    "docs/examples/flights.ipynb": "examples/flights.md",
}
UNPUBLISHED = ("docs/changes/",)
MADE = ("docs/decisions/README.md",)
"""Pages that exist on the site alone and that links to their folder lead to."""

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\[\]]*\])*\])\(([^()\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//|#")


def outside_pages(root: Path = ROOT) -> list[str]:
    """Return the Markdown files outside docs/ that are pages of the site, by path."""
    found = {
        path.relative_to(root).as_posix() for glob in OUTSIDE_PAGES for path in root.glob(glob)
    }
    return sorted(found - set(FOR_PROGRAMS))


def site_path(path: str, outside: list[str]) -> str | None:
    """Return the path below the site's folder that a file of the repository has, or None."""
    if path in RENAMED:
        return RENAMED[path]
    if path.startswith(UNPUBLISHED):
        return None
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return f"{OUTSIDE}/{path}" if path in outside else None


def repository_path(page: str) -> str:
    """Return the file of the repository that a page of the site was made from."""
    for path, renamed in RENAMED.items():
        if page == renamed:
            return path
    if page.startswith(f"{OUTSIDE}/"):
        return page.removeprefix(f"{OUTSIDE}/")
    return f"{DOCS}/{page}"


def file_at(path: str, root: Path = ROOT) -> str:
    """Return the file that a link to a path of the repository means: in a folder, its README."""
    if f"{path}/README.md" in MADE or (root / path / "README.md").is_file():
        return f"{path}/README.md"
    return path


def rewrite_links(
    markdown: str, page: str, outside: list[str], repository_url: str, root: Path = ROOT
) -> str:
    """Return a page with the links between files changed to links between pages of the site.

    Args:
        page: path of the page on the site.
        outside: pages from outside docs/, as of `outside_pages`.
        repository_url: where a browser finds the files of the repository; empty: nowhere.
    """
    source = posixpath.dirname(repository_path(page))

    def rewritten(match: re.Match[str]) -> str:
        text, target = match.groups()
        if _ELSEWHERE.match(target):
            return match[0]
        path, _, anchor = target.partition("#")
        meant = file_at(posixpath.normpath(posixpath.join(source, path)), root)
        found = site_path(meant, outside)
        if found is None:
            return f"{text}({repository_url}/{meant})" if repository_url else text[1:-1]
        link = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"{text}({link}#{anchor})" if anchor else f"{text}({link})"

    return "".join(_outside_of_code(markdown, lambda line: _LINK.sub(rewritten, line)))


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> Iterator[str]:
    fence = ""
    for line in markdown.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and line.strip() == fence:
            fence = ""
        elif not fence:
            line = change(line)
        yield line


def title_of(markdown: str) -> str:
    """Return the text of the first heading of a page.

    Raises:
        ValueError: the page has none.
    """
    found = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    if found is None:
        raise ValueError("the page has no heading of the first level; give it one")
    return found[1]
