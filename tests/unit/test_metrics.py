# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: names, labels and present figures."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from nvshared.cli.main import VERBS
from nvshared.faults import KINDS
from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.report.families import CLIENT, families
from nvshared.report.metrics import Scrapes
from nvshared.scheduler.actions import ClientState
from nvshared.scheduler.events import Memory, MemoryChanged, PinReason
from nvshared.scheduler.snapshot import CardState
from nvshared.scheduler.tenants import Usage
from nvshared.sharing import gpu as gpu_module
from nvshared.sharing.gpu import Client, PodNames
from nvshared.sharing.manager import Manager
from nvshared.sharing.moving import PARKED, PARKING, RESTORING, SAVING
from nvshared.units import GIB, SECOND
from tests.unit.scripted import DEFAULTS, FACTS, Noted, Scripted, Time, joined, peer, script

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    script(monkeypatch)
    return Time()


def manager(time: Time) -> Manager:
    made = Manager(lambda: DEFAULTS, time.clock, time.timer)
    made.add(FACTS, Sample(40 * GIB, 0.97, 61, 412.4, ()), gather=False)
    return made


def a_client(made: Manager) -> Client:
    return joined(made.gpus[0], made.next_id(), Noted(), Memory(3 * GIB, 2 * GIB, GIB, 0, 0, GIB))


async def scraped(made: Manager) -> Mapping[str, list[tuple[dict[str, str], float]]]:
    """Samples of one scrape, by name."""
    return await read(Scrapes(made))


async def read(figures: Scrapes) -> Mapping[str, list[tuple[dict[str, str], float]]]:
    await figures.read()
    metrics: list[Metric] = await asyncio.to_thread(lambda: list(figures.collect()))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric in metrics:
        for sample in metric.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


async def test_metrics_keep_names_and_labels_of_earlier_versions_and_omit_unknown_figures(
        time: Time) -> None:
    made = manager(time)
    client = a_client(made)
    found = await scraped(made)
    card = {"gpu": "0", "uuid": FACTS.uuid}
    assert found["nvshare_gpu_utilization_ratio"] == [(card, 0.97)]
    assert found["nvshare_gpu_memory_used_bytes"] == [(card, 40 * GIB)]
    assert found["nvshare_scheduler_running_clients"] == [(card, 0)]
    assert found["nvshare_scheduler_quantum_seconds"] == [(card, 30)]
    assert found["nvshare_handover_seconds_total"] == [(card, 0)]
    assert found["nvshare_gpu_temperature_celsius"] == [(card, 61)]
    assert found["nvshare_gpu_power_watts"] == [(card, 412.4)]
    made.gpus[0].sample = Sample()
    assert not {"nvshare_gpu_temperature_celsius", "nvshare_gpu_power_watts",
                "nvshare_gpu_utilization_ratio"} & (await scraped(made)).keys()
    user = client.user
    labels_of_client = {
        **card, "client": str(client.id), "pid": str(client.peer.pid), "name": "python",
        "user": user, "tenant": f"user:{user}", "namespace": "", "pod": "", "container": ""}
    assert found["nvshare_client_managed_allocated_bytes"] == [(labels_of_client, 3 * GIB)]
    ((labels, value),) = found["nvshare_client_info"]
    assert labels == {**labels_of_client, "uid": str(client.peer.uid)}
    assert value == 1
    assert "state" not in labels        # a state label would make new series
    assert found["nvshare_client_state"] == [({**labels_of_client, "state": "idle"}, 1)]


async def test_metrics_label_pods_by_namespace_and_name(time: Time) -> None:
    made = manager(time)
    pod = Tenant(Kind.POD, "7d1c", container="9f1c")
    process = peer(4711)
    joined(made.gpus[0], 1, process=replace(process, tenants=(*process.tenants, pod)))

    async def labels() -> list[str]:
        ((found, _),) = (await scraped(made))["nvshare_client_held_seconds_total"]
        return [found[name] for name in ("tenant", "namespace", "pod", "container", "name")]

    assert await labels() == ["pod:7d1c", "", "", "", "python"]
    made.tenancy.name({"pod:7d1c": PodNames("lab", "train", {})})
    assert await labels() == ["pod:lab/train", "lab", "train", "", "python"]
    made.tenancy.name({"pod:7d1c": PodNames("lab", "train", {"9f1c": "main"})})
    assert await labels() == ["pod:lab/train", "lab", "train", "main", "python"]


async def test_scrape_samples_the_cards_before_the_reply(time: Time) -> None:
    made = manager(time)
    (gpu,) = made.gpus

    def take_sample(looked: Callable[[], None]) -> None:
        gpu.sample = replace(gpu.sample, utilisation=0.25)
        looked()

    gpu.request_sample = take_sample
    assert (await scraped(made))["nvshare_gpu_utilization_ratio"][0][1] == 0.25


