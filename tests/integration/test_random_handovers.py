# SPDX-License-Identifier: Apache-2.0
"""Random orders to four programs of four threads each, which compare every byte.

Programs, library and simulated driver run as they are shipped, and under each
sanitizer. The daemon is replaced by commander.py, which sends random orders.
"""

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvshared.hook.protocol import NO_UUID
from nvshared.units import MIB
from tests.integration.commander import Commander
from tests.integration.conftest import Site, compile_faulty_disk, uuid_of
from tests.integration.fakehook import PATIENCE

LIBHOOK = Path(__file__).resolve().parents[2] / "libhook"
# Number of turns in each test, in place of its default; 10,000 take half an hour under TSan.
ASKED = int(os.environ.get("NVSHARE_TEST_TURNS", "0"))
PROGRAMS = 4
SECOND_CARD = uuid_of(1)
CAPACITY = 56 * MIB                     # two of the four programs fit, with their slabs
# For sanitized programs: the preloaded library comes before the sanitizer's, and a program that is
# killed frees no memory.
SANITIZED = {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0:halt_on_error=1",
             "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"}
# Faults of disk.c, each in force for a tenth of the turns.
FAULTS = ("", "short", "", "fails", "pwrite", "", "fails", "short", "pwrite", "")


@contextmanager
def built(sanitizer: str) -> Iterator[Path]:
    """The folder of the build; made by the same command that `make build` uses."""
    folder = LIBHOOK / f"build{'-' * bool(sanitizer)}{sanitizer}"
    # Several pytest processes may run at once, and two makes would write the same file.
    make = ["make", "-C", str(LIBHOOK), "-j2", f"SANITIZE={sanitizer}"]
    subprocess.run(["flock", str(LIBHOOK), *make], check=True, capture_output=True)
    yield folder


