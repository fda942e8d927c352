"""Writes the Grafana dashboard of `panels`: `make chart`. A test compares it, and runs every query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helm.panels import ROWS, Panel

FILE = Path(__file__).parent / "triptych" / "files" / "dashboards" / "triptych.json"
WIDTH, HEIGHT = 8, 7


def dashboard() -> dict[str, Any]:
    """The dashboard's JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in ROWS:
        panels.append(
            {"type": "row", "title": heading, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}, "id": len(panels)}
        )
        for index, panel in enumerate(row):
            place = {"x": index % 3 * WIDTH, "y": top + 1 + index // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(panel, place, len(panels)))
        top += 1 + -(-len(row) // 3) * HEIGHT
    return {
        "title": "Triptych",
        "uid": "triptych",
        "tags": ["triptych"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    title, unit, queries = panel
    targets = [
        {"expr": query, "legendFormat": legend, "refId": chr(65 + at)} for at, (query, legend) in enumerate(queries)
    ]
    source = {"type": "prometheus", "uid": "${datasource}"}
    defaults = {"unit": unit, "min": 0}
    field = {"defaults": defaults, "overrides": []}
    return {
        "type": "timeseries",
        "title": title,
        "id": number,
        "gridPos": place,
        "datasource": source,
        "targets": targets,
        "fieldConfig": field,
    }


def main() -> None:
    """Write it."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()
