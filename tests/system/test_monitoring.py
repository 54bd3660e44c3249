# SPDX-License-Identifier: Apache-2.0
"""The steps of docs/monitoring.md: the metrics port, then Prometheus with the package's files."""

import json

import pytest

from tests.integration import prometheus
from tests.integration.prometheus import PROGRAMS, NoPrometheus
from tests.system.card import Launch
from tests.system.container import Container

FILES = "/usr/share/nvshared"
FETCH = "import sys, urllib.request as web; print(web.urlopen(sys.argv[1]).read().decode())"


@pytest.fixture(scope="module")
def monitored(running: Container) -> Container:
    try:
        folder = prometheus.fetched()
    except NoPrometheus as why:
        pytest.skip(str(why))
    for name in PROGRAMS:
        running.copy(folder / name, f"/usr/local/bin/{name}")
    running.write("/etc/nvshare/nvshared.conf.d/metrics.conf", "[nvshared]\nmetrics = 9402\n")
    running.run("systemctl", "restart", "nvshared")
    return running


def fetched(container: Container, address: str) -> str:
    return container.output("python3", "-c", FETCH, address)    # without its last line's end


def test_sandboxed_daemon_exports_process_and_card_metrics(
    monitored: Container, launch: Launch
) -> None:
    """The unit hides much of /proc and /sys from the daemon."""
    program = launch(monitored, "alice", memory=32)
    program.await_memory()
    said = fetched(monitored, "http://localhost:9402/metrics")
    for name in (
        "process_start_time_seconds", "process_open_fds", "nvshare_gpu_temperature_celsius",
        "nvshare_gpu_power_watts", "nvshare_swap_budget_bytes"):
        assert f"\n{name}" in said
    assert 'tenant="user:alice"' in said
    assert monitored.run("promtool", "check", "metrics", given=f"{said}\n").stdout == ""
    json.loads(monitored.output("cat", f"{FILES}/grafana/nvshare.json"))
    monitored.run("promtool", "check", "config", f"{FILES}/prometheus/prometheus.yml")
    program.finish()
