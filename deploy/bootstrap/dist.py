"""Make what a release consists of, in dist/: wheel, source distribution, chart, bill of materials.

usage: python deploy/bootstrap/dist.py [--output DIR] [--working-tree]

Everything is made of the last commit, in a copy: files that are not committed are left out, unless
`--working-tree` takes the files as they are, to try a change. The tag of the commit is the version:
`v1.2.3` gives 1.2.3, and pyproject.toml, whose version is that of the release under way, must say
the same. A commit without a tag gives `1.2.3.devN+gHASH`, N commits after the last tag, which sorts
before the release. The image is built of the source distribution: `docker build --file
deploy/docker/Dockerfile .` in its folder.
"""

import argparse
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = "deploy/helm/magnetar"
LOCK = "deploy/docker/requirements.lock"
_VERSION = re.compile(r'(?m)^version = "([^"]+)"$')


class DistributionError(Exception):
    """Nothing was made; the message says what to do."""


def git(*arguments: str) -> str:
    """Return what git prints, without the last newline.

    Raises:
        DistributionError: git failed.
    """
    ended = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise DistributionError(f"git {' '.join(arguments)}: {ended.stderr.strip()}")
    return ended.stdout.rstrip("\n")


def version_of(written: str, described: str) -> str:
    """Return the version of a commit.

    Args:
        written: the version in pyproject.toml.
        described: what `git describe --tags --long --always` says of the commit.

    Raises:
        DistributionError: the tag and pyproject.toml differ.
    """
    found = re.fullmatch(r"v(.+)-(\d+)-g([0-9a-f]+)", described)
    if found is None:
        return f"{written}.dev0+g{described}"
    tag, distance, commit = found.groups()
    if distance != "0":
        return f"{written}.dev{distance}+g{commit}"
    if tag != written:
        raise DistributionError(
            f"the tag is v{tag}, but pyproject.toml says {written}: change one of them"
        )
    return tag


def copy_commit(target: Path) -> None:
    """Write the files of the last commit below a folder."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(target, filter="data")
        else:  # before Python 3.11.4; the archive is git's own
            files.extractall(target)


def copy_working_tree(target: Path) -> None:
    """Write the files that are committed or could be, as they are now, below a folder."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name, follow_symlinks=False)


def write_version(source: Path, version: str) -> None:
    """Have pyproject.toml of a copy say the version."""
    path = source / "pyproject.toml"
    text, count = _VERSION.subn(f'version = "{version}"', path.read_text(), count=1)
    assert count == 1
    path.write_text(text)


def pack_chart(source: Path, version: str, output: Path) -> Path:
    """Pack the chart as Helm does; the same commit gives the same bytes."""
    # Versions of charts are of three numbers; what comes after them is a part of its own.
    chart_version = re.sub(r"^(\d+\.\d+\.\d+)\.dev", r"\1-dev.", version)
    folder = source / CHART
    path = output / f"magnetar-chart-{chart_version}.tgz"
    with (
        path.open("wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for each in _files(folder):
            data = each.read_bytes()
            if each == folder / "Chart.yaml":
                data = _chart_yaml(data.decode(), chart_version, version).encode()
            entry = tarfile.TarInfo(f"magnetar/{each.relative_to(folder).as_posix()}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def _files(folder: Path) -> list[Path]:
    """All files below a folder, also those in folders that are links, as rules and dashboards."""
    found = []
    for parent, _, names in os.walk(folder, followlinks=True):
        found += [Path(parent, name) for name in names]
    return sorted(found)


def _chart_yaml(text: str, chart_version: str, version: str) -> str:
    text = re.sub(r"(?m)^version: .*$", f"version: {chart_version}", text)
    return re.sub(r"(?m)^appVersion: .*$", f'appVersion: "{version}"', text)


def bill_of_materials(lock: str, version: str) -> dict[str, object]:
    """Return what the image has, as CycloneDX: the packages of the lock file with their hashes."""
    components = []
    for requirement in re.split(r"\n(?=\S)", lock.replace("\\\n", " ")):
        found = re.match(r"([\w.-]+)==([^ ;\n]+)", requirement)
        if found:
            name, release = found.groups()
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", requirement)
            components.append(
                {
                    "type": "library",
                    "name": name,
                    "version": release,
                    "purl": f"pkg:pypi/{name.lower()}@{release}",
                    "properties": [{"name": "sha256", "value": each} for each in sorted(hashes)],
                }
            )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "magnetar",
                "version": version,
                "purl": f"pkg:pypi/magnetar@{version}",
            }
        },
        "components": components,
    }


def make(output: Path, *, is_committed: bool = True) -> list[Path]:
    """Make all files; returns them.

    Raises:
        DistributionError
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="magnetar-dist-") as folder:
        source = Path(folder)
        (copy_commit if is_committed else copy_working_tree)(source)
        written = _VERSION.search((source / "pyproject.toml").read_text())
        assert written is not None
        described = git("describe", "--tags", "--long", "--always", "--match", "v*")
        version = version_of(written[1], described)
        write_version(source, version)
        build = [sys.executable, "-m", "hatchling", "build", "--directory", str(output)]
        subprocess.run(build, cwd=source, check=True, stdout=sys.stderr)
        chart = pack_chart(source, version, output)
        bill = output / f"magnetar-{version}.cdx.json"
        made = bill_of_materials((source / LOCK).read_text(), version)
        bill.write_text(json.dumps(made, indent=1) + "\n")
    return [*sorted(output.glob(f"magnetar-{version}*")), chart]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--working-tree", action="store_true")
    arguments = parser.parse_args()
    try:
        made = make(arguments.output.resolve(), is_committed=not arguments.working_tree)
    except DistributionError as error:
        sys.stderr.write(f"dist: {error}\n")
        return 1
    for path in made:
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
