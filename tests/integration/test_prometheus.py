# SPDX-License-Identifier: Apache-2.0
"""The metrics, the alert rules and the dashboard, as Prometheus itself sees them."""

import json
import os
import pwd
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvshared.units import MIB
from tests.integration import prometheus
from tests.integration.conftest import ROOT, Site, kill, public_build, wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.prometheus import NoPrometheus
from tests.integration.test_kills import finish, program
from tests.integration.test_start import free_port

PACKAGING = ROOT / "packaging"
ALERTS = PACKAGING / "prometheus" / "alerts.yml"
EXAMPLE = PACKAGING / "prometheus" / "prometheus.yml"
ALERT_TESTS = Path(__file__).with_name("alerts.yml")
INSTALLED = "/usr/share/nvshared/prometheus/alerts.yml"
NOBODY_UID = 65534                          # a user that every system has
TENANT = f"user:{pwd.getpwuid(NOBODY_UID if os.geteuid() == 0 else os.getuid()).pw_name}"

# Names of processes.
HOSTILE = (b'"} 1\n# x', b"\\\"\\n\\\\", b"\xff\xed\xa0\x80\xe2\x80\xae", b'{a="b"}', b" ", b"\n")


@pytest.fixture
def promtool() -> str:
    """The path of promtool, which is not fetched for the short tests."""
    folder = prometheus.there()
    if folder is None:
        pytest.skip("there is no promtool on this machine; make test-long fetches it")
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
    assert f"{len(rules())} rules found" in said


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


class Prometheus:
    """A server that scrapes one daemon as fast as it can, and evaluates our rules."""

    def __init__(self, binary: Path, folder: Path, scraped: int) -> None:
        self.port = free_port()
        config = yaml.safe_load(EXAMPLE.read_text())
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        config["rule_files"] = [str(ALERTS)]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{scraped}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (folder / "prometheus.log").open("w") as log:
            self.process = subprocess.Popen(
                [binary, f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{self.port}"],
                cwd=folder, stderr=log)

    def ask(self, path: str, **arguments: str) -> Any:
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def values(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def ready(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.ask("query", query="1") is not None
        except OSError:
            return False


@pytest.fixture
def server(public_site: Site, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus server that scrapes a daemon with an oversubscribed card."""
    try:
        folder = prometheus.fetched()
    except NoPrometheus as why:
        pytest.skip(str(why))
    port = free_port()
    site = public_site
    (site.folder / "nvshared.conf").write_text(
        f"[gpu]\nreserve = 0\ncontext-reserve = 0\n[tenant {TENANT}]\ncompute-limit = 40\n")
    site.start("--tq", "200ms", "--capacity", "60MiB", "--metrics", str(port))
    made = Prometheus(folder / "prometheus", tmp_path, port)
    wait_until(made.ready)
    yield made
    kill(made.process)
    print((tmp_path / "prometheus.log").read_text())


def another_users(site: Site) -> "subprocess.Popen[str]":
    """A program of the tenant that has a memory limit."""
    user_options: dict[str, Any] = {}
    if os.geteuid() == 0:
        user_options = {"user": NOBODY_UID, "group": NOBODY_UID, "extra_groups": []}
    build = public_build(site)
    return site.program(
        [build / "nvshare-workload", "--memory", 24 * MIB, "--chunk", 2 * MIB, "--until-told",
         "--kernel-us", 2000],
        {"LD_LIBRARY_PATH": str(build / "simulator"), "LD_PRELOAD": str(build / "libnvshare.so")},
        **user_options)


DASHBOARD = json.loads((PACKAGING / "grafana" / "nvshare.json").read_text())
VARIABLES = DASHBOARD["templating"]["list"]


def filled(query: str) -> str:
    """The query that Grafana sends when no variable is chosen."""
    given = {variable["name"]: ".*" for variable in VARIABLES}
    given |= {"__rate_interval": "5s", "__range": "1m"}
    return re.sub(r"\$(\w+)", lambda name: given[name[1]], query)


def asked() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (filled(target["expr"]) for target in panel.get("targets", ()))


@pytest.mark.long
def test_prometheus_answers_the_dashboard_and_the_alerts(
    public_site: Site, server: Prometheus
) -> None:
    """Programs of which two fit: they swap, one waits, and one is of a tenant with a limit."""
    programs = [program(public_site, 1, None), program(public_site, 2, None),
                another_users(public_site)]

    def data(query: str) -> list[dict[str, Any]]:
        """Waits for values of the query: a late scrape ends all series for a while."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = server.values(query)
            return any(one["value"][1] != "NaN" for one in found)

        wait_until(there)
        return found

    for busy in (
        "sum(nvshare_turns_total) > 20", "count(nvshare_client_info) == 3",
        "max_over_time(nvshare_scheduler_waiting_clients[1m]) > 0"):
        data(busy)
    for query in asked():
        data(query)
    for variable in VARIABLES[1:]:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", filled(variable["query"]["query"]))
        assert found is not None
        assert server.ask(f"label/{found[2]}/values", **{"match[]": found[1]})
    limited = f'nvshare_tenant_held_seconds_total{{gpu="0", tenant="{TENANT}"}}'
    ((_, held),) = (one["value"] for one in data(limited))
    for rule in rules():
        server.values(rule["expr"])
    wait_until(lambda: [
        (rule["name"], rule["health"]) for group in server.ask("rules")["groups"]
        for rule in group["rules"]
    ] == [(rule["alert"], "ok") for rule in rules()])
    finish(programs)
    ((_, after),) = (one["value"] for one in data(f"{limited} unless on () nvshare_client_info"))
    assert float(after) >= float(held) > 0
