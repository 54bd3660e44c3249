# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alert rules use existing metrics, and packages install them.

tests/integration/test_prometheus.py loads them into Prometheus.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvshared.cli.main import VERBS
from nvshared.report.families import families

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
ALERTS = PACKAGING / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((PACKAGING / "grafana" / "nvshare.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
METRIC = re.compile(r"\bnvshare_\w+")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def known() -> set[str]:
    names = set(families())
    (histogram,) = (name for name, one in families().items() if one.type == "histogram")
    return names | {f"{histogram}_bucket", f"{histogram}_sum", f"{histogram}_count"}


def queries() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (str(variable["query"]) for variable in DASHBOARD["templating"]["list"])


def test_alerts_and_dashboard_name_only_existing_metrics() -> None:
    named = {name for query in queries() for name in METRIC.findall(query)}
    assert len(named) > 25
    assert not named - known()
    asked = {name for rule in rules() for name in METRIC.findall(rule["expr"])}
    assert not asked - known()


def test_each_alert_has_a_test_and_advice() -> None:
    tests = yaml.safe_load((ROOT / "tests" / "integration" / "alerts.yml").read_text())["tests"]
    assert [one["name"] for one in tests] == [rule["alert"] for rule in rules()]
    page = (ROOT / "docs" / "monitoring.md").read_text()
    verbs = {verb.name for verb in VERBS}
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert f"| `{rule['alert']}` |" in page
        said = rule["annotations"]["description"]
        assert set(re.findall(r"\bnvsharectl (?!\(|\))([a-z-]+)", said)) <= verbs


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make on this machine")
def test_packages_install_all_alerts_and_dashboards() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--file=packaging/install.mk", "install-system", "DESTDIR=/there"],
        cwd=ROOT, check=True, capture_output=True, text=True)
    commands = [line.split() for line in done.stdout.splitlines()]
    for folder in ("grafana", "prometheus"):
        (brought,) = (one for one in commands if f"/there/usr/share/nvshared/{folder}" in one)
        there = {str(path.relative_to(ROOT)) for path in (PACKAGING / folder).iterdir()}
        assert there <= set(brought)
    assert "\n/usr/share/nvshared\n" in (PACKAGING / "rpm" / "nvshared.spec").read_text()


def test_prometheus_operator_finds_the_daemon_of_the_overlay() -> None:
    overlay = PACKAGING / "kubernetes" / "overlays" / "nvshared-daemonset"
    parts = PACKAGING / "kubernetes" / "nvshared" / "daemon"
    daemons = yaml.safe_load((parts / "daemonset.yaml").read_text())
    (labels,) = yaml.safe_load((overlay / "kustomization.yaml").read_text())["labels"]
    containers = daemons["spec"]["template"]["spec"]["containers"]
    (port,) = [port for one in containers for port in one.get("ports", ())]
    assert f"\nmetrics = {port['containerPort']}\n" in (overlay / "nvshared.conf").read_text()
    text = (PACKAGING / "prometheus" / "kubernetes.yaml").read_text()
    hosts, pods = yaml.safe_load_all(text)
    assert {one["metadata"]["namespace"] for one in (hosts, pods, daemons)} == {"nvshare"}
    assert pods["spec"]["selector"]["matchLabels"].items() <= labels["pairs"].items()
    (endpoint,) = pods["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert f"$1:{port['containerPort']}" in [one.get("replacement") for one
                                            in hosts["spec"]["relabelings"]]
    assert endpoint["honorLabels"]
    assert hosts["spec"]["honorLabels"]
