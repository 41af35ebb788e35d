"""Dashboards as Grafana reads them."""

import json

from tests.dashboards.panels import Dashboard, Panel

_COLUMNS = 24
_HEIGHT = 8
_DATASOURCE = {"type": "prometheus", "uid": "${source}"}


def rendered(dashboard: Dashboard) -> str:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, object]] = []
    top = 0
    for title, row in dashboard.rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        across = 6 if all(each.is_number for each in row) else 3
        height = _HEIGHT // 2 if across == 6 else _HEIGHT
        width = _COLUMNS // across
        for number, panel in enumerate(row):
            place = {
                "h": height,
                "w": width,
                "x": number % across * width,
                "y": top + number // across * height,
            }
            panels.append(_panel(panel, len(panels) + 1, place))
        top += -(-len(row) // across) * height
    return json.dumps(_page(dashboard, panels), indent=2) + "\n"


def _page(dashboard: Dashboard, panels: list[dict[str, object]]) -> dict[str, object]:
    source = {
        "name": "source",
        "label": "Source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["magnetar"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "type": "dashboards",
                "title": "Magnetar",
                "tags": ["magnetar"],
                "asDropdown": False,
                "includeVars": False,
                "keepTime": True,
            }
        ],
        "templating": {"list": [source, *(_variable(*each) for each in dashboard.variables)]},
        "panels": panels,
    }


def _variable(name: str, query: str) -> dict[str, object]:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": "A"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, object]:
    defaults: dict[str, object] = {"unit": panel.unit, "min": 0}
    if panel.red_above is not None or panel.red_below is not None:
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
    options: dict[str, object] = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background"}
        if panel.is_number
        else {"legend": {"displayMode": "list", "placement": "bottom"}}
    )
    return {
        "id": number,
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _steps(panel: Panel) -> list[dict[str, object]]:
    if panel.red_above is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above}]
    return [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
