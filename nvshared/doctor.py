# SPDX-License-Identifier: Apache-2.0
"""Finds faults that keep programs of this machine from sharing GPUs, with advice.

A missing daemon, bus or driver is a finding, and the other checks go on."""

import ctypes
import errno
import json
import os
import pwd
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nvshared import __version__, library
from nvshared.containers import cdi, names, unshared
from nvshared.control import Daemon, unit
from nvshared.control.snapshot import Snapshot
from nvshared.errors import NotPermitted, NotRunning, NvshareError
from nvshared.faults import Fault, Severity
from nvshared.machine import checkpoint, host, saving
from nvshared.machine.nvml import NVML, Facts, Sample
from nvshared.machine.peer import shown
from nvshared.names import DEFAULT_SOCKET, KUBELET_STATE, SOCKET_VARIABLE, TRIAL_FOLDER, WITHOUT_GPU
from nvshared.preload import switch, trial
from nvshared.preload.tree import Tree
from nvshared.quantity import rounded
from nvshared.settings.config import load


class Grade(StrEnum):
    OK = "ok"
    NOTE = "note"                       # information
    WARNING = "warning"                 # sharing works, with a disadvantage
    FAULT = "fault"                     # programs cannot share their GPU


class Finding(NamedTuple):
    """`words` is a sentence without its full stop; `advice` may be empty."""

    grade: Grade
    topic: str
    words: str
    advice: str = ""


ok, note, warning, fault = (partial(Finding, grade) for grade in Grade)


def examine(bus: str) -> list[Finding]:
    """Runs all checks; `bus`: the bus of nvshared. Never raises NvshareError."""
    inspection = inspect_gpus()
    answer = ask_daemon(bus)
    snapshot = None if isinstance(answer, NvshareError) else answer
    return [
        *installation_findings(),
        *daemon_findings(bus, answer),
        *driver_findings(inspection, snapshot),
        *program_findings(inspection, snapshot),
        *static_pod_findings(),
        *container_findings(),
        *host_memory_findings(inspection, snapshot)]


class InspectedGPU(NamedTuple):
    facts: Facts
    is_exclusive: bool                  # its compute mode is exclusive or prohibited
    sample: Sample | None               # None: NVML returned an error
    error: str = ""


class Inspection(NamedTuple):
    driver: str = ""                    # version of the driver
    cards: tuple[InspectedGPU, ...] = ()
    error: NvshareError | None = None
    trial: str = ""                     # environment for programs during a trial; "": no trial


def inspect_gpus() -> Inspection:
    """Queries NVML about all cards; during a trial (nvsharectl trial) the simulated NVML."""
    environment = ""
    try:
        if Path(TRIAL_FOLDER).is_dir():
            # The simulated NVML, once loaded, is used instead of the driver's.
            folder = library.simulator()
            os.environ["NVSHARE_SIM_DIR"] = TRIAL_FOLDER
            ctypes.CDLL(str(folder / "libnvidia-ml.so.1"))
            environment = f"LD_LIBRARY_PATH={folder} NVSHARE_SIM_DIR={TRIAL_FOLDER}"
        nvml = NVML()
        driver = nvml.driver()
        facts = nvml.find()
    except NvshareError as error:
        return Inspection(error=error, trial=environment)
    return Inspection(driver, tuple(_inspect(nvml, one) for one in facts), trial=environment)


def driver_findings(
    inspection: Inspection, snapshot: Snapshot | None = None
) -> Iterator[Finding]:
    if inspection.trial:
        yield note("trial", "the service shares simulated GPUs, and no real one", "programs find "
                   f"them with: export {inspection.trial}; end it with: nvsharectl trial stop")
    known = {gpu.uuid: gpu for gpu in snapshot.gpus} if snapshot is not None else {}
    if inspection.error is not None:
        yield fault("driver", inspection.error.message, inspection.error.hint or "see: nvidia-smi")
    else:
        yield ok("driver", f"version {inspection.driver}")
    for card in inspection.cards:
        gpu = known.get(card.facts.uuid)
        # gpu-unshared: program_findings() names each of these programs.
        own = [] if gpu is None else [one for one in gpu.faults if one.id != "gpu-unshared"]
        yield from fault_findings(f"gpu {card.facts.index}", own) if own else [_gpu_finding(card)]
    seen = {card.facts.uuid for card in inspection.cards}
    for uuid, gpu in known.items():     # lost, or this container lacks it
        if uuid not in seen:
            yield from fault_findings(f"gpu {gpu.index}", gpu.faults)


