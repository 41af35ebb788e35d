"""Costly proofs that need no repetition while their dependencies do not change.

Two kinds of tests are keyed by a hash of their sources: those of Spark, and replays of mutations
(`tests/simulation/mutations`). `proven.json` has the keys of their last pass. `--changed` leaves
out tests whose key equals the one in that file. `make test` passes it, `ALL=1` does not, and `make
nightly` runs all of them and rewrites the keys (`--record-proven`).

A key covers what a test is about, not everything that could break it. A mutation's key has the
files that it changes; Spark's key has the package and the modules that it imports itself. The
nightly run covers the rest. Of Python files a key covers the code, not docstrings, comments and
layout: they prove nothing new.
"""

import ast
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from tests.processes import COMPONENTS, ROOT

FILE = Path(__file__).with_name("proven.json")
SPARK = "spark"
_SPARK_SOURCES = (
    "sdk/magnetar/sdk/spark",
    "sdk/magnetar/sdk/wire",
    "sdk/magnetar/arrow/stored",
    "tests/integration/spark",
)
_SPARK_PACKAGES = ("pyspark", "pyarrow", "fastavro", "numpy")

LEDGERS, CLUSTERS, STORAGE, GEO = "ledgers", "clusters", "storage", "geo"
SCALABLE = "scalable"
_FAMILIES = (LEDGERS, CLUSTERS, STORAGE, GEO, SCALABLE)
"""Families of mutations."""


def is_proven(name: str) -> bool:
    """Whether the proof passed with the present sources."""
    recorded = _recorded().get(name)
    return recorded is not None and recorded == key_of(name)


def key_of(name: str) -> str:
    """Return the key of a proof: `spark`, or `FAMILY/MUTATION` as in `clusters/trims_early`."""
    if name == SPARK:
        return _spark_key()
    family, _, mutation = name.partition("/")
    return _replay_keys(family)[mutation]


def record(names: Iterable[str]) -> None:
    """Write the keys of proofs that have just passed. Keep the keys of others, except of mutations
    that no longer exist."""
    recorded = _recorded() | {name: key_of(name) for name in names}
    keys = {name: key for name, key in recorded.items() if name in _all_names()}
    FILE.write_text(json.dumps(keys, indent=0, sort_keys=True) + "\n")


@cache
def _all_names() -> frozenset[str]:
    replays = (f"{family}/{each}" for family in _FAMILIES for each in _replay_keys(family))
    return frozenset({SPARK, *replays})


def key_of_files(paths: Iterable[Path], *more: str) -> str:
    """Return a hash over names of files below the root, the code in them, and further texts."""
    found = hashlib.sha256()
    for path in sorted(set(paths)):
        found.update(f"{path.relative_to(ROOT)}\n".encode())
        found.update(_code_of(path))
    for text in more:
        found.update(text.encode())
    return found.hexdigest()[:16]


@cache
def _code_of(path: Path) -> bytes:
    """Return the syntax tree of a Python file without docstrings; of another file, its content."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_docstring(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


@cache
def _recorded() -> dict[str, str]:
    recorded: dict[str, str] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return recorded


@cache
def _replay_keys(family: str) -> dict[str, str]:
    """Return the keys of all replays of a family. A key covers the files with the code that the
    mutation changes, the file of the mutation, and the run that once caught it."""
    # Imported here: runs without simulations do not need the simulators.
    from tests.simulation import mutate as ledgers
    from tests.simulation.cluster import mutate as clusters
    from tests.simulation.cluster.mutations.registry import mutation as cluster_mutation
    from tests.simulation.geo import mutate as geo
    from tests.simulation.geo.mutations import mutation as geo_mutation
    from tests.simulation.mutations.mutation import files_changed_by
    from tests.simulation.mutations.registry import mutation
    from tests.simulation.mutations.storage_registry import storage_mutation
    from tests.simulation.scalable import mutate as scalable
    from tests.simulation.scalable.mutations import mutation as scalable_mutation
    from tests.simulation.storing import mutate as storage

    caught, found = {
        LEDGERS: (ledgers.SEARCH.caught, mutation),
        CLUSTERS: (clusters.SEARCH.caught, cluster_mutation),
        STORAGE: (storage.CAUGHT, storage_mutation),
        GEO: (geo.SEARCH.caught, geo_mutation),
        SCALABLE: (scalable.SEARCH.caught, scalable_mutation),
    }[family]
    catches: dict[str, object] = json.loads(caught.read_text())
    return {
        name: key_of_files(files_changed_by(found(name)), json.dumps(catch, sort_keys=True))
        for name, catch in catches.items()
    }


@cache
def _spark_key() -> str:
    files = {path for folder in _SPARK_SOURCES for path in (ROOT / folder).rglob("*.py")}
    imported = {path for file in files for path in _imports_of(file)}
    versions = (f"{name} {metadata.version(name)}" for name in _SPARK_PACKAGES)
    return key_of_files(files | imported, *versions)


def _imports_of(file: Path) -> Iterable[Path]:
    """Yield the files of the product that a file imports."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        for name in names:
            if name.startswith("magnetar."):
                yield from _file_of(name)


def _file_of(module: str) -> Iterable[Path]:
    path = module.replace(".", "/") + ".py"
    return (each for name in COMPONENTS if (each := ROOT / name / path).exists())
