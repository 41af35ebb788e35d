"""The layout of the source tree: what style.md asks for and no other tool checks."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnetar.deploy.cli import app
from tests.structure import COMPONENTS

ROOT = Path(__file__).resolve().parents[2]
# Packages that share a source root with another one.
ROOTS = {"testing": "deploy", "arrow": "sdk"}
GENERATED = ("pulsar_pb2.py", "pulsar_pb2.pyi")

# Only these may touch the world directly; everything else is handed a clock, a random, a disk.
SHELLS = {
    "ledger/magnetar/ledger/system.py": "the production ports are made of it",
    "deploy/": "the composition has nobody above it",
    "sdk/magnetar/sdk/ports.py": "the client's production ports",
    "sdk/magnetar/sdk/perf/": "a measuring tool, not a part of any protocol",
}

BANNED_CALLS = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.sleep",
    "datetime.now",
    "datetime.utcnow",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid4",
    "random.random",
    "random.randint",
    "random.randrange",
    "random.choice",
    "random.shuffle",
    "secrets.token_bytes",
    "secrets.token_hex",
    "os.urandom",
}


def component_folder(component: str) -> Path:
    return ROOT / ROOTS.get(component, component) / "magnetar" / component


def source_files(component: str) -> list[Path]:
    return sorted(
        path
        for path in component_folder(component).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_closes_the_namespace_package() -> None:
    assert [relative(path) for path in ROOT.glob("*/magnetar/__init__.py")] == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_folder_with_code_is_a_package(component: str) -> None:
    """The import checker walks packages only: it would pass over any other folder."""
    folders = {path.parent for path in source_files(component)}
    assert [relative(each) for each in sorted(folders) if not (each / "__init__.py").exists()] == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_component_readme_maps_every_file(component: str) -> None:
    folder = component_folder(component)
    readme = (folder / "README.md").read_text()
    missing = [
        relative(path)
        for path in source_files(component)
        if path.name != "__init__.py"
        and path.name not in GENERATED
        and not re.search(rf"(?<![\w.-]){re.escape(path.name)}(?![\w-])", readme)
    ]
    assert missing == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_component_readme_names_no_file_that_is_gone(component: str) -> None:
    folder = component_folder(component)
    named = set(re.findall(r"`([\w./-]+\.py)`", (folder / "README.md").read_text()))
    known = {path.name for path in source_files(component)}
    everywhere = {path.name for other in COMPONENTS for path in source_files(other)}
    gone = [
        name
        for name in sorted(named)
        if Path(name).name not in known and Path(name).name not in everywhere
    ]
    assert gone == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_world_is_reached_through_the_ports_only(component: str) -> None:
    found = [
        f"{relative(path)}:{line}: {call}"
        for path in source_files(component)
        if not relative(path).startswith(tuple(SHELLS))
        for call, line in calls(path)
        if call in BANNED_CALLS
    ]
    assert found == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_calls_itself_pure_is(component: str) -> None:
    """A core gets bytes and the time, and gives effects: no loop, no files, no logs (style 1)."""
    found = [
        f"{relative(path)} imports {module}"
        for path in source_files(component)
        if calls_itself_pure(ast.get_docstring(ast.parse(path.read_text())) or "")
        for module in imports(path)
        if module.split(".")[0] in {"asyncio", "os", "socket", "threading", "time", "structlog"}
    ]
    assert found == []


def calls_itself_pure(docstring: str) -> bool:
    """Whether the file as a whole is said to be pure, and not some of its functions."""
    claim = r"(^|[.;:,] )(pure( values| but for [^.;:,]*)?[.;:,]|(does )?no I/O\b)"
    return re.search(claim, " ".join(docstring.split()), re.IGNORECASE) is not None


@pytest.mark.parametrize(
    ("docstring", "is_claim"),
    [
        ("Marks. Pure.", True),
        ("Marks,\nin a file. Pure.", True),
        ("Marks.\n\nPure: time comes in as an argument.", True),
        ("Sources of marks. Pure values and their codec.", False),
        ("What is marked. Pure values.", True),
        ("Marks; pure.", True),
        ("Marks. Pure but for the clock that is handed in.", True),
        ("Marks. Pure; no I/O, no time.", True),
        ("Marks. Does no I/O; the stores decide when to look.", True),
        ("Marks. No I/O here.", True),
        ("Marks. The codecs are pure. They raise.", False),
        ("Marks. Pure bookkeeping is in `Marks`; `Reader` reads.", False),
        ("Whatever is not a pure function of its inputs.", False),
    ],
)
def test_a_file_calls_itself_pure_in_a_sentence_of_its_own(docstring: str, is_claim: bool) -> None:
    assert calls_itself_pure(docstring) is is_claim


def test_the_broker_takes_only_the_wire_from_the_sdk() -> None:
    """Below the granularity of the import contracts, which know packages and all they hold.

    WebSocket sessions are clients, and coordinators of transactions and replicators are clients of
    other brokers: they have the rest of it.
    """
    found = [
        f"{relative(path)} imports {module}"
        for path in source_files("broker")
        if path.parent.name not in ("websocket", "transactions", "replication")
        for module in imports(path)
        if module.startswith("magnetar.sdk") and not module.startswith("magnetar.sdk.wire")
    ]
    assert found == []


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, at the top or later."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """The dotted names that a file calls, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_the_import_contracts_name_every_component() -> None:
    configuration = (ROOT / "pyproject.toml").read_text()
    for component in COMPONENTS:
        assert f'"magnetar.{component}",' in configuration.split("[tool.importlinter]")[1]


