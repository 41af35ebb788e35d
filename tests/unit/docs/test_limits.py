"""docs/limits.md: each limit has the default and the bound that its setting has in the code."""

import re

import pytest
from annotated_types import Le

from tests.docs_site.paths import ROOT
from tests.unit.deploy.test_setting_names import COMPONENTS

PAGE = (ROOT / "docs" / "limits.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shown(value: int, key: str) -> str:
    """A number as the page writes it."""
    if value == 0:
        return "none"
    if "bytes" in key:
        for size, unit in _SIZES:
            if value % size == 0:
                return f"{value // size:,} {unit}"
    return f"{value // 1000:,} s" if key.endswith("_ms") else f"{value:,}"


def test_the_page_names_limits() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize(("default", "highest", "setting"), ROWS)
def test_a_limit_is_what_the_code_says(default: str, highest: str, setting: str) -> None:
    table, _, key = setting.partition(".")
    field = COMPONENTS[table].model_fields[key]
    assert default == shown(field.get_default(), key)
    highest_of = [each.le for each in field.metadata if isinstance(each, Le)]
    found = [shown(each, key) for each in highest_of if isinstance(each, int)]
    assert highest == (found[0] if found else "any")
