"""Dependencies have bounds, and the image has exactly those of its lock files, by hash."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.artifacts import DOCKERFILE
from tests.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUNTIME = [
    Requirement(each)
    for each in (
        *PROJECT["project"]["dependencies"],
        *EXTRAS["compression"],
        *EXTRAS["encryption"],
        *EXTRAS["server"],
    )
    if not each.startswith("magnetar")
]
"""What the image has: the client and the servers."""
_OTHER_EXTRAS = (
    "arrow",
    "avro",
    "docs",
    "objects",
    "otel",
    "pipeline",
    "spark",
    "taskiq",
    "zookeeper",
)
OPTIONAL = [
    Requirement(each)
    for extra in _OTHER_EXTRAS
    for each in EXTRAS[extra]
    if not each.startswith("magnetar")
]
BUILD = [Requirement(each) for each in PROJECT["build-system"]["requires"]]
LOCKS = {"requirements.lock": RUNTIME, "build-requirements.lock": BUILD}


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Of a lock file: version and number of hashes by package."""
    text = DOCKERFILE.with_name(name).read_text().replace("\\\n", "")
    found: dict[str, tuple[str, int]] = {}
    for line in text.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            package, version = re.match(r"([\w.-]+)==([^ ;]+)", line).groups()  # type: ignore[union-attr]
            found[canonicalize_name(package)] = (version, line.count("--hash=sha256:"))
    return found


@pytest.mark.parametrize("requirement", [*RUNTIME, *OPTIONAL, *BUILD], ids=lambda each: each.name)
def test_each_dependency_has_a_lower_and_an_upper_bound(requirement: Requirement) -> None:
    operators = {each.operator for each in requirement.specifier}
    assert operators & {">=", "==", "~="}
    assert operators & {"<", "<=", "==", "~="}


@pytest.mark.parametrize("name", LOCKS)
def test_each_dependency_is_locked_within_its_bounds_and_by_hash(name: str) -> None:
    found = locked(name)
    for requirement in LOCKS[name]:
        version, _ = found[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement}: {version}; make lock"
    assert [package for package, (_, hashes) in found.items() if not hashes] == []


def test_the_image_installs_nothing_but_what_is_locked() -> None:
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert len(installs) == 4
    for install in installs:
        assert "--require-hashes" in install or "--no-deps" in install


def test_the_bill_of_materials_names_what_is_installed() -> None:
    script = DOCKERFILE.with_name("sbom.py")
    runs = [
        subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    bill = json.loads(runs[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "magnetar"
    listed = {each["name"]: each["version"] for each in bill["components"]}
    for requirement in RUNTIME:
        name = canonicalize_name(requirement.name)
        assert listed[name] == metadata.version(requirement.name)
