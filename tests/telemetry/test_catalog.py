"""Whatever names a metric names one that exists: the reference, the dashboard, the alerts."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferd_server.telemetry import catalog
from inferd_server.telemetry.catalog import METRICS, Kind

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/inferd.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
LABELS = {metric.name: {*metric.labels, "instance", "job", "le"} for metric in METRICS}


def expressions() -> list[str]:
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"] if "definition" in each]
    return [*queries, *variables, *(rule["expr"] for rule in RULES)]


def named_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:inferd|gen_ai)_\w+", expression))


def test_metrics_are_named_by_the_conventions() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({sample for metric in METRICS for sample in catalog.samples(metric)}) == sum(
        len(catalog.samples(metric)) for metric in METRICS
    )
    for metric in METRICS:
        assert re.fullmatch(r"(inferd|gen_ai_server)_[a-z_]+", metric.name)
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_reference_in_the_docs_is_the_catalog() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "inferd_server.telemetry.catalog"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == catalog.reference()
    assert printed in (ROOT / "docs/metrics.md").read_text()


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_in_the_dashboard_and_the_alerts_exists(expression: str) -> None:
    known = {sample for metric in METRICS for sample in catalog.samples(metric)}
    assert named_in(expression) <= known
    assert named_in(expression) or expression.startswith("up{")


@pytest.mark.parametrize("expression", expressions())
def test_labels_are_those_of_the_metric(expression: str) -> None:
    for name, selector in re.findall(r"\b((?:inferd|gen_ai)_\w+)\{([^}]*)\}", expression):
        metric = next(metric.name for metric in METRICS if name in catalog.samples(metric))
        assert set(re.findall(r"(\w+)(?:=~|!=|!~|=)", selector)) <= LABELS[metric]


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for expression in expressions() for name in named_in(expression)}
    absent = {metric.name for metric in METRICS if not shown & set(catalog.samples(metric))}
    assert absent == {"inferd_model_loads_abandoned_total", "inferd_refusals_total"}


def test_alert_rules_are_whole() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
        text = rule["expr"]
        assert text.count("(") == text.count(")")
        assert not rule.keys() - {"alert", "expr", "for", "labels", "annotations"}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
