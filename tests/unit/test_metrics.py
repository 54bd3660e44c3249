# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told: names, labels, and figures as of now."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from nvshared.machine.nvml import Sample
from nvshared.machine.tenant import Kind, Tenant
from nvshared.report.metrics import Figures
from nvshared.scheduler.events import Memory, MemoryChanged
from nvshared.sharing.gpu import Client
from nvshared.sharing.manager import Manager
from nvshared.sharing.pods import Pod
from nvshared.units import GIB, SECOND
from tests.unit.scripted import DEFAULTS, FACTS, Noted, Scripted, Time, joined, peer, script

MANUAL = Path(__file__).parents[2] / "packaging" / "man" / "nvshared.8.in"


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
    """Samples by name, as a thread of the HTTP server gets them."""
    figures = Figures(made)
    metrics: list[Metric] = await asyncio.to_thread(lambda: list(figures.collect()))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for metric in metrics:
        for sample in metric.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


async def test_the_predecessors_names(time: Time) -> None:
    made = manager(time)
    client = a_client(made)
    found = await scraped(made)
    card = {"gpu": "0", "uuid": FACTS.uuid}
    assert found["nvshare_gpu_utilization_ratio"] == [(card, 0.97)]
    assert found["nvshare_gpu_memory_used_bytes"] == [(card, 40 * GIB)]
    assert found["nvshare_scheduler_running_clients"] == [(card, 0)]
    assert found["nvshare_scheduler_quantum_seconds"] == [(card, 30)]
    assert found["nvshare_handover_seconds_total"] == [(card, 0)]
    user = client.peer.user
    whose = {
        **card, "client": str(client.id), "pid": str(client.peer.pid), "name": "python",
        "user": user, "tenant": f"user:{user}", "namespace": "", "pod": "", "container": "",
    }
    assert found["nvshare_client_managed_allocated_bytes"] == [(whose, 3 * GIB)]
    ((labels, value),) = found["nvshare_client_info"]
    assert labels == {**whose, "uid": str(client.peer.uid)}
    assert value == 1
    assert "state" not in labels        # each hand-over would make it another series
    assert found["nvshare_client_state"] == [({**whose, "state": "idle"}, 1)]


async def test_pods_are_told_apart_by_their_names(time: Time) -> None:
    made = manager(time)
    pod = Tenant(Kind.POD, "7d1c", container="9f1c")
    somebody = peer(4711)
    client = Client(
        1, made.gpus[0], replace(somebody, tenants=(*somebody.tenants, pod)), Noted())
    made.gpus[0].join(client, Memory(), running=False, wants=False, commit=0)

    async def labels() -> list[str]:
        ((found, _),) = (await scraped(made))["nvshare_client_held_seconds_total"]
        return [found[name] for name in ("tenant", "namespace", "pod", "container", "name")]

    assert await labels() == ["pod:7d1c", "", "", "", "python"]
    made.tenancy.name({"pod:7d1c": Pod("lab", "train", {})})
    assert await labels() == ["pod:lab/train", "lab", "train", "", "python"]
    made.tenancy.name({"pod:7d1c": Pod("lab", "train", {"9f1c": "main"})})
    assert await labels() == ["pod:lab/train", "lab", "train", "main", "python"]


async def test_a_scrape_has_the_cards_sampled_first(time: Time) -> None:
    made = manager(time)
    (gpu,) = made.gpus

    def look(looked: Callable[[], None]) -> None:
        gpu.sample = replace(gpu.sample, utilisation=0.25)
        looked()

    gpu.look = look
    assert (await scraped(made))["nvshare_gpu_utilization_ratio"][0][1] == 0.25


async def test_the_manual_names_every_metric(time: Time) -> None:
    made = manager(time)
    a_client(made)
    page = MANUAL.read_text().replace("\\-", "-")
    named = set(re.findall(r"^\.B (nvshare_\w+)$", page, re.MULTILINE))
    assert named == {name for name in await scraped(made) if not name.endswith("_created")}


async def test_times_go_on_while_nothing_happens(time: Time) -> None:
    made = manager(time)
    holder, waiter = a_client(made), a_client(made)
    scheduler = made.gpus[0].scheduler
    assert isinstance(scheduler, Scripted)
    scheduler.holders, scheduler.queue = (holder.id,), (waiter.id,)
    made.gpus[0].tell(MemoryChanged(waiter.id, waiter.memory, wants=True))
    time.now += 3600 * SECOND
    found = await scraped(made)
    assert [value for _, value in found["nvshare_client_held_seconds_total"]] == [3600, 0]
    assert [value for _, value in found["nvshare_client_waited_seconds_total"]] == [0, 3600]