def test_the_files_that_the_architecture_page_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(rf"`((?:{'|'.join(COMPONENTS)})/[\w./-]+\.py)`", text)
    assert named
    missing = []
    for name in named:
        component, _, rest = name.partition("/")
        if not ((component_folder(component) / rest).exists() or (ROOT / name).exists()):
            missing.append(name)
    assert missing == []


def test_every_format_page_is_listed() -> None:
    folder = ROOT / "docs" / "formats"
    listed = (folder / "README.md").read_text()
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert [name for name in sorted(pages) if f"]({name})" not in listed] == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_component_says_that_it_is_typed(component: str) -> None:
    assert (component_folder(component) / "py.typed").exists()


def test_every_make_target_that_is_documented_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for document in ("README.md", "ARCHITECTURE.md"):
        named = set(re.findall(r"`?make ([a-z-]+)`?", code_of(ROOT / document)))
        assert named <= targets, document


def test_every_magnetar_command_in_the_readme_exists() -> None:
    built = {command.name or function_name(command.callback) for command in app.registered_commands}
    built |= {str(group.name) for group in app.registered_groups}
    named = set(
        re.findall(r"(?:^|[`/ ])magnetar ([a-z][a-z-]+)", code_of(ROOT / "README.md"), re.MULTILINE)
    )
    assert named, "the README shows no command at all"
    assert named <= built


def test_every_option_in_the_readme_is_known_to_its_command() -> None:
    for command, options in commands_with_options(ROOT / "README.md"):
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
        for option in options:
            assert option in shown, f"magnetar {' '.join(command)} {option}"


def commands_with_options(document: Path) -> Iterator[tuple[list[str], list[str]]]:
    for line in code_of(document).splitlines():
        match = re.search(
            r"(?:^|[`/ ])magnetar ((?:[a-z][a-z-]*)(?: (?:produce|consume|ledger)\b)?)", line
        )
        if match:
            rest = line[match.end() :].split("#")[0]
            yield match[1].split(), re.findall(r"(?<!\S)(--[a-z-]+)", rest)


def code_of(document: Path) -> str:
    """The code blocks and `code spans` of a Markdown page."""
    text = document.read_text()
    blocks = re.findall(r"^```.*?$(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text)
    return "\n".join([*blocks, *spans])


def function_name(callback: object) -> str:
    name: str = getattr(callback, "__name__", "")
    return name.replace("_", "-")


def test_every_link_between_the_documents_leads_somewhere() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    broken = []
    for name in listed.stdout.split():
        page = ROOT / name
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{name}: {target}")
    assert broken == []


def _comes_after_its_start(source: str) -> bool:
    """Whether a module that is also a program defines something after the lines that start it."""
    body = ast.parse(source).body
    starts = [at for at, node in enumerate(body) if _is_start(node)]
    return bool(starts) and starts[0] < len(body) - 1


def _is_start(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def test_what_a_program_defines_is_there_when_it_starts() -> None:
    start = 'if __name__ == "__main__":\n    main()\n'
    assert _comes_after_its_start(f"def main(): ...\n{start}def late(): ...\n")
    assert not _comes_after_its_start(f"def main(): ...\n{start}")

    product = [path for component in COMPONENTS for path in source_files(component)]
    late = [
        relative(path)
        for path in (*product, *(ROOT / "tests").rglob("*.py"))
        if _comes_after_its_start(path.read_text())
    ]
    assert late == []
