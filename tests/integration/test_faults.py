# SPDX-License-Identifier: Apache-2.0
"""Each fault of the table, produced in the real daemon, is seen everywhere that the table feeds."""

import shlex
import socket as sockets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest import no_bus
from nvshared.cli.main import main
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import Snapshot
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.faults import KINDS, Fault
from nvshared.kubelet.card import of_daemon
from nvshared.machine import checkpoint
from nvshared.tui.screen import draw
from nvshared.tui.state import View, with_snapshot
from tests.bus.service import PrivateBus, private_bus
from tests.integration.conftest import ROOT, SAMPLED_OFTEN, Site, wait_until
from tests.integration.fakehook import PATIENCE
from tests.integration.test_doctor import findings
from tests.integration.test_start import free_port

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())

GPU = 1                                 # the card with faults; the other one has none
STRANGER = ("--memory", "32MiB", "--chunk", "16MiB", "--hold", "--json")
# A program with a library of another version: it is refused, and lives until its input ends.
OTHER_VERSION = """
import sys
from nvshared.hook.protocol import Type
from tests.integration.fakehook import Hook
hook = Hook(sys.argv[1], bytes.fromhex(sys.argv[2]))
hook.version = 99
hook.say(Type.HELLO)
print(hook.hear().type.name, flush=True)
sys.stdin.read()
"""


@dataclass
class Lab:
    site: Site
    bus: PrivateBus
    short: Path                         # an empty folder with a short path
    ends: ExitStack                     # what is called at the test's end
    port: int = field(default_factory=free_port)

    @property
    def cards(self) -> Path:
        """The file with faults of the simulated cards."""
        return Path(self.site.environment["NVSHARE_SIM_DIR"]) / "cards"

    @property
    def state(self) -> Path:
        return self.site.folder / "state"

    @property
    def configuration(self) -> Path:
        return self.site.folder / "nvshared.conf"

    def start(self, *options: str, **changed: str) -> "subprocess.Popen[str]":
        return self.site.start(
            "--bus", self.bus.address, "--state-dir", str(self.state), "--metrics", str(self.port),
            *options, **{**SAMPLED_OFTEN, **changed})

    @contextmanager
    def control(self) -> Iterator[Control]:
        with Control(self.bus.address) as control:
            yield control

    def snapshot(self) -> Snapshot:
        with self.control() as control:
            return control.snapshot()

    def present(self) -> dict[str, Fault]:
        return {fault.id: fault for fault in self.snapshot().all_faults}

    def metrics(self) -> dict[str, str]:
        """Values of nvshare_fault by fault, of the faults of the whole and of GPU."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics",
                                    timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = {}
        for line in text.splitlines():
            if line.startswith("nvshare_fault{") and 'gpu="0"' not in line:
                found[line.split('fault="')[1].split('"')[0]] = line.split()[-1]
        return found

    def logged(self, words: str) -> list[str]:
        """The lines of the journal about GPU, or about nvshared as a whole, with these words."""
        return [line for line in self.site.log.read_text().splitlines()
                if words in line and "GPU 0" not in line]

    def doctor(self) -> dict[str, tuple[str, str]]:
        """Grade and remedy by words of the doctor's findings."""
        return {one["words"]: (one["grade"], one["advice"])
                for one in findings(self.site, self.bus.address)[1]}


Mend = Callable[[], object] | None


def card(word: str) -> Callable[[Lab], Mend]:
    def cause(lab: Lab) -> Mend:
        lab.start()
        lab.cards.write_text(f"{GPU} {word}\n")
        return lab.cards.unlink

    return cause


def xid(lab: Lab) -> Mend:
    lab.start()
    lab.cards.with_name("xid").write_text(f"{GPU} 48")

    def forget() -> None:
        with lab.control() as control:
            control.forget_gpu(str(GPU))

    return forget


def mig(lab: Lab) -> Mend:
    lab.cards.write_text(f"{GPU} mig\n")
    lab.start()
    return None                         # MIG is off at the next start


def another_daemon(lab: Lab) -> Mend:
    lab.start()
    command = [sys.executable, "-m", "nvshared", "--config", str(lab.configuration), "--bus",
               "none", "--socket", str(lab.site.folder / "second")]
    second = subprocess.Popen(command, env=lab.site.environment, cwd=ROOT, text=True)
    lab.site.started.append(second)
    return second.terminate


