# SPDX-License-Identifier: Apache-2.0
"""The set of cards changes while the daemon runs, and between two daemons."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests.bus.service import private_bus
from tests.integration.conftest import ROOT, SAMPLED_OFTEN, Site, kill, wait_until
from tests.integration.fakehook import pump

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())


class Machine:
    """A daemon on two cards, whose presence the test changes, and its D-Bus client."""

    def __init__(self, site: Site, bus: str) -> None:
        self.site, self._bus = site, bus
        self.cards = Path(site.environment["NVSHARE_SIM_DIR"]) / "cards"
        self.state = site.folder / "state"

    def start(self) -> "subprocess.Popen[str]":
        return self.site.start("--bus", self._bus, "--state-dir", str(self.state),
                               **SAMPLED_OFTEN)

    def control(self) -> Control:
        return Control(self._bus)

    def states(self) -> dict[str, str]:
        """Whether each GPU is lost or there, by UUID."""
        with self.control() as control:
            return {gpu.uuid: "lost" if gpu.state == "lost" else "there"
                    for gpu in control.snapshot().gpus}

    def clients(self) -> list[ClientSnapshot]:
        with self.control() as control:
            return list(control.snapshot().clients)

    def indices(self) -> dict[str, int]:
        with self.control() as control:
            return {gpu.uuid: gpu.index for gpu in control.snapshot().gpus}

    def is_lost(self, uuid: str) -> bool:
        return self.states()[uuid] == "lost"


@pytest.fixture
def machine(own_site: Site) -> Iterator[Machine]:
    with private_bus() as bus:
        yield Machine(own_site, bus.address)


def text(uuid: bytes) -> str:
    digits = uuid.hex()
    return "GPU-" + "-".join(
        digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


@pytest.mark.parametrize("word", ["lost", "absent"])
def test_lost_gpu_stays_listed_as_lost_over_a_restart_until_the_driver_finds_it(
        machine: Machine, word: str) -> None:
    first, second = map(text, machine.site.uuids)
    daemon = machine.start()
    path = machine.state / "cards.json"
    wait_until(lambda: path.exists() and second in path.read_text())
    machine.cards.write_text(f"0 {word}\n")
    wait_until(lambda: machine.is_lost(first))
    kill(daemon)
    machine.start()
    assert machine.is_lost(first)
    assert not machine.is_lost(second)
    assert len(set(machine.indices().values())) == 2
    hook = machine.site.hook(0)
    answer = hook.hello()
    assert answer is not None
    assert answer.type is Type.REFUSED
    machine.cards.unlink()
    wait_until(lambda: not machine.is_lost(first))
    program = machine.site.wanting(8 * MIB, card=0)     # as a program that tries again
    pump([program], lambda: program.running)


def test_gpu_lost_between_two_daemons_is_listed_as_lost(machine: Machine) -> None:
    first, second = map(text, machine.site.uuids)
    daemon = machine.start()
    wait_until(lambda: (machine.state / "cards.json").exists())
    kill(daemon)
    machine.cards.write_text("0 absent\n1 absent\n")
    machine.start()
    assert machine.states() == {first: "lost", second: "lost"}
    machine.cards.unlink()
    wait_until(lambda: set(machine.states().values()) == {"there"})


def test_known_cards_are_written_once_the_state_folder_can_be_written(machine: Machine) -> None:
    machine.state.write_text("")        # root could write to any folder
    machine.start()

    def faults() -> list[str]:
        with machine.control() as control:
            return [fault.id for fault in control.snapshot().faults]

    wait_until(lambda: "state-unwritable" in faults())
    machine.state.unlink()
    wait_until(lambda: "state-unwritable" not in faults())
    known = json.loads((machine.state / "cards.json").read_text())
    assert set(known["cards"]) == set(map(text, machine.site.uuids))


def test_client_of_a_lost_gpu_gets_its_turns_again_once_the_gpu_is_found(machine: Machine) -> None:
    machine.start()
    hook = machine.site.wanting(8 * MIB)
    pump([hook], lambda: hook.running)
    (before,) = machine.clients()
    machine.cards.write_text("0 lost\n")
    first = text(machine.site.uuids[0])
    wait_until(lambda: machine.is_lost(first))
    machine.cards.unlink()
    wait_until(lambda: not machine.is_lost(first))
    pump([hook], lambda: [one.id for one in machine.clients()] not in ([], [before.id]))
    (client,) = machine.clients()
    assert client.allocated == 8 * MIB
    other = machine.site.wanting(8 * MIB)
    pump([hook, other], lambda: other.running)


def test_waiting_client_of_a_lost_gpu_goes_on_to_the_drivers_error_after_a_restart(
        machine: Machine) -> None:
    daemon = machine.start()
    holder, waiting = machine.site.wanting(700 * MIB), machine.site.wanting(700 * MIB)
    pump([holder, waiting], lambda: holder.running)
    path = machine.state / "cards.json"
    wait_until(path.exists)
    kill(daemon)
    machine.cards.write_text("0 lost\n")
    machine.start()
    for hook in (waiting, holder):
        hook.close()
        hook.connect()
        answer = hook.hello()
        assert answer is not None
        assert answer.type is Type.LIMITS
    waiting.want()
    while (order := waiting.hear()) is not None and order.type is not Type.RUN:
        continue                        # orders to load, which would get the driver's error
    assert order is not None


def test_added_gpu_is_managed_without_a_restart(machine: Machine) -> None:
    first, second = map(text, machine.site.uuids)
    machine.cards.write_text("0 absent\n")
    machine.start()
    assert machine.indices() == {second: 0}
    machine.cards.unlink()
    wait_until(lambda: first in machine.states())
    assert machine.indices() == {second: 0, first: 1}
    program = machine.site.wanting(8 * MIB, card=0)
    pump([program], lambda: program.running)


def test_forgotten_gpu_is_not_listed_any_more_also_after_a_restart(machine: Machine) -> None:
    first, second = map(text, machine.site.uuids)
    machine.cards.write_text("1 lost\n")
    daemon = machine.start()
    hook = machine.site.hook(0)
    hook.hello()
    machine.cards.write_text("0 absent\n1 absent\n")
    wait_until(lambda: machine.is_lost(first))
    with machine.control() as control:
        control.set_tq(11_000_000, first)
        assert first in (machine.state / "settings.json").read_text()
        control.forget_gpu(first)
    assert first not in (machine.state / "settings.json").read_text()
    assert machine.clients() == []
    hook.close()                        # a client of the forgotten GPU disturbs nothing
    machine.cards.write_text("0 absent\n")
    wait_until(lambda: second in machine.states())
    wait_until(lambda: first not in (machine.state / "cards.json").read_text())
    kill(daemon)
    machine.start()
    assert machine.states() == {second: "there"}
    assert "Traceback" not in machine.site.log.read_text()


def test_reported_error_of_a_gpu_counts_over_a_restart_until_it_is_forgotten(
        machine: Machine) -> None:
    def faults() -> list[str]:
        with machine.control() as control:
            return [fault.id for fault in control.snapshot().gpus[1].faults]

    daemon = machine.start()
    machine.cards.with_name("xid").write_text("1 48")
    wait_until(lambda: faults() == ["gpu-unreliable"])
    wait_until(lambda: "Xid 48" in (machine.state / "cards.json").read_text())
    kill(daemon)
    daemon = machine.start()
    assert faults() == ["gpu-unreliable"]
    with machine.control() as control:
        control.forget_gpu("1")
    assert faults() == []
    wait_until(lambda: "Xid 48" not in (machine.state / "cards.json").read_text())
    kill(daemon)
    machine.start()
    assert faults() == []


def test_reported_error_of_a_gpu_that_is_lost_counts_once_the_gpu_is_found(
        machine: Machine) -> None:
    def faults() -> list[str]:
        with machine.control() as control:
            return [fault.id for fault in control.snapshot().gpus[1].faults]

    machine.start()
    machine.cards.with_name("xid").write_text("1 48")
    wait_until(lambda: faults() == ["gpu-unreliable"])
    machine.cards.write_text("1 lost\n")
    wait_until(lambda: "gpu-lost" in faults())
    machine.cards.unlink()
    wait_until(lambda: "gpu-lost" not in faults())
    assert faults() == ["gpu-unreliable"]
    wait_until(lambda: "Xid 48" in (machine.state / "cards.json").read_text())


def test_daemon_in_another_network_namespace_is_named_as_the_second_on_the_card(
        machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a network namespace")
    site = machine.site
    command = ["unshare", "--net", sys.executable, "-m", "nvshared", "--config",
               str(site.folder / "nvshared.conf"), "--bus", "none", "--socket",
               str(site.folder / "second")]
    second = subprocess.Popen(command, env=site.environment, cwd=ROOT, text=True)
    site.started.append(second)
    name = Path(f"/proc/{second.pid}/comm")
    wait_until(lambda: name.read_text() == "nvshared\n")
    unix = name.with_name("net") / "unix"
    wait_until(lambda: "@nvshare/" in unix.read_text())
    machine.start()

    def details() -> list[str]:
        with machine.control() as control:
            return [fault.words for gpu in control.snapshot().gpus for fault in gpu.faults]

    wait_until(lambda: len(details()) == len(site.uuids))
    assert all(words.endswith(f"nvshared[{second.pid}] in another network namespace")
               for words in details())


def _another_card(plain: dict[str, Any]) -> None:
    plain["cards"]["GPU-00000000-0000-0000-0000-000000000001"] = {
        "index": 0, "name": "Card", "pci": "00000000:7f:00.0", "memory": 1 << 30}


def _wrong_entry(plain: dict[str, Any]) -> None:
    _another_card(plain)
    plain["cards"]["GPU-00000000-0000-0000-0000-000000000002"] = {"index": "two"}


def _replaced_card(plain: dict[str, Any]) -> None:
    _another_card(plain)
    pci = [one["pci"] for one in plain["cards"].values()]
    plain["cards"]["GPU-00000000-0000-0000-0000-000000000002"] = {
        "index": 0, "name": "Card", "pci": pci[0], "memory": 1 << 30}


@pytest.mark.parametrize(("change", "lost"), [
    (_another_card, 1), (_wrong_entry, 1), (_replaced_card, 1),
    (lambda plain: plain.update(version=99), 0), (lambda plain: plain.update(cards=3), 0),
])
def test_known_cards_are_read_entry_by_entry_and_what_does_not_fit_is_kept_aside(
        machine: Machine, change: Callable[[dict[str, Any]], None], lost: int) -> None:
    daemon = machine.start()
    path = machine.state / "cards.json"
    wait_until(path.exists)
    kill(daemon)
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))
    machine.start()
    assert sorted(machine.states().values()) == ["lost"] * lost + ["there"] * 2
    asides = list(machine.state.glob("cards.json.aside-*"))
    assert bool(asides) is (change not in (_another_card, _replaced_card))
    for aside in asides:
        assert json.loads(aside.read_text()) == plain
