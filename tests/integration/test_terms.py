# SPDX-License-Identifier: Apache-2.0
"""Limits, suspension and names of real programs."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from nvshared.units import MIB, SECOND
from tests.integration.conftest import Process, Site, kill, wait_until
from tests.integration.programs import PRELUDE
from tests.integration.test_kills import finish, program

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())


OUT_OF_MEMORY = 2

# For each line: allocates that many bytes, prints the result, and free and total memory.
ALLOCATOR = PRELUDE + """
for line in sys.stdin:
    result = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(int(line)))
    free, used = left_and_used()
    print(result, free, free + used, flush=True)
"""

# Asks the simulated driver, for each line, the percentage of time with running kernels since the
# last line, and the seconds since then.
UTILISATION = """
import pynvml, sys, time
pynvml.nvmlInit()
card, began = pynvml.nvmlDeviceGetHandleByIndex(0), time.monotonic()
for _ in sys.stdin:
    rates = pynvml.nvmlDeviceGetUtilizationRates(card)
    print(rates.gpu, time.monotonic() - began, flush=True)
    began = time.monotonic()
"""


class Allocator(Process):
    def __init__(self, site: Site) -> None:
        super().__init__(site.program([sys.executable, "-c", ALLOCATOR], stderr=None))

    def allocate(self, size: int) -> tuple[int, int, int]:
        """The driver's result, and free and total bytes of the card afterwards."""
        result, free, total = map(int, self.ask(str(size)).split())
        return result, free, total


def view(control: Control, process: subprocess.Popen[str]) -> ClientSnapshot:
    (found,) = [one for one in control.snapshot().clients if one.pid == process.pid]
    return found


def test_program_with_a_memory_limit_gets_the_limit_as_the_cards_total_memory(
    site: Site, start: Callable[..., Control]
) -> None:
    control = start()
    one = Allocator(site)
    assert one.allocate(64 * MIB)[0] == 0
    (client,) = control.clients_of(one.popen.pid)
    control.set_client_term(client, "memory-limit", 128 * MIB)
    # The client may still use unused commit until it has received LIMITS.
    while one.allocate(0)[2] != 128 * MIB:
        continue
    result, free, _ = one.allocate(256 * MIB)
    assert result == OUT_OF_MEMORY
    assert free <= 64 * MIB
    assert one.allocate(32 * MIB)[0] == 0
    control.set_client_term(client, "memory-limit", 0)
    while one.allocate(256 * MIB)[0] == OUT_OF_MEMORY:
        continue
    one.end()


# What the library reads in an environment: the term in force, or what it says of a wrong value.
WANTED = [
    ({"NVSHARE_MEMORY_LIMIT": "128MiB"}, (128 * MIB, 100, 100)),
    ({"NVSHARE_MEMORY_LIMIT": "0.125 g", "NVSHARE_COMPUTE_LIMIT": "50%", "NVSHARE_WEIGHT": "30"},
     (128 * MIB, 50, 30)),
    ({"CUDA_DEVICE_MEMORY_LIMIT": "128m", "CUDA_DEVICE_SM_LIMIT": "40"}, (128 * MIB, 40, 100)),
    ({"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "128M",
      "CUDA_DEVICE_MEMORY_LIMIT_1": "64M", "CUDA_DEVICE_SM_LIMIT": "0"}, (128 * MIB, 100, 100)),
    ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1=64M, 0=128M"}, (128 * MIB, 100, 100)),
    ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.5"}, (0, 33, 100)),
    ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.5", "CUDA_MPS_PIPE_DIRECTORY": "/mps"},
     (0, 100, 100)),
    ({"NVSHARE_MEMORY_LIMIT": "1GiB", "CUDA_DEVICE_MEMORY_LIMIT": "128m"}, (128 * MIB, 100, 100)),
    ({"NVSHARE_MEMORY_LIMIT": "", "NVSHARE_PRIORITY": "background"}, (0, 100, 100)),
]


@pytest.mark.parametrize(("given", "found"), WANTED, ids=[" ".join(one) for one, _ in WANTED])
def test_terms_of_a_programs_environment_are_in_force_when_it_first_asks_for_the_cards_size(
    site: Site, start: Callable[..., Control], given: dict[str, str], found: tuple[int, int, int]
) -> None:
    control = start()
    one = Process(site.program([sys.executable, "-c", ALLOCATOR], given, stderr=None))
    _, _, total = map(int, one.ask("0").split())
    client = view(control, one.popen)
    assert tuple(client.terms.values())[:3] == found
    assert not found[0] or total == found[0]
    one.end()


