"""The software bill of materials of a Python environment, as CycloneDX JSON on standard output.

usage: python sbom.py

It lists what is installed where it runs: name, version, package URL and what the package says of
its license. The same environment gives the same text. Only Python's own library is needed.
Source: https://cyclonedx.org/docs/1.5/json/.
"""

import json
import re
import sys
from importlib import metadata

_PRODUCT = "magnetar"


def component(distribution: metadata.Distribution) -> dict[str, object]:
    """One package."""
    name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
    version = distribution.version
    purl = f"pkg:pypi/{name}@{version}"
    found: dict[str, object] = {
        "type": "application" if name == _PRODUCT else "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    expressions = distribution.metadata.get_all("License-Expression", [])
    if expressions:
        found["licenses"] = [{"expression": each} for each in expressions]
    else:
        said = [
            each.rpartition("::")[2].strip()
            for each in distribution.metadata.get_all("Classifier", [])
            if each.startswith("License ::")
        ]
        if said:
            found["licenses"] = [{"license": {"name": each}} for each in sorted(said)]
    return found


def bill() -> dict[str, object]:
    """All packages of this environment, by name."""
    components = {str(each["purl"]): each for each in map(component, metadata.distributions())}
    product = [each for each in components.values() if each["name"] == _PRODUCT]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": product[0]} if product else {},
        "components": [each for _, each in sorted(components.items()) if each["name"] != _PRODUCT],
    }


def main() -> int:
    sys.stdout.write(json.dumps(bill(), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
