"""A release: the version comes from the tag, and the same commit gives the same files."""

import importlib.util
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.processes import ROOT


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist", ROOT / "deploy" / "bootstrap" / "dist.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dist = _load()


@pytest.mark.parametrize(
    ("written", "described", "version"),
    [
        ("0.1.0", "v0.1.0-0-g0123abc", "0.1.0"),
        ("0.2.0", "v0.1.0-17-g0123abc", "0.2.0.dev17+g0123abc"),
        ("0.1.0", "0123abc", "0.1.0.dev0+g0123abc"),
    ],
)
def test_the_tag_of_a_commit_is_its_version(written: str, described: str, version: str) -> None:
    assert dist.version_of(written, described) == version


def test_a_tag_that_contradicts_the_sources_is_refused() -> None:
    with pytest.raises(dist.DistributionError, match=r"v0\.2\.0.*0\.1\.0"):
        dist.version_of("0.1.0", "v0.2.0-0-g0123abc")


def test_the_chart_has_the_version_and_is_the_same_each_time(tmp_path: Path) -> None:
    packed = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        packed.append(dist.pack_chart(ROOT, "0.2.0.dev17+g0123abc", tmp_path / name))
    assert packed[0].read_bytes() == packed[1].read_bytes()
    with tarfile.open(packed[0]) as archive:
        names = archive.getnames()
        file = archive.extractfile("magnetar/Chart.yaml")
        assert file is not None
        chart = file.read().decode().splitlines()
    assert "version: 0.2.0-dev.17+g0123abc" in chart
    assert 'appVersion: "0.2.0.dev17+g0123abc"' in chart
    # They are links to the one copy of each.
    for part in ("rules/magnetar.yaml", "dashboards/cluster.json", "backup.sh"):
        assert f"magnetar/files/{part}" in names


def test_the_bill_of_materials_has_every_locked_package_with_its_hashes() -> None:
    lock = (ROOT / dist.LOCK).read_text()
    bill = dist.bill_of_materials(lock, "0.1.0")
    found = {each["name"]: each for each in bill["components"]}
    assert len(found) == sum("==" in line for line in lock.splitlines() if line[:1].isalnum())
    assert {"fastapi", "rocksdict"} <= set(found)
    assert all(each["properties"] for each in found.values())