def fault_findings(topic: str, faults: Iterable[Fault]) -> Iterator[Finding]:
    """The faults that nvshared reports of itself or of a GPU; `topic` "": the fault's name."""
    for one in faults:
        grade = Grade.FAULT if one.severity == Severity.CRITICAL else Grade.WARNING
        yield Finding(grade, topic or one.id, one.words, one.remedy)


def _inspect(nvml: NVML, facts: Facts) -> InspectedGPU:
    try:
        return InspectedGPU(facts, nvml.is_exclusive(facts.uuid), nvml.sample(facts.uuid))
    except NvshareError as error:
        return InspectedGPU(facts, False, None, error.message)


def _gpu_finding(card: InspectedGPU) -> Finding:
    facts = card.facts
    topic = f"gpu {facts.index}"
    words = f"{facts.name}, {rounded(facts.memory_total)}, {facts.pci_bus_id}"
    if card.sample is None:
        return fault(topic, f"{words}, does not answer: {card.error}", "see: dmesg")
    if card.is_exclusive:
        return fault(topic, f"{words}, lets one process use it at a time (compute mode)",
                     f"allow several: nvidia-smi -i {facts.index} -c DEFAULT")
    if facts.mig:
        return warning(topic, f"{words}, is divided (MIG), and nvshared shares whole cards",
                       f"if no program needs MIG, disable it: nvidia-smi -i {facts.index} -mig 0")
    if card.sample.memory_used is not None:
        words += f", {rounded(card.sample.memory_used)} used"
    return ok(topic, words)


OURS = "/libnvshare.so"
OUTDATED = OURS + " (deleted)"


def program_findings(inspection: Inspection, snapshot: Snapshot | None) -> Iterator[Finding]:
    """Compares the processes that NVML lists with nvshared's clients."""
    clients = snapshot.clients if snapshot is not None else ()
    sharing = {(client.gpu, client.pid) for client in clients}
    if sharing:
        yield ok("clients", "1 program shares its GPU" if len(sharing) == 1 else
                 f"{len(sharing)} programs share theirs")
    for card in inspection.cards:
        for process in card.sample.processes or () if card.sample is not None else ():
            if (card.facts.index, process.pid) not in sharing and process.pid != os.getpid():
                yield _unshared_finding(
                    card.facts.index, process.pid, process.memory, answered=snapshot is not None)
    for pid in sorted({client.pid for client in clients}):
        if f"{OUTDATED}\n" in host.process(pid, "maps"):
            yield warning(
                "library", f"{shown(pid)} uses a libnvshare.so that has been replaced since",
                "restart the program to use the new library")


def _unshared_finding(gpu: int, pid: int, memory: int | None, *, answered: bool) -> Finding:
    """The finding about a process that is not a client; `answered`: nvshared was asked."""
    size = "" if memory is None else f" with {rounded(memory)}"
    uses = f"{shown(pid)} uses GPU {gpu}{size}"
    mapped = host.process(pid, "maps")  # "": another user's process, or it has ended
    loaded = f"{OURS}\n" in mapped or f"{OUTDATED}\n" in mapped
    if not answered and (loaded or not mapped):
        has = "has the library" if loaded else "cannot be inspected"
        return note("unshared", f"{uses} and {has}; whether it shares the GPU is unknown, since "
                    "nvshared does not answer on this bus")
    if loaded:
        return warning("unshared", f"{uses} without nvshared, although it has the library",
                       "the program started while nvshared did not run, or was refused: restart "
                       "it; journalctl -u nvshared shows the reason")
    if container := unshared.container(pid):
        why, advice = unshared.reason(pid)
        called = names.names_of([container]).get(container, "")
        named = f"container {called} ({container})" if called else container
        return warning("unshared", f"{uses} in the {named} without nvshared: {why}", advice)
    return warning("unshared", f"{uses} without nvshared: other programs lack this memory, and the "
                   "program takes no turns", "restart the program with: nvsharectl run -- PROGRAM")


Answer = Snapshot | NvshareError | None             # None: the bus is `none`


def ask_daemon(bus: str) -> Answer:
    if bus == "none":
        return None
    try:
        with Daemon(bus) as daemon:
            return daemon.snapshot()
    except NvshareError as error:
        return error


def _start_advice() -> str:
    return f"start it with: {_start() if unit.runs_here() else 'nvshared'}"


def _start() -> str:
    start = "systemctl enable --now nvshared"
    with suppress(NvshareError):
        return unit.start_again(start)
    return start