def stranger(lab: Lab) -> Mend:
    lab.start()
    program = lab.site.workload(*STRANGER, LD_PRELOAD="", CUDA_VISIBLE_DEVICES=str(GPU))
    assert program.stdout is not None
    assert program.stdout.readline()
    return program.kill


def disk(lab: Lab) -> Mend:
    before = lab.configuration.read_text()
    lab.configuration.write_text(f"{before}disk = {lab.site.folder}/none, 64MiB\n")
    lab.start()
    return lambda: lab.configuration.write_text(before)


def helper(lab: Lab) -> Mend:
    lab.site.module = "tests.integration.changed"
    link = lab.site.folder / "helper"
    lab.start(NVSHARE_TEST_HELPER=str(link))
    program = lab.site.workload(*STRANGER)
    assert program.stdout is not None
    assert program.stdout.readline()

    def park() -> None:
        with lab.control() as control:
            control.park(control.snapshot().clients[0].id)

    with pytest.raises(NvshareError):
        park()

    def mend() -> None:
        link.write_text(f"#!/bin/sh\nexec {shlex.join(checkpoint.COMMAND)}\n")
        link.chmod(0o755)
        park()

    return mend


def other_version(lab: Lab) -> Mend:
    lab.start()
    program = subprocess.Popen(
        [sys.executable, "-c", OTHER_VERSION, str(lab.site.socket), lab.site.uuids[GPU].hex()],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    lab.site.started.append(program)
    assert program.stdout is not None
    assert program.stdout.readline() == "REFUSED\n"
    return program.kill


def state_folder(lab: Lab) -> Mend:
    lab.start()
    aside = lab.state.rename(lab.site.folder / "aside")
    lab.state.write_text("")            # root could write to any folder

    def mend() -> None:
        lab.state.unlink()
        aside.rename(lab.state)

    return mend


def unread_state(lab: Lab) -> Mend:
    lab.state.mkdir()
    (lab.state / "tenants.json").write_text(
        r'{"version": 1, "tenants": {"user:1000": {"weight": "\ud800"}}, "users": {}}')
    lab.start()
    return None                         # the next start understands what was written


def history(lab: Lab) -> Mend:
    put_back = state_folder(lab)
    assert put_back is not None
    lab.site.workload("--memory", "32MiB", "--chunk", "16MiB", "--seconds", str(PATIENCE))

    def is_unwritten() -> bool:
        """Has the daemon write the usage until now."""
        now = int(time.time() * 1e6)
        with lab.control() as control, suppress(NvshareError):
            control.history(now - 10**9, now, 0, "user", "", 0, everyone=False)
        return "history-unwritten" in lab.present()

    wait_until(is_unwritten)

    def mend() -> None:
        put_back()
        wait_until(lambda: not is_unwritten())

    return mend


def test_history_that_was_put_aside_is_shown_as_unread(lab: Lab) -> None:
    lab.state.mkdir()
    (lab.state / "history.db").write_text("no database, although it is where one has to be")
    lab.start()
    now = int(time.time() * 1e6)
    with lab.control() as control:
        control.history(now - 10**9, now, 0, "user", "", 0, everyone=False)
    wait_until(lambda: "state-unread" in lab.present())
    assert "history.db: it is broken" in lab.present()["state-unread"].words


def settings(lab: Lab) -> Mend:
    lab.start()
    before = lab.configuration.read_text()
    lab.configuration.write_text(f"{before}tq = banana\n")
    return lambda: lab.configuration.write_text(before)


def socket(lab: Lab) -> Mend:
    lab.start()
    aside = lab.site.socket.rename(lab.site.folder / "aside")
    return lambda: aside.rename(lab.site.socket)


def hidden(lab: Lab) -> Mend:
    """/proc without the first process, as with hidepid."""
    lab.site.before = ["unshare", "--mount", "sh", "-c",
                       'mount -t tmpfs none /proc/1 && exec "$@"', "sh"]
    lab.start()
    return None                         # the next start has another /proc


def descriptors(lab: Lab) -> Mend:
    lab.site.before = ["prlimit", "--nofile=512:512"]
    lab.start()
    return None                         # the next start has another limit


def port(lab: Lab) -> Mend:
    taken = sockets.socket()
    taken.bind(("", lab.port))
    taken.listen()
    lab.ends.callback(taken.close)
    lab.start(NVSHARE_TEST_CONSTANTS="nvshared.report.metrics:RETRY=1")
    return taken.close


def bus(lab: Lab) -> Mend:
    lab.start()
    lab.bus.stop()
    return lab.bus.start


def kubelet(lab: Lab) -> Mend:
    pytest.importorskip("grpc")
    from tests.integration.kubelet import Kubelet
    from tests.integration.kubelet_node import Node

    lab.start()
    node = Node(lab.site, lab.bus, Kubelet(lab.short / "kubelet"))
    node.kubelet.stop()
    node.start()
    lab.site.started.extend(node.plugins)

    def mend() -> None:
        node.kubelet.start()
        lab.ends.callback(node.kubelet.stop)

    return mend


CAUSES: dict[str, Callable[[Lab], Mend]] = {
    "gpu-lost": card("lost"), "gpu-unreliable": xid, "gpu-silent": card("silent"),
    "gpu-exclusive": card("exclusive"), "gpu-mig": mig, "gpu-contested": another_daemon,
    "gpu-unshared": stranger, "disk-unusable": disk, "helper-failing": helper,
    "library-refused": other_version, "state-unwritable": state_folder,
    "state-unread": unread_state,
    "history-unwritten": history, "settings-refused": settings, "bus-lost": bus,
    "socket-removed": socket, "tenants-hidden": hidden,
    "few-descriptors": descriptors, "metrics-unserved": port, "kubelet-unreached": kubelet,
}
FAR = frozenset({"bus-lost"})           # nothing reaches the daemon but the metrics
UNSCRAPED = frozenset({"metrics-unserved"})     # while the fault lasts


@pytest.fixture
def lab(own_site: Site, short_path: Path) -> Iterator[Lab]:
    with private_bus() as made, ExitStack() as ends:
        yield Lab(own_site, made, short_path, ends)


@pytest.mark.parametrize("id", KINDS)
def test_fault_is_in_every_place_that_shows_faults_until_it_ends(
        id: str, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    mend = CAUSES[id](lab)
    wait_until(lambda: id in lab.present() if id in UNSCRAPED else lab.metrics()[id] == "1.0")
    if id not in FAR:
        look(id, lab, capsys)
    if not KINDS[id].logged:
        assert len(lab.logged(f"fault {id}: ")) == 1
    if mend is None:
        return
    mend()
    if id in UNSCRAPED:
        wait_until(lambda: id not in lab.present())
    wait_until(lambda: lab.metrics()[id] == "0.0")
    wait_until(lambda: id not in lab.present())
    if not KINDS[id].logged:            # a card that is found again is a new one to the daemon
        end = "is found again" if id == "gpu-lost" else f"fault {id} is over: "
        assert len(lab.logged(end)) == len(lab.logged(f"fault {id}: ")) == 1


def sentence(words: str) -> str:
    return (words if words.startswith("nv") else words[0].upper() + words[1:]) + "."


def look(id: str, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails unless the fault is in D-Bus, status, top, doctor, and in the health of the node."""
    kind, snapshot = KINDS[id], lab.snapshot()
    own = [fault for gpu in snapshot.gpus if gpu.index == GPU for fault in gpu.faults]
    (fault,) = [one for one in (own if kind.of_gpu else snapshot.faults) if one.id == id]
    assert (fault.severity, fault.avoided) == (kind.severity, kind.avoided)
    capsys.readouterr()
    assert main(["--bus", lab.bus.address, "status"]) == 0
    text = capsys.readouterr().out
    assert f"\n{sentence(fault.words)}\n→ {sentence(fault.remedy)}\n" in text
    state = with_snapshot(View(), snapshot, 0.0, [], [])
    drawn = [line.plain.rstrip() for line in draw(state, 400, 60).lines]
    assert f"{fault.severity}: {fault.words}" in drawn
    if id != "gpu-unshared":            # there the doctor has a finding for each program
        grade = "fault" if kind.severity == "critical" else "warning"
        assert lab.doctor()[fault.words] == (grade, fault.remedy)
    with lab.control() as control:
        (gpu,) = [one for one in control.gpus() if one["Index"] == GPU]
    assert bool(of_daemon(gpu, {}).problem) is (kind.of_gpu and kind.avoided)


def test_gpu_that_is_there_and_without_reported_errors_cannot_be_forgotten(lab: Lab) -> None:
    lab.start()
    with lab.control() as control, pytest.raises(InvalidArgs, match="nothing is known against it"):
        control.forget_gpu("0")
