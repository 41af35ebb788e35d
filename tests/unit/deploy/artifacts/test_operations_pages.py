"""The operator's guide speaks of commands, settings and statuses that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.deploy import errors
from tests.artifacts import (
    CHART,
    COMPONENTS,
    OPERATIONS,
    command_variables,
    commands,
    component_variables,
    metrics_on_the_page,
    options_of,
    read_yaml,
)
from tests.processes import ROOT

INDEX = ROOT / "docs" / "operations.md"
PAGES = [INDEX, *sorted(OPERATIONS.glob("*.md"))]


def code_of(page: Path) -> list[str]:
    """The lines of code blocks, continued ones joined, and the code spans of a page."""
    text = page.read_text()
    blocks = re.findall(r"^ *```.*?$(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = [
        line.split("#")[0].strip()
        for block in blocks
        for line in re.sub(r"\\\n\s*", "", block).splitlines()
    ]
    return [*lines, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))]


def invocations(page: Path) -> Iterator[list[str]]:
    """The words behind `magnetar` wherever a page shows it as a command."""
    for line in code_of(page):
        match = re.search(r"(?:^|\s|/)magnetar ((?:[a-z]|--)[^|&;)]*)", line)
        if match and not any(other in line for other in ("systemctl", "helm", "docker run")):
            yield match[1].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_commands_and_their_options_exist(page: Path) -> None:
    known = commands()
    for words in invocations(page):
        if words == ["--version"]:
            continue
        depth = next(
            (n for n in (3, 2, 1) if " ".join(words[:n]) in known),
            0,
        )
        assert depth, f"magnetar {' '.join(words)}"
        command = known[" ".join(words[:depth])]
        assert not getattr(command, "commands", None) or len(words) == depth, words
        options = {word for word in words[depth:] if word.startswith("--")}
        assert options <= options_of(command), f"magnetar {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_variables_exist(page: Path) -> None:
    known = set(component_variables())
    for command in commands().values():
        known |= command_variables(command)
    named = set(re.findall(r"\bMAGNETAR_[A-Z_]+\b", page.read_text()))
    assert named <= known


def logged_events() -> set[str]:
    """What the components' log lines are called."""
    call = re.compile(r"\b_?log\.(?:debug|info|warning|error|exception|critical)\(\s*\"([a-z_]+)\"")
    return {
        event
        for component in ("broker", "bookie", "ledger", "cursors", "deploy")
        for source in (ROOT / component).rglob("*.py")
        for event in call.findall(source.read_text())
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.stem))
def test_settings_metrics_and_log_lines_exist(page: Path) -> None:
    fields = {field for model in COMPONENTS.values() for field in model.model_fields}
    known = fields | metrics_on_the_page() | logged_events()
    for span in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", page.read_text()):
        assert span in known, span


def test_values_of_the_chart_exist() -> None:
    for page in PAGES:
        for path in re.findall(
            r"`((?:bookie|broker|monitoring|zookeeper)\.(?!env`)[\w.]+)`", page.read_text()
        ):
            node = read_yaml(CHART / "values.yaml")
            for name in path.split("."):
                assert name in node, f"{page.name}: {path}"
                node = node[name]


def test_every_page_is_on_the_first_one() -> None:
    text = INDEX.read_text()
    assert [page.name for page in PAGES[1:] if f"](operations/{page.name})" not in text] == []


def test_the_exit_statuses_are_those_of_the_command() -> None:
    page = (OPERATIONS / "troubleshooting.md").read_text()
    listed = {int(number) for number in re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)}
    known = {
        each.exit_status
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.DeployError)
    }
    assert listed == known | {0}


def test_links_to_sections_lead_to_sections() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", page.read_text()):
            other = (page.parent / target) if target else page
            titles = re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name}: {target}#{anchor}"
