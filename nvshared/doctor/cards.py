# SPDX-License-Identifier: Apache-2.0
"""Checks the driver, the cards by NVML, and which programs share their card or do not."""

import ctypes
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nvshared import library
from nvshared.control.snapshot import Snapshot
from nvshared.doctor.finding import Finding, fault, note, ok, warning
from nvshared.errors import NvshareError
from nvshared.machine import cgroup, host
from nvshared.machine.cgroup import Group, Limit
from nvshared.machine.nvml import NVML, Facts, Mode, Sample
from nvshared.machine.peer import shown
from nvshared.names import TRIAL_FOLDER
from nvshared.quantity import rounded, sized


class InspectedGPU(NamedTuple):
    """NVML's data of one card."""

    facts: Facts
    mode: Mode
    sample: Sample | None               # None: NVML returned an error
    error: str = ""


class Seen(NamedTuple):
    """NVML's data of the driver and all cards, or the error."""

    driver: str = ""                    # version
    cards: tuple[InspectedGPU, ...] = ()
    error: NvshareError | None = None
    trial: str = ""                     # during a trial: variables by which programs find its GPUs


def look() -> Seen:
    """Reads all from NVML; during a trial from the simulated NVML, as the service does."""
    trial = ""
    try:
        if Path(TRIAL_FOLDER).is_dir():
            trial = _find_trial()
        nvml = NVML()
        driver = nvml.driver()
        facts = nvml.find()
    except NvshareError as error:
        return Seen(error=error, trial=trial)
    return Seen(driver, tuple(_look(nvml, one) for one in facts), trial=trial)


def _find_trial() -> str:
    """Loads the simulated NVML, which this process then uses instead of the driver's NVML.

    Raises NvshareError if it is not installed.
    """
    folder = library.simulator()
    os.environ["NVSHARE_SIM_DIR"] = TRIAL_FOLDER
    ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))
    return f"LD_LIBRARY_PATH={folder} NVSHARE_SIM_DIR={TRIAL_FOLDER}"


def findings(seen: Seen) -> Iterator[Finding]:
    """Findings about a trial, the driver, and each card."""
    if seen.trial:
        yield note(
            "trial", "the service shares simulated GPUs, and no real one",
            f"programs find them with: export {seen.trial}; end it with: nvsharectl trial stop",
        )
    if seen.error is not None:
        yield fault("driver", seen.error.message, seen.error.hint or "see: nvidia-smi")
        return
    yield ok("driver", f"version {seen.driver}")
    for card in seen.cards:
        yield _card(card)