def test_wrong_values_in_a_programs_environment_are_reported_once_and_give_no_term(
    site: Site, start: Callable[..., Control]
) -> None:
    wrong = {
        "NVSHARE_MEMORY_LIMIT": ("8", "a size such as 8GiB or 512M"),
        "NVSHARE_COMPUTE_LIMIT": ("0", "a percentage of the time from 1 to 100"),
        "NVSHARE_WEIGHT": ("101", "a whole number from 1 to 100"),
        "NVSHARE_PRIORITY": ("urgent", "background, normal or high"),
        "CUDA_DEVICE_MEMORY_LIMIT": ("1x", "a size such as 8GiB or 512M"),
        "CUDA_DEVICE_SM_LIMIT": ("-1", "a percentage of the time from 1 to 100"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": (
            "0:1G", "a size for each GPU, such as 0=8G,1=512M"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": ("x", "a percentage of the time from 1 to 100"),
    }
    control = start()
    stderr = site.folder / "stderr"
    with stderr.open("w") as file:
        one = Process(site.program(
            [sys.executable, "-c", ALLOCATOR], {name: value for name, (value, _) in wrong.items()},
            stderr=file))
    one.ask("0")
    client = view(control, one.popen)
    assert tuple(client.terms.values())[:3] == (0, 100, 100)
    one.end()
    said = [line.partition(": ")[2] for line in stderr.read_text().splitlines()]
    assert said == [
        f"{name}={value} is invalid: give {right}; only the administrator's terms apply"
        for name, (value, right) in wrong.items()]


def test_compute_limit_bounds_the_card_time_of_a_program_of_short_kernels(
    site: Site, start: Callable[..., Control]
) -> None:
    """Measured by the simulated driver. The lower bound is tested in virtual time and on a card:
    here it would depend on the load of the machine."""
    percent = 25
    control = start()
    alone = site.workload(
        "--memory", "2MiB", "--chunk", "128KiB", "--until-told", "--kernel-us", "10", "--json")
    wait_until(lambda: any(one.state == "running" for one in control.snapshot().clients))
    (client,) = control.clients_of(alone.pid)
    control.set_client_term(client, "compute-limit", percent)
    wait_until(lambda: view(control, alone).state == "limited")
    driver = Process(site.program(
        [sys.executable, "-c", UTILISATION], {"LD_PRELOAD": ""}, stderr=None))
    driver.ask("")
    turns = view(control, alone).turns
    wait_until(lambda: view(control, alone).turns >= turns + 40)
    ran, seconds = map(float, driver.ask("").split())
    lines = map(json.loads, (site.folder / "trace").read_text().splitlines())
    longest = max(line["held_time"] for line in lines if line.get("report") == "turn-ended")
    # Time that a turn uses beyond the limit is subtracted from later windows.
    assert 0 < ran <= percent + 2 + 100 * longest / SECOND / seconds
    control.set_client_term(client, "compute-limit", 100)
    finish([alone])


def test_confirmed_terms_after_a_kill_of_the_daemon_are_in_force_in_the_next(
        site: Site, bus: str) -> None:
    options = ("--bus", bus, "--state-dir", str(site.folder / "state"))
    daemon = site.start(*options)
    hook = site.allocating(MIB)
    with Control(bus) as control:
        (client,) = control.snapshot().clients
        control.set_client_term(client.id, "weight", 7)
        kill(daemon)
    site.start(*options)
    hook.close()
    hook.connect()
    hook.hello()
    with Control(bus) as control:
        (client,) = control.snapshot().clients
        assert client.terms["weight"] == 7


def test_name_of_a_program_survives_a_restart_of_the_daemon(site: Site, bus: str) -> None:
    daemon = site.start("--bus", bus)
    names = {"my model", "x" * 87, "nvshare-workload"}
    programs = [
        program(site, 1, None, NVSHARE_NAME="my model"), program(site, 2, None),
        # A name is not cut within a character.
        program(site, 3, None, NVSHARE_NAME="x" * 87 + "\u00e4"),
    ]

    def shown() -> set[str]:
        with Control(bus) as control:
            return {client.name for client in control.snapshot().clients}

    wait_until(lambda: shown() == names)
    kill(daemon)
    site.start("--bus", bus)
    wait_until(lambda: shown() == names)
    assert f"my model[{programs[0].pid}] came" in site.log.read_text()
    finish(programs)