def test_monitoring_page_lists_every_metric() -> None:
    """The page lists no other metrics; on a difference pytest shows the correct table."""
    assert f"A program's labels are {', '.join(f'`{one}`' for one in CLIENT)}." in PAGE.read_text()
    expected = ["| name | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for name, one in families().items():
        labels = ", ".join(one._labelnames).replace(", ".join(CLIENT), "a program's")
        expected.append(f"| `{name}` | {one.type} | {labels} | {one.documentation} |")
    lines = PAGE.read_text().splitlines()
    start = lines.index(expected[0])
    assert lines[start:start + len(expected)] == expected
    assert not lines[start + len(expected)].startswith("|")


async def test_metrics_have_a_series_for_the_state_of_a_gpu_and_for_the_pin_reason_of_a_client(
        time: Time) -> None:
    made = manager(time)
    client = a_client(made)
    found = await scraped(made)
    assert [labels["state"] for labels, _ in found["nvshare_gpu_state"]] == ["idle"]
    assert "nvshare_client_pin_reason" not in found
    stays = replace(client.memory, pin_reason=PinReason.UNSEEN)
    made.gpus[0].tell(MemoryChanged(client.id, stays, wants=False))
    ((labels, value),) = (await scraped(made))["nvshare_client_pin_reason"]
    assert (labels["client"], labels["reason"], value) == (str(client.id), "unseen", 1)


async def test_metrics_drop_ended_clients_and_keep_totals_of_tenants(time: Time) -> None:
    made = manager(time)
    figures = Scrapes(made)
    gpu = made.gpus[0]
    def a_program() -> Client:
        client = a_client(made)
        Scripted.latest.used[client.id] = Usage(gpu=4 * SECOND, held=5 * SECOND, waited=3 * SECOND,
                                                turns=2, handover=SECOND, bytes_in=GIB,
                                                bytes_out=2 * GIB)
        return client

    async def tenant_totals() -> dict[str, float]:
        time.now += SECOND
        figures._read_at = float("-inf")
        found = await read(figures)
        assert len(found.get("nvshare_client_info", [])) == len(gpu.clients)
        return {name.removeprefix("nvshare_tenant_"): samples[0][1]
                for name, samples in found.items() if name.startswith("nvshare_tenant_")}

    first = a_program()
    one = {"gpu_seconds_total": 4, "held_seconds_total": 5, "waited_seconds_total": 3,
           "turns_total": 2, "handover_seconds_total": 1, "loaded_bytes_total": GIB,
           "evicted_bytes_total": 2 * GIB}
    two = {name: 2 * value for name, value in one.items()}
    assert await tenant_totals() == one
    gpu.leave(first)
    assert await tenant_totals() == one
    second = a_program()
    assert await tenant_totals() == two
    gpu.leave(second)
    gpu.leave(second)
    assert await tenant_totals() == two


def test_metrics_omit_the_oldest_tenants_without_programs_beyond_a_maximum(
        time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module, "GONE_KNOWN", 2)
    made = manager(time)
    gpu = made.gpus[0]
    stays = a_client(made)              # user 1000 still has this client
    for uid in (1000, 1001, 1002, 1003):
        gpu.leave(joined(gpu, made.next_id(), process=peer(uid=uid)))
    names = [str(stays.peer.tenant), *(str(peer(uid=uid).tenant) for uid in (1002, 1003))]
    assert sorted(gpu.usage_by_tenant()) == sorted(map(gpu.shown, names))


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


@pytest.mark.parametrize(("metric", "states"), [
    ("nvshare_client_state", {*ClientState, PARKING, PARKED, RESTORING, SAVING}),
    ("nvshare_gpu_state", {*CardState}),
])
def test_dashboard_shows_each_state_of_programs_and_gpus(metric: str, states: set[str]) -> None:
    (query,) = (one for one in queries() if metric in one)
    named = re.findall(r'state=~?"([^"]*)"', query)
    assert sorted("|".join(named).split("|")) == sorted(states)


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


def alert(id: str) -> str:
    """The name of a fault's alert: NvshareGPULost for gpu-lost."""
    return "Nvshare" + "".join(
        "GPU" if word == "gpu" else word.capitalize() for word in id.split("-"))


def test_each_fault_of_the_table_has_an_alert_with_its_severity_sentence_and_remedy() -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    scraped = {id: kind for id, kind in KINDS.items() if id != "metrics-unserved"}
    for id, kind in scraped.items():
        rule = by_name[alert(id)]
        assert rule["expr"] == f'nvshare_fault{{fault="{id}"}} == 1'
        assert rule["labels"] == {"severity": kind.severity}
        said = {name: text.replace("{{ $labels.gpu }}", "{gpu}").lower()
                for name, text in rule["annotations"].items()}
        assert said["summary"].endswith(kind.summary.lower())
        assert said["description"].startswith(kind.remedy.lower())
    assert by_name.keys() >= {alert(id) for id in scraped}


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
