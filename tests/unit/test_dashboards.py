"""The files for Grafana and Prometheus: they ask only for metrics that there are, in a form that those programs take."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.supervisor.metrics import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "holdfast.rules.yaml"
EXPORTED = {name: {*metric.labels} | ({"le"} if metric.histogram else set()) for metric in METRICS for name in metric.exported}
OF_PROMETHEUS = {"instance", "job"}


def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def faults(expression: str) -> list[str]:
    """What an expression asks for and nobody tells: metrics, and labels of a metric."""
    asked = re.findall(r"\b(holdfast_\w+)(?:\{([^}]*)\})?", expression)
    wrong = [name for name, _ in asked if name not in EXPORTED]
    for name, selector in asked:
        wrong += [
            f"{name}.{label}"
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
            if label not in EXPORTED.get(name, ())
        ]
    for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        known = set().union(*(EXPORTED.get(name, set()) for name, _ in asked))
        wrong += [label for label in labels.split(", ") if label not in known]
    return wrong


def test_a_wrong_expression_is_seen():
    assert faults('sum by (act) (holdfast_deeds_total{act="none"})') == []
    assert faults('holdfast_made_up{x="1"}') == ["holdfast_made_up", "holdfast_made_up.x"]
    assert faults('sum by (node) (holdfast_nodes{node="a"})') == ["holdfast_nodes.node", "node"]


def test_each_panel_asks_for_what_is_told():
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len(panels) >= 15
    for panel in panels:
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert "holdfast_" in target["expr"] and faults(target["expr"]) == [], panel["title"]
            assert target["datasource"]["uid"] == "${datasource}", "a dashboard must not know anybody's own data source"
    for variable in dashboard()["templating"]["list"][1:]:
        assert faults(variable["query"]["query"].replace("label_values(", "").split(",")[0]) == []
    assert faults(dashboard()["annotations"]["list"][0]["expr"]) == []


def test_panels_have_numbers_and_places_of_their_own():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_each_alert_asks_for_what_is_told_and_says_what_to_do():
    page = (DEPLOY.parent / "docs" / "how-to" / "metrics-and-alerts.md").read_text()
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) >= 12
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert "holdfast_" in rule["expr"] and faults(rule["expr"]) == [], rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert re.search(rf"\b{label}\b", rule["expr"]) or any(
                label in EXPORTED[name] for name in EXPORTED if name in rule["expr"]
            )
        assert f"`{rule['alert']}`" in page, "what to do about it stands there"


PROMTOOL = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not there: `make promtool` gets it on Debian")
def test_prometheus_takes_the_rules():
    checked = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
