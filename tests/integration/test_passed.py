# SPDX-License-Identifier: Apache-2.0
"""Physical memory goes from one program to the next, and nothing of it is wrong or lost.

Real programs under the real library on simulated cards, with the real daemon. What is left of a
card is asked of NVML, and what descriptors hold counts there, wherever they are.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvshared.hook import protocol
from nvshared.hook.protocol import Flag, OrderRecord, ReportRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import ROOT, Site
from tests.integration.fakehook import PATIENCE, Hook, pump
from tests.integration.servicemanager import ServiceManager
from tests.integration.test_kills import BUILD, STATES_TO_TRY, await_state, finish
from tests.integration.test_own_memory import Program

PASSING = ("--tq", "100ms", "--capacity", "60MiB", "--pass-from", "2MiB")
EACH = 4                                # MiB, in blocks of which programs have their memory
PROGRAMS = 3
SLOW = str(200 << 20)                   # bytes a second: a move is under way when it is seen
USED = """
from nvshared.machine.nvml import NVML
nvml = NVML()
for sample in (nvml.sample(card.uuid) for card in nvml.find()):
    print(sample.memory_used, sum(process.memory for process in sample.processes))
"""
Eventually = Callable[[Callable[[], bool]], None]


def program(
    site: Site, seed: int, steps: int | None = 12, within: Sequence[str] = (), **environment: str
) -> subprocess.Popen[str]:
    """One of which two do not fit on the card together. `steps` None: until finish()."""
    length = ["--until-told"] if steps is None else ["--steps", str(steps)]
    process = subprocess.Popen(
        [*within, str(BUILD / "nvshare-workload"), "--memory", "40MiB", "--chunk", f"{EACH}MiB",
         *length, "--kernel-us", "2000", "--seed", str(seed), "--json"],
        env={
            **site.environment, "LD_PRELOAD": str(BUILD / "libnvshare.so"),
            "NVSHARE_SOCKET": str(site.socket), **environment,
        },
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    site.started.append(process)
    return process


def start(site: Site, *options: str) -> subprocess.Popen[str]:
    return site.start(*PASSING, "--trace", str(site.folder / "trace"), *options)


def given(site: Site) -> dict[int, int]:
    """How many parcels each program was given, by pid."""
    counts: dict[int, int] = {}
    for line in site.trace():
        if line.get("order") == "load" and line["parcels"]:
            counts[line["pid"]] = counts.get(line["pid"], 0) + len(line["parcels"])
    return counts


def failures(site: Site) -> list[object]:
    """Answers that say of something that it did not come in."""
    return [one for one in site.trace() if one.get("event") == "loaded"
            and (one["no_memory"] or one["driver_error"])]


def used(site: Site) -> tuple[int, int]:
    """Bytes of the first card, as NVML says: of all, and by process."""
    asked = subprocess.run(
        [sys.executable, "-c", USED], env=site.environment, cwd=ROOT, capture_output=True,
        text=True, check=True, timeout=PATIENCE)
    whole, shown = asked.stdout.split()[:2]
    return int(whole), int(shown)


def nothing_is_left(site: Site, eventually: Eventually) -> None:
    eventually(lambda: used(site) == (0, 0))


def test_each_has_what_it_had_and_all_goes_round(site: Site, eventually: Eventually) -> None:
    start(site)
    programs = [program(site, seed, None) for seed in range(PROGRAMS)]
    # More than each has: what was passed on to one is passed on by it, too.
    eventually(lambda: sum(n > 12 for n in given(site).values()) == PROGRAMS)
    finish(programs)
    assert not failures(site)
    nothing_is_left(site, eventually)


@pytest.mark.parametrize("options", [(), ("--pass-from", "0")], ids=["small blocks", "off"])
def test_small_blocks_are_freed_and_made_anew(site: Site, options: tuple[str, ...]) -> None:
    site.start(*PASSING[:-2], *options, "--trace", str(site.folder / "trace"))
    finish([program(site, seed, 6) for seed in range(2)])
    assert not given(site)
    assert not options or not any(line.get("passes") for line in site.trace())


@pytest.mark.parametrize("state", STATES_TO_TRY)
def test_a_program_killed_leaves_nothing(
    site: Site, eventually: Eventually, state: str
) -> None:
    start(site)
    programs = [program(site, seed, NVSHARE_SIM_COPY_RATE=SLOW) for seed in range(PROGRAMS)]
    victim = await_state(site.folder / "trace", state)
    for process in programs:
        if process.pid == victim:
            process.kill()
    finish([process for process in programs if process.pid != victim])
    nothing_is_left(site, eventually)


@pytest.mark.parametrize("state", STATES_TO_TRY)
def test_the_daemon_killed_leaves_nothing(site: Site, eventually: Eventually, state: str) -> None:
    daemon = start(site)
    programs = [program(site, seed, NVSHARE_SIM_COPY_RATE=SLOW) for seed in range(PROGRAMS)]
    await_state(site.folder / "trace", state)
    daemon.kill()
    daemon.wait()
    site.start(*PASSING)
    finish(programs)
    nothing_is_left(site, eventually)


def test_a_new_daemon_hears_who_has_what_others_made(site: Site, eventually: Eventually) -> None:
    daemon = start(site)
    programs = [program(site, seed, None) for seed in range(PROGRAMS)]
    eventually(lambda: sum(n > 12 for n in given(site).values()) == PROGRAMS)
    daemon.kill()
    daemon.wait()
    (site.folder / "trace").unlink()
    start(site)

    def comers() -> list[dict[str, Any]]:
        return [line for line in site.trace() if line.get("event") == "joined"]

    eventually(lambda: len(comers()) == PROGRAMS)
    whole, shown = used(site)
    assert sum(one["imported"] for one in comers()) <= whole - shown
    for one in comers():
        assert one["imported"] <= one["memory"]["resident"]
        assert one["imported"] % (EACH * MIB) == 0
    assert any(one["imported"] for one in comers())
    finish(programs)
    nothing_is_left(site, eventually)


def test_a_daemon_that_takes_over_keeps_nothing(site: Site, eventually: Eventually) -> None:
    manager = ServiceManager(site)
    try:
        daemon = manager.start(*PASSING, "--trace", str(site.folder / "trace"))
        programs = [program(site, seed) for seed in range(PROGRAMS)]
        await_state(site.folder / "trace", "evicting")
        daemon.kill()
        daemon.wait()
        manager.start(*PASSING)
        finish(programs)
        assert manager.stored == PROGRAMS
        nothing_is_left(site, eventually)
    finally:
        manager.close()


@pytest.mark.parametrize("fails", [
    "cuMemExportToShareableHandle:1+", "cuMemImportFromShareableHandle:1+", "cuMemCreate:1:801",
])
def test_where_the_driver_refuses_memory_is_freed_and_made(
    site: Site, eventually: Eventually, fails: str
) -> None:
    start(site)
    finish([program(site, seed, NVSHARE_SIM_FAIL=fails) for seed in range(2)])
    assert not failures(site)
    assert bool(given(site)) == fails.startswith("cuMemImport")
    nothing_is_left(site, eventually)


@pytest.mark.parametrize("fails", ["cuMemMap", "cuMemSetAccess"])
def test_what_cannot_be_mapped_is_made_anew_at_once(
    site: Site, eventually: Eventually, fails: str
) -> None:
    """The first has made all that it has, chunks and results, before it is given any."""
    start(site)
    refused = f"{fails}:{40 // EACH + 2}:1"
    one = program(site, 1, None, NVSHARE_SIM_FAIL=refused)
    await_state(site.folder / "trace", "running", one.pid, after=0)
    programs = [one, program(site, 2, None)]
    eventually(lambda: given(site).get(one.pid, 0) > 12)
    finish(programs)
    assert not failures(site)
    nothing_is_left(site, eventually)


def test_a_full_table_of_descriptors_is_no_hindrance(site: Site, eventually: Eventually) -> None:
    start(site)
    few = ("sh", "-c", 'ulimit -n 40; exec "$@"', "sh")
    finish([program(site, seed, within=few) for seed in range(2)])
    assert not failures(site)
    nothing_is_left(site, eventually)


def test_a_program_in_another_container_is_given_nothing(site: Site) -> None:
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this process may make no container")
    start(site)
    finish([program(site, 1), program(site, 2, within=apart)])
    assert any(line.get("order") == "evict" for line in site.trace())
    assert not given(site)


ZEROS = f'''
def say(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()
def allocate():
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), {EACH} * MIB)
    return address.value
cleared, unwritten = [[allocate() for _ in range(5)] for _ in range(2)]
for address in cleared:
    call("cuMemsetD8_v2", address, c_uint(0), {EACH} * MIB)
call("cuCtxSynchronize")
say("there")
new = [allocate() for _ in range(4)]
for address in cleared + unwritten + new:
    assert not any(get(address, {EACH} * MIB)), "somebody else's bytes"
first = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
def ours():
    return sum(int(name) >= first for name in os.listdir("/proc/self/fd"))
most = 0
for _ in range(500):                    # at any moment of the way out and in
    most = max(most, ours())
    if (child := os.fork()) == 0:
        os._exit(min(ours(), 1))
    _, status = os.waitpid(child, 0)
    assert status == 0, "a child holds memory of the card"
say(most)
'''


def test_nobody_finds_what_another_has_left(site: Site, eventually: Eventually) -> None:
    """In memory that the driver would have cleared, or that was zero. Nor does a child hold it."""
    start(site)
    site.environment = {**site.environment, "NVSHARE_SIM_ZERO": "1"}
    one = Program(site, ZEROS, before="import resource\n")
    assert one.hears() == "there"
    other = program(site, 1, None)
    await_state(site.folder / "trace", "running", other.pid, after=0)
    one.go_on()
    assert one.hears() > 0
    assert given(site)[one.popen.pid] > 0
    one.go_on()
    one.ends_well()
    finish([other])
    nothing_is_left(site, eventually)


def played(site: Site) -> tuple[Hook, OrderRecord]:
    """Two that this test plays, and the order to one of them to pass on what leaves."""
    site.start("--tq", "100ms", "--pass-from", "2MiB")
    hooks = [site.hook() for _ in range(2)]
    for hook in hooks:
        hook.hello()
        assert hook.limits.passed == 2 * MIB
        assert hook.allocate(700 * MIB)
        hook.want()
    first = hooks[0]
    pump([first], lambda: first.running)
    while (order := first.hear()) is not None and order.type is not Type.EVICT:
        first.obey(order)
    assert order is not None
    assert order.flags & Flag.PASS
    return first, order


def send(hook: Hook, order: OrderRecord, descriptor: int) -> None:
    """One block's memory, as it is said."""
    record = ReportRecord(
        Type.PASSED, number=order.number, memory=hook.memory, moved=2 * MIB)
    socket.send_fds(hook.socket, [protocol.encode_report(record)], [descriptor])
    os.close(descriptor)


def test_what_is_no_memory_is_not_taken(site: Site) -> None:
    hook, order = played(site)
    reading, writing = os.pipe()
    send(hook, order, writing)
    while hook.hear() is not None:
        continue
    os.close(reading)
    assert site.hook().hello() is not None


def test_what_nobody_claims_is_closed(site: Site, eventually: Eventually) -> None:
    hook, order = played(site)
    path = site.folder / "memory"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    folder = Path(f"/proc/{site.started[-1].pid}/fd")

    def is_held() -> bool:
        return any(link.exists() and link.samefile(path) for link in folder.iterdir())

    send(hook, order, descriptor)
    eventually(is_held)
    site.hooks[1].close()
    hook.obey(order)
    eventually(lambda: not is_held())
    assert "dropped" not in site.log.read_text()