def daemon_findings(bus: str, answer: Answer) -> Iterator[Finding]:
    answered = isinstance(answer, Snapshot)
    units = []
    if unit.runs_here():
        units = [_unit_finding(name, answered=answered) for name in unit.UNITS]
        yield from units
        if answered and _is_active(unit.UNITS[1]):
            yield from filter(None, (_helper_finding(*one) for one in HELPERS))
    else:
        yield note("systemd", "systemd does not run here, so nvshared must be started by hand")
    path = os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
    found = _socket(path, answered=answered,
                    listens=answer.socket if isinstance(answer, Snapshot) else "")
    yield found
    if not isinstance(answer, Snapshot):
        yield _bus_finding(bus, answer, served=all(
            one.grade is not Grade.FAULT for one in (*units, found)))
        return
    yield ok("bus", f"nvshared answers on {_bus_words(bus)}")
    yield from fault_findings("", answer.faults)
    if answer.disk and not answer.disk_fault:
        yield ok("disk", f"swapped memory may go on to {answer.disk}")
    if (version := answer.version) == __version__:
        yield ok("version", f"nvshared and this command have version {version}")
    else:
        yield warning("version", f"nvshared has version {version}, this command has {__version__}",
                      "restart nvshared, programs go on meanwhile: nvshared --check && systemctl "
                      "restart nvshared")


BUS_POLICIES = "/usr/share/dbus-1/system.d"


def _bus_words(bus: str) -> str:
    return f"the {bus} bus" if bus in ("system", "session") else f"the bus at {bus}"


def _bus_finding(bus: str, error: NvshareError | None, *, served: bool) -> Finding:
    if error is None:
        return note("bus", "none, so nvsharectl cannot reach nvshared; programs need no bus")
    words, advice = error.message, error.hint or "is dbus running? --bus chooses another"
    if isinstance(error, NotPermitted):     # nvshared itself lets every user look
        words = f"{_bus_words(bus)} lets no user reach nvshared: its policy is missing or wrong"
        advice = (f"put com.nvshare.conf, which the package nvshared has, into {BUS_POLICIES}; "
                  "then: systemctl reload dbus")
    if isinstance(error, NotRunning):
        words = f"no process owns com.nvshare on {_bus_words(bus)}"
        advice = error.hint if not served else (
            "nvshared may be on another bus, which --bus or NVSHARE_BUS chooses, or on none")
    if not served:
        return fault("bus", words, advice)
    return warning("bus", f"{words}; programs need no bus, but nvsharectl does", advice)


def _unit_finding(name: str, *, answered: bool = False) -> Finding:
    """`answered`: nvshared answers, so that a unit which does not run keeps no program waiting."""
    wrong = warning if answered else fault
    try:
        state = unit.state(name)
    except NvshareError as error:
        return warning(
            name, f"systemd does not report its state ({error})", "see: systemctl status")
    match state.get("LoadState"):
        case "loaded":
            pass
        case "masked":
            return wrong(name, unit.failure(state), _start())
        case "not-found":
            return note(name, "systemd has no such unit",
                        "the packages install it; nvshared can also be started by hand")
        case other:
            return wrong(name, f"systemd cannot read it ({other})",
                         f"see what is wrong: systemd-analyze verify {name}")
    words = f"{state['ActiveState']} ({state['SubState']}), {state['UnitFileState']} at boot"
    if why := unit.failure(state):
        return wrong(name, f"{words}: {why}", f"see more: journalctl -u {name} -n 20; after the "
                     f"repair: {unit.start_again()}")
    if state["ActiveState"] not in ("active", "activating", "reloading"):
        by_hand = "nvshared was started without it: end that one (Ctrl-C, or kill), then: "
        return wrong(name, words, f"{by_hand}systemctl enable --now nvshared" if answered else
                     _start_advice())
    if state["UnitFileState"] == "disabled" and not Path(TRIAL_FOLDER).is_dir():
        return warning(name, words, "start it at boot, too: systemctl enable nvshared")
    return ok(name, words)


# Units that nvshared.service starts, their sockets, and the effect of their absence.
HELPERS = (
    ("nvshare-checkpoint.socket", checkpoint.SOCKET, "no program can be parked or moved"),
    ("nvshare-save.socket", saving.SOCKET, "no program can be saved"),
    ("nvshare-names.socket", names.SOCKET, "rules by containers' names do not hold"))


def _helper_finding(name: str, path: Path, effect: str) -> Finding | None:
    """The obstacle between the running nvshared of systemd and a helper; None: there is none."""
    commands = [f"systemctl restart {name}"]
    try:
        state = unit.state(name)
        words = unit.failure(state)
        if unmask := unit.unmask({name: state}):
            commands.insert(0, unmask)
        elif state.get("ActiveState") != "active":
            words = words or f"{state['ActiveState']} ({state['SubState']})"
        elif words := _unusable(path):
            # systemd would make the folder without the group nvshare, which nvshared is in.
            commands.insert(0, "systemd-tmpfiles --create nvshare.conf")
    except NvshareError as error:
        words, commands = f"systemd does not report its state ({error})", ["systemctl status"]
    return warning(name, f"{words}: {effect}", " && ".join(commands)) if words else None


