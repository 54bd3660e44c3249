# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own promtool accepts the metrics, the alert rules and the dashboard's queries."""

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.integration import prometheus
from tests.integration.conftest import ROOT, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_start import free_port

PACKAGING = ROOT / "packaging"
ALERTS = PACKAGING / "prometheus" / "alerts.yml"
EXAMPLE = PACKAGING / "prometheus" / "prometheus.yml"
ALERT_TESTS = Path(__file__).with_name("alerts.yml")
INSTALLED = "/usr/share/nvshared/prometheus/alerts.yml"

# names of processes
HOSTILE = (b'"} 1\n# x', b"\\\"\\n\\\\", b"\xff\xed\xa0\x80\xe2\x80\xae", b'{a="b"}', b" ", b"\n")


@pytest.fixture
def promtool() -> str:
    """The path of promtool."""
    folder = prometheus.there()
    if folder is None:
        pytest.skip("there is no promtool on this machine; the package prometheus has it")
    return str(folder / "promtool")


def silent(command: list[str], said: str = "") -> str:
    """Output of a command, which must succeed."""
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_metrics_pass_promtool_for_any_program_name(site: Site, promtool: str) -> None:
    port = free_port()
    site.start("--metrics", str(port))
    name = Path("/proc/self/comm")
    ours = name.read_bytes().rstrip(b"\n")
    for hostile in HOSTILE:
        name.write_bytes(hostile)
        site.hook().hello()
    name.write_bytes(ours)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    assert text.count("\nnvshare_client_state{") == len(HOSTILE)
    assert silent([promtool, "check", "metrics"], text) == ""


def test_each_alert_fires_only_under_the_documented_condition(
    tmp_path: Path, promtool: str
) -> None:
    (tmp_path / "alerts-under-test.yml").write_text(ALERTS.read_text())
    tests = tmp_path / "test.yml"
    tests.write_text(ALERT_TESTS.read_text())
    silent([promtool, "test", "rules", str(tests)])
    (config := tmp_path / "prometheus.yml").write_text(
        EXAMPLE.read_text().replace(INSTALLED, str(ALERTS)))
    assert str(ALERTS) in config.read_text()
    said = silent([promtool, "check", "config", str(config)])
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    assert f"{len(group['rules'])} rules found" in said


DASHBOARD = json.loads((PACKAGING / "grafana" / "nvshare.json").read_text())
VARIABLES = DASHBOARD["templating"]["list"]


def filled(query: str) -> str:
    """The query that Grafana sends when no variable is chosen."""
    given = {variable["name"]: ".*" for variable in VARIABLES}
    given |= {"__rate_interval": "5s", "__range": "1m"}
    return re.sub(r"\$(\w+)", lambda name: given[name[1]], query)


def test_queries_of_the_dashboard_are_accepted_by_promtool(tmp_path: Path, promtool: str) -> None:
    queries = [filled(target["expr"])
               for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    queries += [re.sub(r"label_values\((.*), \w+\)", r"\1", filled(one["query"]["query"]))
                for one in VARIABLES[1:]]
    (file := tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{
        "name": "dashboard", "rules": [{"record": "a:query", "expr": one} for one in queries]}]}))
    silent([promtool, "check", "rules", "--lint=none", str(file)])