def neighbours(seen: Seen, snapshot: Snapshot | None, mode: str) -> Iterator[Finding]:
    """Which cards can swap to another card's memory, and why the others cannot.

    `mode`: the setting `neighbour`.
    """
    cards, topic = [card.facts for card in seen.cards], "neighbour"
    linked = [facts for facts in cards if facts.linked]
    alone = ", ".join(str(facts.index) for facts in cards if not facts.linked)
    shared = len(snapshot.gpus) if snapshot is not None else 0
    if shared > len(cards) > 0:
        yield note(
            topic, f"this container sees {len(cards)} of {shared} GPUs: its programs cannot "
            "use the memory of other GPUs", "give it the GPUs that are linked to its own GPUs")
    elif mode == "off" and len(cards) > 1:
        yield note(topic, "evicted memory of each GPU goes to host memory: neighbour = off, or "
                   "tiers lacks neighbour")
    elif len(cards) == 1:
        only = cards[0].index
        yield ok(topic, f"evicted memory of GPU {only} goes to host memory: there is no other GPU")
    elif cards:
        if linked:
            numbers = ", ".join(str(facts.index) for facts in linked)
            yield ok(
                topic, f"over NVLink, evicted memory of GPU {numbers} can go to other GPUs")
        if alone:
            bus = any(facts.reached for facts in cards if not facts.linked)
            yield note(
                topic, f"evicted memory of GPU {alone} goes to host memory: NVLink links it to no "
                "other GPU",
                "neighbour = on uses GPUs that are reached over PCIe, too" if bus else "")
        yield from _lend_nothing(seen, snapshot if mode == "auto" else None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and len(visible.split(",")) < len(cards):
        yield note(
            topic, f"with CUDA_VISIBLE_DEVICES={visible}, programs use these GPUs' memory alone",
            "append the GPUs that are linked to the programs' own")


def _lend_nothing(seen: Seen, snapshot: Snapshot | None) -> Iterator[Finding]:
    ours = {client.pid for client in snapshot.clients} if snapshot is not None else set()
    for card in seen.cards if snapshot is not None else ():
        processes = card.sample.processes if card.sample is not None else None
        others = [one.pid for one in processes or () if one.pid not in {*ours, os.getpid()}]
        if card.facts.linked and (others or processes is None):
            why = f"{shown(others[0])} does not share it" if others else (
                "NVML does not list the processes that use it")
            yield note(
                "neighbour", f"GPU {card.facts.index} lends no memory to other GPUs: {why}",
                "neighbour = on lends its memory nevertheless")


def _look(nvml: NVML, facts: Facts) -> InspectedGPU:
    try:
        return InspectedGPU(facts, nvml.mode(facts.uuid), nvml.sample(facts.uuid))
    except NvshareError as error:
        return InspectedGPU(facts, Mode(), None, error.message)


def _card(card: InspectedGPU) -> Finding:
    facts = card.facts
    topic = f"gpu {facts.index}"
    words = f"{facts.name}, {rounded(facts.memory_total)}, {facts.pci_bus_id}"
    if card.sample is None:
        return fault(topic, f"{words}, does not answer: {card.error}", "see: dmesg")
    if card.mode.exclusive:
        return fault(
            topic, f"{words}, lets one process use it at a time (compute mode)",
            f"allow several: nvidia-smi -i {facts.index} -c DEFAULT",
        )
    if card.mode.mig:
        return warning(
            topic, f"{words}, is divided (MIG), and nvshared shares whole cards",
            f"if no program needs MIG, disable it: nvidia-smi -i {facts.index} -mig 0",
        )
    if card.sample.memory_used is not None:
        words += f", {rounded(card.sample.memory_used)} used"
    return ok(topic, words)


OURS = "/libnvshare.so"
OUTDATED = OURS + " (deleted)"


def programs(seen: Seen, snapshot: Snapshot | None) -> Iterator[Finding]:
    """Compares the processes that NVML lists with nvshared's clients."""
    clients = snapshot.clients if snapshot is not None else ()
    sharing = {(client.gpu, client.pid) for client in clients}
    if sharing:
        yield ok("clients", "1 program shares its GPU" if len(sharing) == 1 else
                 f"{len(sharing)} programs share theirs")
    for card in seen.cards:
        for process in card.sample.processes or () if card.sample is not None else ():
            if (card.facts.index, process.pid) not in sharing and process.pid != os.getpid():
                yield _unshared(
                    card.facts.index, process.pid, process.memory, heard=snapshot is not None)
    for pid in sorted({client.pid for client in clients}):
        if any(line.endswith(OUTDATED) for line in _mapped(pid) or ()):
            yield warning(
                "library", f"{shown(pid)} uses a libnvshare.so that has been replaced since",
                "restart the program to use the new library",
            )
    yield from _limited(seen, sorted({client.pid for client in clients}))


def _limited(seen: Seen, pids: Iterable[int]) -> Iterator[Finding]:
    """Programs whose cgroup's memory limit is below the size of the largest card."""
    card = max((card.facts.memory_total for card in seen.cards), default=0)
    inside: dict[Limit, list[int]] = {}
    limit_of = cache(Group.limit)       # read once, so that programs are grouped by equal limits
    for pid in pids:
        groups = cgroup.chain(host.process(pid, "cgroup"))
        limits = [limit for group in groups if (limit := limit_of(group)) is not None]
        if limits and (least := min(limits, key=lambda one: one.size)).size < card:
            inside.setdefault(least, []).append(pid)
    for limit, members in inside.items():
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        yield note(
            "memory limit", f"{shown(members[0])}{more}: {limit.file} is {sized(limit.size)}, of "
            f"which {rounded(limit.free)} are free, and the card has {rounded(card)}",
            "nvshared refuses GPU memory that could not be evicted within this limit: nvshared(8)",
        )


def _unshared(gpu: int, pid: int, memory: int | None, *, heard: bool) -> Finding:
    """`heard`: nvshared answered, and the process is not one of its clients."""
    size = "" if memory is None else f" with {rounded(memory)}"
    uses = f"{shown(pid)} uses GPU {gpu}{size}"
    mapped = _mapped(pid)
    loaded = any(line.endswith((OURS, OUTDATED)) for line in mapped or ())
    if not heard and (loaded or mapped is None):
        has = "has the library" if loaded else "cannot be inspected"
        return note(
            "unshared", f"{uses} and {has}; whether it shares the GPU is unknown, since "
            "nvshared does not answer on this bus",
        )
    if loaded:
        return warning(
            "unshared", f"{uses} without nvshared, although it has the library",
            "the program started while nvshared did not run, or was refused: restart it; "
            "journalctl -u nvshared shows the reason",
        )
    return warning(
        "unshared",
        f"{uses} without nvshared: other programs lack this memory, and the program takes no turns",
        "restart the program with: nvsharectl run -- PROGRAM",
    )


def _mapped(pid: int) -> list[str] | None:
    try:
        return host.kernel_text(Path(f"/proc/{pid}/maps")).split("\n")
    except OSError:
        return None                     # another user's process, or it has ended