def _unusable(path: Path) -> str:
    """Why the owner of a socket cannot use it; "": it can, or this user may not look."""
    try:
        group, folder = pwd.getpwuid(path.stat().st_uid).pw_gid, path.parent.stat()
    except PermissionError:
        return ""
    except (OSError, KeyError):
        return f"there is no {path}"
    may_enter = folder.st_gid == group and folder.st_mode & stat.S_IXGRP
    return "" if may_enter else f"nvshared may not enter {path.parent}"


def _is_active(name: str) -> bool:
    with suppress(NvshareError):
        return unit.runs_here() and unit.state(name).get("ActiveState") == "active"
    return False


# Of the socket alone, it restarts the service as well, but does not wait for it.
RESTART = f"systemctl restart {' '.join(unit.UNITS)}"


def _socket(path: str, *, answered: bool, listens: str = "") -> Finding:
    """`listens`: the socket of the nvshared that answered, as it says; "": unknown."""
    if (error := unit.unreachable(path)) is None:
        return _socket_modes(path) or ok("socket", f"programs find nvshared at {path}")
    unshared = "programs would use the GPU unshared"
    if path == DEFAULT_SOCKET and error.errno == errno.ENOENT and _is_active(unit.UNITS[0]):
        advice = f"it was removed: {RESTART}"
    elif not answered:
        advice = _start_advice() if path == DEFAULT_SOCKET else (
            f"start nvshared there: nvshared --socket {shlex.quote(path)}; or, for the machine's "
            f"own nvshared, unset {SOCKET_VARIABLE}")
    elif listens and listens != path:
        advice = f"nvshared listens at {listens}: export {SOCKET_VARIABLE}={shlex.quote(listens)}"
    else:
        restart = RESTART if unit.runs_here() or not listens else (
            "end nvshared and start it again; programs go on meanwhile")
        advice = f"nvshared runs, but its socket was removed: {restart}"
        if not listens:
            advice += f"; if it listens elsewhere, set {SOCKET_VARIABLE} to its socket"
    if error.errno == errno.EACCES and (modes := _socket_modes(path)):
        return modes
    return fault("socket", {
        errno.ENOENT: f"there is no {path}, so {unshared}",
        errno.ECONNREFUSED: f"no process listens on {path}, so {unshared}",
        errno.EACCES: f"{path} may not be used by uid {os.geteuid()}, so {unshared}",
    }.get(error.errno or 0, f"{path} cannot be reached: {error.strerror or error}"), advice)


def _socket_modes(path: str) -> Finding | None:
    """A finding if other users than root may not use the socket; None: all may.

    A socket of a user's own, in a folder that others may not enter, is for that user alone."""
    closed: list[tuple[str, int]] = []          # commands of the advice, and the wrong modes
    with suppress(OSError):             # unreachable() finds folders that this user may not enter
        for folder in [*Path(path).absolute().parents][::-1]:
            if not (mode := folder.stat().st_mode) & stat.S_IXOTH:
                closed.append((f"chmod a+x {shlex.quote(str(folder))}", mode))
        if closed and path != DEFAULT_SOCKET:
            return None
        if not (mode := Path(path).stat().st_mode) & stat.S_IWOTH:
            closed.append((f"chmod a+rw {shlex.quote(path)}", mode))
    if not closed:
        return None
    modes = ", ".join(f"{stat.S_IMODE(mode):o}" for _, mode in closed)
    return fault("socket", f"{path} may not be used by all users, for the mode {modes} of it or "
                 "of a folder above it: their programs would use the GPU unshared",
                 f"give all users access: {' && '.join(command for command, _ in closed)}")


MACHINE = Tree(Path("/"))


def installation_findings() -> Iterator[Finding]:
    yield ok("nvsharectl", f"version {__version__}, in {Path(__file__).parent}")
    try:
        path = library.hook().resolve()
        if MACHINE.has(trial.TRUE):
            trial.check(MACHINE, path)
            yield ok("library", f"{path} can be loaded by this machine's programs")
        else:                           # an image with nvshared alone
            yield note("library", f"{path} is not tried: there is no program {trial.TRUE} here")
    except NvshareError as error:
        yield fault("library", error.message, error.hint or "install it again")
    yield _preload_finding()
    for entry in os.environ.get(library.PRELOAD, "").replace(":", " ").split():
        if Path(entry).name == library.HOOK:
            yield note("environment", f"LD_PRELOAD names {entry} here")


