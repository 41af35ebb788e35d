"""Writes the files."""

from pathlib import Path

from tests.dashboards import DASHBOARDS, rendered

FOLDER = Path(__file__).resolve().parent.parent.parent / "deploy" / "grafana" / "dashboards"

if __name__ == "__main__":
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(rendered(dashboard))
