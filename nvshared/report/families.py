# SPDX-License-Identifier: Apache-2.0
"""The Prometheus metrics: some under the names of nvshared's predecessors, others in base units.

`read_metrics` reads in the event loop, `Samples.family` makes metrics in another thread. The manual
and docs/metrics.md take the help texts from here."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from nvshared import __version__
from nvshared.faults import KINDS, Faults
from nvshared.scheduler.events import Memory
from nvshared.scheduler.tenants import Counters, Usage
from nvshared.sharing.dispatcher import DECISION_BOUNDS
from nvshared.sharing.gpu import GPU, Client
from nvshared.tiers import TIERS
from nvshared.units import SECOND

CARD = ("gpu", "uuid")
CLIENT = (*CARD, "client", "pid", "user", "tenant", "namespace", "pod", "container", "name")
TENANT = (*CARD, "tenant")
FAULT = ("fault", "severity", *CARD)

Source = TypeVar("Source")
Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
# For each metric: its name, its help text, and a function that returns its value; None: no sample.
# The functions of metrics named _seconds return microseconds.
Table = list[tuple[str, str, Callable[[Source], float | None]]]
# For metrics of the constant value 1: the function returns values of labels; their names follow.
InfoTable = list[tuple[str, str, Callable[[Source], tuple[str, ...] | None], tuple[str, ...]]]


class Samples(NamedTuple):
    kind: type[Family]
    name: str
    help_text: str
    labels: Sequence[str]
    samples: list[tuple[Any, ...]]      # arguments of add_metric() of `kind`: labels and value

    def family(self) -> Family:
        """The metric; may be made in any thread."""
        made = self.kind(self.name, self.help_text, labels=self.labels)
        for sample in self.samples:
            made.add_metric(*sample)
        return made


def families() -> dict[str, Family]:
    metrics = [one.family() for one in read_metrics((), ())]
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in metrics}


def read_metrics(
    gpus: Iterable[GPU], clients: Iterable[Client], faults: Faults | None = None
) -> list[Samples]:
    """`faults`: of nvshared as a whole."""
    cards = [(_card(gpu), gpu) for gpu in gpus]
    programs = [(_client(client), client) for client in clients]
    used = [(labels, client.usage) for labels, client in programs]
    memories = [(labels, client.memory) for labels, client in programs]
    bounds = [*(str(bound / SECOND) for bound in DECISION_BOUNDS), "+Inf"]
    counters = [(labels, gpu.snapshot().counters) for labels, gpu in cards]
    tenants = [((*labels, name), usage) for labels, gpu in cards
               for name, usage in gpu.usage_by_tenant().items()]
    return [
        *_read(GaugeMetricFamily, "nvshare_", (), BUILD_INFO, [((), __version__)]),
        Samples(
            GaugeMetricFamily, "nvshare_fault",
            "1 while there is this fault, of a GPU or of nvshared as a whole; else 0", FAULT,
            [one for labels, gpu in cards for one in _faults(gpu.faults, labels)]
            + ([] if faults is None else _faults(faults, ()))),
        *_read(GaugeMetricFamily, "nvshare_", CARD, CARD_INFO, cards),
        *_read(GaugeMetricFamily, "nvshare_", CARD, CARD_GAUGES, cards),
        *_read(CounterMetricFamily, "nvshare_", CARD, CARD_COUNTERS, counters),
        Samples(
            HistogramMetricFamily, "nvshare_scheduler_decision_seconds",
            "How long the scheduler took to decide on an event", CARD, [
                (labels, list(zip(bounds, accumulate(gpu.decisions), strict=True)),
                 gpu.decision_time / SECOND)
                for labels, gpu in cards]),
        *_read(GaugeMetricFamily, "nvshare_client_", CLIENT, CLIENT_INFO, programs),
        *_read(GaugeMetricFamily, "nvshare_client_", CLIENT, CLIENT_GAUGES, memories),
        *_read(CounterMetricFamily, "nvshare_client_", CLIENT, CLIENT_COUNTERS, used),
        *_read(CounterMetricFamily, "nvshare_tenant_", TENANT, TENANT_COUNTERS, tenants)]


BUILD_INFO: InfoTable[str] = [
    ("build_info", "1; the label says which version of nvshared this is",
     lambda version: (version,), ("version",)),
]
CARD_INFO: InfoTable[GPU] = [
    ("gpu_info", "1 for each GPU; its labels are its model and PCI address",
     lambda gpu: (gpu.facts.name, gpu.facts.pci_bus_id), ("model", "pci")),
    ("gpu_state", "1 for each GPU; the label state has the GPU's state",
     lambda gpu: (gpu.state,), ("state",)),
]
CARD_GAUGES: Table[GPU] = [
    ("gpu_utilization_ratio", "Share of the time in which a kernel ran, 0 to 1, as NVML says",
     lambda gpu: gpu.sample.utilisation),
    ("gpu_temperature_celsius", "Temperature of the GPU, as NVML says",
     lambda gpu: gpu.sample.temperature),
    ("gpu_power_watts", "Power that the card draws, as NVML says", lambda gpu: gpu.sample.power),
    ("gpu_memory_total_bytes", "Memory that the GPU has", lambda gpu: gpu.facts.memory_total),
    ("gpu_memory_used_bytes", "Memory of the GPU in use, by processes and driver, as NVML says",
     lambda gpu: gpu.sample.memory_used),
    ("gpu_memory_outside_bytes", "Memory of the GPU in use, but not by the programs that share it",
     lambda gpu: gpu.capacity.outside),
    ("gpu_capacity_bytes", "Memory that the daemon can hand out", lambda gpu: gpu.capacity.bytes),
    *(gauge for tier in TIERS for gauge in tier.of_card()),
    ("scheduler_running_clients", "Programs that may use the GPU now",
     lambda gpu: len(gpu.holders)),
    ("scheduler_waiting_clients", "Programs that wait for their turn",
     lambda gpu: gpu.snapshot().queue_length),
    ("scheduler_quantum_seconds", "How long a program may keep the GPU while others wait",
     lambda gpu: gpu.tq),
]
CARD_COUNTERS: Table[Counters] = [
    ("turns", "Turns that have begun", lambda counters: counters.turns),
    ("loaded_bytes", "Bytes brought to the GPU", lambda counters: counters.bytes_in),
    ("evicted_bytes", "Bytes evicted from the GPU", lambda counters: counters.bytes_out),
    ("handover_seconds", "Time from the end of each drain until the program that had waited ran",
     lambda counters: counters.handover),
    ("reopened", "Drains that did not end, so that the program's turn continued",
     lambda counters: counters.reopened),
    ("stuck", "Orders that a program did not answer for long", lambda counters: counters.stuck),
    ("failures", "Orders that failed for an error of the driver or a lack of memory",
     lambda counters: counters.failures),
    ("gave_way", "Times that a program was chosen and returned to the queue for lack of room",
     lambda counters: counters.gave_way),
]
CLIENT_INFO: InfoTable[Client] = [
    ("info", "1 for each program, with the number of its user",
     lambda client: (str(client.peer.uid),), ("uid",)),
    ("state", "1 for each program; the label state has the program's state",
     lambda client: (client.state,), ("state",)),
    ("pin_reason",
     "1 for each program with memory that cannot be evicted; the label reason has the reason",
     lambda client: (str(client.memory.pin_reason),) if client.memory.pin_reason else None,
     ("reason",)),
]
CLIENT_GAUGES: Table[Memory] = [
    ("managed_allocated_bytes", "Bytes that the program has allocated, on the GPU or not",
     lambda memory: memory.allocated),
    ("resident_bytes", "Bytes of allocated memory on the GPU", lambda memory: memory.resident),
    ("pinned_bytes", "Bytes on the GPU that cannot be evicted", lambda memory: memory.pinned),
    *((name.removeprefix("client_"), words, held) for name, words, held in (
        tier.of_client for tier in TIERS)),
]


def _usage(subject: str) -> Table[Usage]:
    return [
        ("gpu_seconds", f"GPU time of {subject}: divided among the programs that have work",
         lambda used: used.gpu),
        ("held_seconds", f"Time in which {subject} was allowed to use the GPU",
         lambda used: used.held),
        ("waited_seconds", f"Time in which {subject} waited for the GPU", lambda used: used.waited),
        ("turns", f"Turns of {subject} that have begun", lambda used: used.turns),
        ("handover_seconds", f"Time of hand-overs that loaded memory of {subject}",
         lambda used: used.handover),
        ("loaded_bytes", f"Bytes of {subject} brought to the GPU", lambda used: used.bytes_in),
        ("evicted_bytes", f"Bytes of {subject} evicted from the GPU", lambda used: used.bytes_out)]


CLIENT_COUNTERS = _usage("the program")[:3]     # only three: there may be thousands of clients
TENANT_COUNTERS = _usage("the tenant")


def _read(kind: type[Family], prefix: str, labels: Sequence[str],
          table: Table[Source] | InfoTable[Source],
          labelled: Sequence[tuple[Sequence[str], Source]]) -> Iterator[Samples]:
    """The metrics of a table. `labelled`: GPUs, clients or tenants, each with its labels."""
    for name, help_text, read, *more in table:
        values = [(its_labels, read(source)) for its_labels, source in labelled]
        unit = SECOND if name.endswith("_seconds") else 1
        yield Samples(kind, prefix + name, help_text, (*labels, *chain(*more)), [
            ((*its_labels, *value), 1) if isinstance(value, tuple) else (its_labels, value / unit)
            for its_labels, value in values if value is not None])


def _faults(faults: Faults, card: Sequence[str]) -> list[tuple[tuple[str, ...], int]]:
    """The samples of all faults of a GPU; `card` (): of nvshared as a whole."""
    return [((id, str(kind.severity), *(card or ("", ""))), int(bool(faults.detail(id))))
            for id, kind in KINDS.items() if kind.of_gpu is bool(card)]


def _card(gpu: GPU) -> tuple[str, ...]:
    return str(gpu.facts.index), gpu.facts.uuid


def _client(client: Client) -> tuple[str, ...]:
    peer, pod = client.peer, client.pod
    return (
        *_card(client.gpu), str(client.id), str(peer.pid), client.user, client.tenant,
        *(("", "") if pod is None else pod[:2]), client.container, peer.title or peer.name)
