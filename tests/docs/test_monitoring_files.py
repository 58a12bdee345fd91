"""The files for Prometheus and Grafana in deploy/ name metrics that the service has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fieldfare.gateway.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def labels_by_metric() -> dict[str, set[str]]:
    """Return the names under which Prometheus stores the metrics, with their labels."""
    metrics = Metrics()
    described = [
        *metrics.collection._collector_to_names,
        *metrics.backlogs.collect(),
        *metrics.state.processes.collect(),
    ]
    labels = {
        each._name if hasattr(each, "_name") else each.name: set(each._labelnames)
        for each in described
        if hasattr(each, "_labelnames")
    }
    return {
        family.name + suffix: labels[family.name] | ({"le"} if suffix == "_bucket" else set())
        for family in metrics.collection.collect()
        for suffix in SUFFIXES[family.type]
    }


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "fieldfare.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in rules()), *targets]


def test_expressions_name_metrics_and_labels_of_the_service() -> None:
    known = labels_by_metric()
    for expression in expressions():
        names = re.findall(r"\bfieldfare_\w+", expression)
        assert names or expression.startswith("up{"), expression
        assert set(names) <= known.keys(), expression
        grouped = {
            label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")
        }
        assert grouped <= {"instance"}.union(*(known[name] for name in names)), expression
        assert expression.count("(") == expression.count(")")


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 8
    known = labels_by_metric()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert summary.endswith(".") and description.endswith("."), rule["alert"]
        used = set(re.findall(r"\$labels\.(\w+)", summary))
        metrics = re.findall(r"\bfieldfare_\w+", rule["expr"])
        assert used <= {"instance"}.union(*(known[name] for name in metrics)), rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True)


def test_panels_fill_the_dashboard_without_overlap() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "fieldfare.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
