"""The docs site: links between files lead to pages, and its lists are complete."""

from pathlib import Path

import pytest

from magnetar import sdk
from tests.docs_site.commands_page import commands, commands_page
from tests.docs_site.notebook_page import kept_kinds, notebook_page
from tests.docs_site.paths import (
    OUTSIDE,
    ROOT,
    outside_pages,
    repository_path,
    rewrite_links,
    site_path,
    title_of,
)
from tests.docs_site.sdk_page import homes, sdk_page
from tests.docs_site.settings_page import settings_page
from tests.unit.deploy.test_setting_names import COMPONENTS

OUTSIDE_HERE = ["ARCHITECTURE.md", "ledger/magnetar/ledger/README.md"]


def rewritten(markdown: str, page: str, repository_url: str = "") -> str:
    return rewrite_links(markdown, page, OUTSIDE_HERE, repository_url)


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("spark.md", "security.md", "security.md"),
        ("operations/backup.md", "../security.md#set-up", "../security.md#set-up"),
        ("spark.md", "#here", "#here"),
        ("spark.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("spark.md", "../ARCHITECTURE.md", "repository/ARCHITECTURE.md"),
        ("repository/ARCHITECTURE.md", "docs/spark.md#rows", "../spark.md#rows"),
        ("README.md", "docs/README.md", "documents.md"),
        ("documents.md", "../README.md", "README.md"),
        ("README.md", "docs/formats/", "formats/README.md"),
        ("contributing.md", "decisions/", "decisions/README.md"),
        ("documents.md", "spark.md", "spark.md"),
        ("formats/README.md", "index.md", "index-records.md"),
    ],
)
def test_a_link_between_files_leads_from_page_to_page(page: str, link: str, expected: str) -> None:
    assert rewritten(f"see [it]({link}).\n", page) == f"see [it]({expected}).\n"


def test_a_link_to_a_file_that_is_no_page_becomes_text_or_leads_to_the_repository() -> None:
    text = "see [the `rules`](../deploy/prometheus/rules/magnetar.yaml).\n"
    assert rewritten(text, "metrics.md") == "see the `rules`.\n"
    web = rewritten(text, "metrics.md", "https://code.example/tree")
    assert "(https://code.example/tree/deploy/prometheus/rules/magnetar.yaml)" in web


def test_code_blocks_stay_as_they_are() -> None:
    text = "```\n[a](../x.yaml)\n```\n[a](../x.yaml)\n"
    assert rewritten(text, "spark.md") == "```\n[a](../x.yaml)\n```\na\n"


def test_each_page_knows_the_file_that_it_was_made_from() -> None:
    for path in ("README.md", "docs/README.md", "docs/guide/producing.md", *OUTSIDE_HERE):
        page = site_path(path, OUTSIDE_HERE)
        assert page is not None
        assert repository_path(page) == path


def test_pages_from_outside_are_those_that_people_read() -> None:
    found = outside_pages()
    assert "ARCHITECTURE.md" in found
    assert not [path for path in found if path.startswith(("docs/", f"{OUTSIDE}/"))]
    assert not [path for path in found if "tour_data" in path]


def test_a_page_without_a_heading_is_refused() -> None:
    assert title_of("text\n\n# A title\n") == "A title"
    with pytest.raises(ValueError, match="no heading"):
        title_of("text\n")


def test_every_setting_is_on_the_page_with_its_meaning() -> None:
    lines = settings_page().splitlines()
    for table, model in COMPONENTS.items():
        at = lines.index(f"## `[{table}]`")
        rows = {
            line.split("|")[1].strip(" `"): line.split("|")[-2].strip()
            for line in lines[at + 6 : at + 6 + len(model.model_fields)]
        }
        assert set(rows) == set(model.model_fields)
        assert [key for key, meaning in rows.items() if not meaning] == []


def test_every_command_is_on_the_page() -> None:
    headings = {line.lstrip("# ") for line in commands_page().splitlines() if line.startswith("##")}
    assert headings == {f"magnetar {path}" for path, _ in commands()}
    assert {"magnetar standalone", "magnetar admin topics stats"} <= headings


def test_every_public_name_of_the_client_is_on_the_page() -> None:
    page = sdk_page()
    assert {home.rsplit(".", 1)[1] for home in homes("magnetar.sdk")} == set(sdk.__all__)
    assert "::: magnetar.sdk.client.Client\n" in page
    assert "::: magnetar.sdk.blocking.Client\n" in page


def test_the_navigation_names_no_page_that_is_gone() -> None:
    lines = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1].splitlines()
    named = [line.strip().removeprefix("- ") for line in lines if line.strip().endswith(".md")]
    for page in set(named) - {"decisions/README.md"}:
        assert (ROOT / repository_path(page)).is_file(), page


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "examples").glob("*.ipynb")), ids=str)
def test_a_notebook_is_a_page_with_what_its_cells_show(path: Path) -> None:
    notebook = path.read_text()
    assert site_path(path.relative_to(ROOT).as_posix(), OUTSIDE_HERE) == f"examples/{path.stem}.md"
    page = notebook_page(notebook)
    assert title_of(page)
    assert page.count("```python\n") >= 5
    assert page.count("data:image/png;base64,") == list(kept_kinds(notebook)).count("image/png")
    assert "data:image/png;base64," in page
    assert "<style" not in page