def _preload_finding() -> Finding:
    try:
        state = switch.read_state(MACHINE)
    except NvshareError as error:
        return warning("preload", error.message, error.hint or "see: nvsharectl preload status")
    if state.fault:
        return fault("preload", f"{state.place} has a fault: {state.fault}",
                     "repair it with: nvsharectl preload enable, or disable")
    if state.entries:
        words = f"every program loads {state.entries[0]}, listed in {state.place}"
        return note("preload", f"{words}; {switch.IN_32_BIT}") if (
            switch.runs_32_bit(MACHINE)) else ok("preload", words)
    return note(
        "preload", "only programs that are started with the library share their GPU",
        "for one program: nvsharectl run -- PROGRAM; for every program: nvsharectl preload enable")


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def host_memory_findings(
    inspection: Inspection, snapshot: Snapshot | None = None
) -> Iterator[Finding]:
    refused = snapshot is not None and any(
        one.id == "settings-refused" for one in snapshot.faults)
    if not refused:                     # else daemon_findings() has said it
        yield _budget_finding(sum(card.facts.memory_total for card in inspection.cards),
                              answered=snapshot is not None)
    yield _huge_pages()


def _budget_finding(cards: int, *, answered: bool = False) -> Finding:
    topic = "swap budget"
    try:
        settings = load(None, os.environ, {})
    except NvshareError as error:
        words = error.message.replace("\n", "; ")
        advice = error.hint or "correct it, see with nvshared --check, and restart nvshared"
        if answered:
            return warning("configuration", f"{words}; nvshared goes on with the settings that it "
                           "has, and its next start would fail", advice)
        return fault("configuration", words, advice)
    total, free = host.total(), host.free()
    if settings.swap_budget is None:
        budget, how = host.safe_budget(), "80 % of the free memory, for a daemon that starts now"
    else:
        budget, how = settings.swap_budget.of(total), "as configured"
    words = f"{rounded(budget)} of host memory, {how}"
    more = "give more with swap-budget under [gpu] in /etc/nvshare/nvshared.conf, or add memory"
    if budget > total:
        return fault(topic, f"{words}, and the host has {rounded(total)}", "configure less")
    if budget > free:
        return warning(topic, f"{words}, of which {rounded(free)} are free now",
                       "swapped memory could exhaust host memory: configure less")
    if budget < cards:
        return warning(topic, f"{words}, less than the {rounded(cards)} of the cards",
                       f"programs together can have {rounded(cards + budget)} at most: {more}")
    return ok(topic, words)


def _huge_pages() -> Finding:
    topic = "huge pages"
    try:
        text = HUGE_PAGES.read_text()
    except OSError:
        return note(topic, "this kernel has no transparent huge pages",
                    "allocating host memory takes longer")
    chosen = re.search(r"\[(\w+)\]", text)
    word = chosen[1] if chosen else "unknown"
    if word in ("always", "madvise"):
        return ok(topic, f"transparent huge pages: {word}")
    return warning(
        topic, f"transparent huge pages: {word}, so host memory is allocated several times slower",
        f"echo madvise > {HUGE_PAGES}; permanently: the kernel option transparent_hugepage=madvise")


RUNTIMES = ("docker", "podman", "nerdctl", "apptainer")


def container_findings() -> Iterator[Finding]:
    """Whether containers can have shared GPUs; nothing where no runtime is installed."""
    if not any(map(shutil.which, RUNTIMES)):
        return
    topic = "containers"
    try:
        offer = cdi.offer()
    except NvshareError as error:
        yield warning(topic, error.message, error.hint)
        return
    if offer.missing:
        yield note(topic, f"they cannot have nvshared's devices: {offer.missing}", offer.hint)
    elif not offer.current:
        yield warning(topic, f"{offer.path} differs from NVIDIA's specification",
                      "write it again: sudo nvsharectl containers refresh")
    else:
        yield ok(topic, f"they share a GPU with: docker run --device {cdi.KIND}=all")


STATIC_PODS = Path(KUBELET_STATE) / WITHOUT_GPU


def static_pod_findings() -> Iterator[Finding]:
    """A finding for each static pod that lacks its GPU; none without Kubernetes."""
    try:
        for words, advice in json.loads(STATIC_PODS.read_text()):
            yield warning("static pod", words, advice)
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as error:
        yield warning(
            "static pod", f"{STATIC_PODS} cannot be read: {error}", "restart nvshare-kubelet")