def start(
    build: Path, path: Path, simulator: Path, seed: int, disk: Path | None = None, *,
    seconds: int = 3600, megabytes: int = 24, keep_freed_ms: str = "", second_tier: bool = False,
) -> subprocess.Popen[str]:
    """Starts the program of libhook/tests/stress. `disk`: the library of disk.c."""
    library = build / ("tiered" * second_tier) / "libnvshare.so"
    return subprocess.Popen(
        [str(build / "stress"), "--seed", str(seed), "--threads", "4", "--seconds", str(seconds),
         "--megabytes", str(megabytes)],
        env={
            **os.environ,
            "LD_PRELOAD": " ".join(map(str, (*filter(None, [disk]), library))),
            "NVSHARE_TEST_DISK": str(simulator),
            "NVSHARE_TEST_TIER": str(simulator / "second-tier"),
            "LD_LIBRARY_PATH": str(build / "simulator"),
            "NVSHARE_SOCKET": str(path),
            # Half of the programs may allocate beyond the card.
            "NVSHARE_ENABLE_SINGLE_OVERSUB": str(seed % 2),
            "NVSHARE_SIM_DIR": str(simulator),
            "NVSHARE_SIM_MEMORY": "256M",
            "NVSHARE_SIM_COPY_RATE": "0",
            **SANITIZED,
            **({"NVSHARE_KEEP_FREED_MS": keep_freed_ms} if keep_freed_ms else {}),
        },
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(commander: Commander, programs: list[subprocess.Popen[str]]) -> list[str]:
    """Sends SIGTERM: each program compares its memory once more, under random orders, and ends."""
    commander.ending = True
    for program in programs:
        program.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while any(program.poll() is None for program in programs):
        assert time.monotonic() < deadline, "a program does not end"
        commander.step()
    said = []
    for program in programs:
        output, errors = program.communicate()
        assert program.returncode == 0, f"exit code {program.returncode}\n{errors[-4000:]}"
        said.append(output)
    return said


def play(commander: Commander, programs: list[subprocess.Popen[str]], turns: int) -> None:
    """Sends orders until clients have begun `turns` more turns."""
    goal, last, moved = commander.turns + turns, commander.turns, time.monotonic()
    while commander.turns < goal:
        commander.step()
        if commander.turns != last:
            last, moved = commander.turns, time.monotonic()
        dead = [program for program in programs if program.poll() is not None]
        if dead:
            _, errors = dead[0].communicate()
            pytest.fail(f"a program ended with {dead[0].returncode}: {errors[-4000:]}")
        assert time.monotonic() - moved < PATIENCE, f"no client gets a turn: {commander.hooks}"


@contextmanager
def disk_fault(folder: Path, name: str) -> Iterator[None]:
    """Gives the programs' disk a fault of disk.c; "": none."""
    if name:
        (folder / name).touch()
    yield
    if name:
        (folder / name).unlink()


# Without all tiers, blocks are evicted to host memory only. With all tiers they are also evicted to
# memory that another GPU lends, and stored in files, both up to limits that change; the disk also
# fails, hangs or cuts requests short, and programs are killed. With a second tier, the library has
# one more tier, of this test alone (libhook/tests/tier/second.c).
@pytest.mark.parametrize(("sanitizer", "turns", "driver", "all_tiers", "second_tier"), [
    ("", 400, "580", True, False), ("", 200, "535", False, False), ("", 200, "580", True, True),
    *(pytest.param(*one, tiers, False, marks=pytest.mark.long)
      for tiers in (False, True) for one in (
        *(("", 2000, driver) for driver in ("580", "570", "550", "535")),
        ("thread", 400, "580"), ("thread", 400, "535"),
        ("address", 800, "580"), ("address", 800, "535"),
        ("locks", 800, "580"))),
    *(pytest.param(sanitizer, 400, "580", True, True, marks=pytest.mark.long)
      for sanitizer in ("thread", "address")),
])
def test_random_daemon_orders_to_many_programs_keep_every_byte(
    sanitizer: str, turns: int, driver: str, all_tiers: bool, second_tier: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NVSHARE_SIM_DRIVER", driver)
    with built(sanitizer) as build:
        monkeypatch.setenv("NVSHARE_SIM_GPUS", "2")
        commander = Commander(
            tmp_path / "socket", CAPACITY, 24 * MIB, seed=7,
            lender=SECOND_CARD if all_tiers else NO_UUID, disk=tmp_path if all_tiers else None)
        commander.disk_fails = all_tiers
        disk = compile_faulty_disk(tmp_path) if all_tiers else None
        seeds = itertools.count()

        def start_next() -> subprocess.Popen[str]:
            return start(build, tmp_path / "socket", tmp_path, next(seeds), disk,
                         second_tier=second_tier)

        programs = [start_next() for _ in range(PROGRAMS)]
        try:
            for fault in FAULTS:
                with disk_fault(tmp_path, fault if all_tiers else ""):
                    play(commander, programs, (ASKED or turns) // len(FAULTS))
                    if all_tiers and fault == "pwrite":
                        programs.append(start_next())
                        killed = programs.pop(0)
                        killed.kill()
                        killed.communicate()
                        # until the commander has seen the end of its connection
                        while commander.receive(0):
                            pass
                commander.random.choice((commander.restart, commander.take_over))()
            said = [json.loads(line) for line in finish(commander, programs)]
        finally:
            for program in programs:
                program.kill()
                program.communicate()
            commander.close()
    assert (tmp_path / "second-tier").exists() == second_tier
    # Sanitized programs do less per turn, so rare events may not have occurred.
    thorough = not sanitizer and turns > 1000
    assert commander.bytes_moved > (10 if thorough else 3) * CAPACITY
    assert turns < 400 or commander.bytes_saved > 0     # EVICT with KEEP is rare on a busy machine
    assert commander.beyond > 0
    assert not all_tiers or min(commander.borrowed, commander.returned, commander.cleaned) > 0
    assert not all_tiers or min(commander.stored, commander.emptied) > 0
    assert not (all_tiers and thorough) or commander.disk_failures > 0
    often = () if sanitizer else ("graphs", "shared", "pooled")
    for event in (*often, "mapped_elsewhere", "reused", "touched") if thorough else often:
        assert sum(one[event] for one in said) > 0, f"nothing of this was tried: {event}"
    print(f"{said}\n{commander.turns} turns, {commander.orders} orders, "
          f"{commander.bytes_moved >> 20} MiB moved, {commander.bytes_saved >> 20} "
          f"ready, {commander.refused} allocations refused, "
          f"{commander.reopened} drains given up, {commander.yielded} moves cut short, "
          f"{commander.copying} times it was told that a program copies, "
          f"at most {commander.stored >> 20} MiB in a file, {commander.emptied} times emptied")


@pytest.mark.parametrize(("sanitizer", "visitors"), [
    ("", 1),
    pytest.param("", 5, marks=pytest.mark.long),
    pytest.param("thread", 1, marks=pytest.mark.long),      # slow under this sanitizer
    pytest.param("address", 2, marks=pytest.mark.long),
])
def test_program_that_reuses_freed_memory_keeps_every_byte_while_other_programs_come_and_go(
    site_with_reserves: Site, sanitizer: str, visitors: int
) -> None:
    """Here the card has room for freed memory, which the programs above have to give up."""
    site = site_with_reserves
    cards = Path(site.environment["NVSHARE_SIM_DIR"])

    def begin(seed: int, seconds: int) -> subprocess.Popen[str]:
        # Freed memory stays mapped so briefly that some is unmapped before the program reuses it.
        return start(build, site.socket, cards, seed, seconds=seconds, megabytes=64,
                     keep_freed_ms="20")

    def end(program: subprocess.Popen[str]) -> dict[str, int]:
        said, errors = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, errors[-4000:]
        found: dict[str, int] = json.loads(said)
        return found

    with built(sanitizer) as build:
        site.start("--tq", "50ms", "--capacity", "120MiB")
        one = begin(1, 3600)
        site.started.append(one)
        for seed in range(visitors):
            end(begin(2 + seed, 1))
        one.send_signal(signal.SIGTERM)
        assert end(one)["churned"] > 0
