# SPDX-License-Identifier: Apache-2.0
"""Measures parking to a disk and waking from it: python -m bench.tiers.measure.

In a round, a program's swapped memory moves to its file and is loaded again. Before the first round
and after each round a plain loop, with requests of the same size and number in flight, writes and
reads a file in the same folder, and so does fio if installed. A round is compared with the mean of
the rates before and after it. Prints each round, and writes JSON with --output. Exit status 1 if a
byte was wrong.

With --stages the plain loop also writes from memory as large as the program's (wide), from the same
memory after the driver has page-locked it (locked), and over blocks of its file that it has written
before (again); and a program on the simulated card parks and wakes (simulated). The first rate
that is lower than the rate before it shows the stage that costs time.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench import process
from bench.harness import machine
from nvshared.hook.protocol import Type
from nvshared.machine.disk import fault, open_file
from nvshared.units import GIB, MIB
from tests.integration.conftest import Site, simulate
from tests.integration.fakedaemon import FakeDaemon

CHUNK = 4 * MIB                         # bytes of a request, as in libhook/src/tier/disk.c
REQUESTS = 8                            # number of requests in flight, as in the same file


def share_out(size: int, carry: Callable[[int, memoryview], int],
              memory: memoryview | None = None) -> float:
    """Calls carry(offset, buffer) for each chunk, in several threads. Returns GB/s.

    `memory`: contains the buffers of all chunks; None: each thread has one buffer.
    """
    offsets = iter(range(0, size, CHUNK))
    failed: list[OSError] = []

    def work() -> None:
        buffer = allocate(CHUNK) if memory is None else memory
        try:
            for offset in offsets:
                at = 0 if memory is None else offset
                if carry(offset, buffer[at:at + CHUNK]) != CHUNK:
                    raise OSError(f"a request at {offset} was cut short")
        except OSError as error:
            failed.append(error)

    began = time.monotonic()
    running = [threading.Thread(target=work) for _ in range(REQUESTS)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    if failed:
        raise failed[0]
    return size / (time.monotonic() - began) / 1e9


def plain(folder: Path, size: int, memory: memoryview | None = None) -> dict[str, float]:
    """Measures the disk without this project, with a file of blocks allocated before."""
    file = open_file(folder)

    def write(offset: int, buffer: memoryview) -> int:
        return os.pwrite(file, buffer, offset)

    try:
        os.posix_fallocate(file, 0, size)
        rates = {
            "plain_write_gbps": share_out(size, write, memory),
            "plain_read_gbps": share_out(
                size, lambda offset, buffer: os.preadv(file, [buffer], offset), memory)}
        if memory is None:
            rates["again_write_gbps"] = share_out(size, write)
            began = time.monotonic()
            os.ftruncate(file, 0)       # slow if the disk gets TRIM requests for freed blocks
            rates["truncate_s"] = time.monotonic() - began
        return rates
    finally:
        os.close(file)


def stages(folder: Path, size: int, memory: memoryview, locked: memoryview) -> dict[str, float]:
    """Measures plain() from memory as large as the program's, and from page-locked memory."""
    return {
        key.replace("plain", kind): rate
        for kind, source in (("wide", memory), ("locked", locked))
        for key, rate in plain(folder, size, source).items()}


def allocate(size: int) -> memoryview:
    """Returns memory that is aligned, for O_DIRECT, and of huge pages, like the library's own."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    noise = os.urandom(CHUNK)
    for _ in range(0, size, CHUNK):
        memory.write(noise)
    return memoryview(memory)


def page_lock(memory: memoryview) -> memoryview:
    """Registers memory with the driver, in a context of this process. Returns the memory."""
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for result in (
        cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), 0),
    ):
        if result:
            raise SystemExit(f"memory cannot be page-locked: CUDA error {result}")
    return memory


def fio(folder: Path, size: int) -> dict[str, float]:
    """Measures like plain(), by fio, if installed. fio also allocates its file first."""
    if shutil.which("fio") is None:
        return {}
    found = {}
    for kind in ("write", "read"):
        run = subprocess.run(
            ["fio", "--name=nvshare", f"--filename={folder}/fio", f"--rw={kind}", "--direct=1",
             f"--bs={CHUNK}", f"--size={size}", "--ioengine=io_uring", f"--iodepth={REQUESTS}",
             "--output-format=json"], capture_output=True, text=True, check=True)
        found[f"fio_{kind}_gbps"] = json.loads(run.stdout)["jobs"][0][kind]["bw_bytes"] / 1e9
    (folder / "fio").unlink()
    return found


class Bench:
    def __init__(self, runs: Path, disk: Path, size: int, total: int,
                 environment: dict[str, str]) -> None:
        self.size, self._disk = size, disk
        self.wrong = 0
        self._stored = False            # the program has got the descriptor of its file
        self.site = Site(runs, environment, [])
        self.daemon = FakeDaemon(self.site, total, host_slab=0)     # 0: the library's own size
        self.program = self.site.program(
            [sys.executable, Path(__file__).with_name("program.py"), size // MIB], stderr=None)
        self.daemon.accept()
        self._hear()
        self.empty = process.size(self.program.pid, "VmRSS")
        self._go_on()
        self._hear()

    def _hear(self) -> str:
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        if not line:
            raise SystemExit(f"the program ended with {self.program.wait()}")
        return line

    def _go_on(self) -> None:
        assert self.program.stdin is not None
        print(file=self.program.stdin, flush=True)

    def round(self) -> dict[str, Any]:
        daemon = self.daemon
        daemon.stop()
        began = time.monotonic()
        moved = daemon.move(Type.EVICT).moved
        evicted = time.monotonic()
        if self._stored:
            daemon.store(self.size)
        else:
            file = open_file(self._disk)
            daemon.store(self.size, file)
            os.close(file)
            self._stored = True
        daemon.until_true(lambda: daemon.stored.error != 0 or daemon.stored.moved > 0)
        first = time.monotonic()
        daemon.until_true(lambda: daemon.stored.error != 0 or daemon.stored.moved == self.size)
        stored = time.monotonic()
        if daemon.stored.error:
            raise SystemExit(f"storing: {os.strerror(daemon.stored.error)}")
        daemon.until_true(lambda: daemon.memory.host == 0)
        released = time.monotonic()
        rss, host = process.size(self.program.pid, "VmRSS"), daemon.memory.host
        loading = time.monotonic()
        daemon.move(Type.LOAD, daemon.room)
        loaded = time.monotonic()
        daemon.run()
        self._go_on()
        self.wrong += int(self._hear())
        return {
            "evict_gbps": moved / (evicted - began) / 1e9,
            "park_gbps": self.size / (stored - evicted) / 1e9,
            "first_block_s": first - evicted,
            "released_s": released - stored,
            "wake_gbps": self.size / (loaded - loading) / 1e9,
            "parked_rss_mib": (rss - self.empty) / MIB,
            "parked_host_mib": host / MIB, "most_host_mib": daemon.host_most / MIB}

    def close(self) -> None:
        self.site.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8.0, help="of the program's memory")
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="folder of the files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--total", type=float, default=80.0, help="GiB of the card")
    parser.add_argument("--stages", action="store_true", help="measure each stage of parking")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    size = int(options.gib * GIB) // (32 * MIB) * (32 * MIB)
    if problem := fault(options.disk, size):
        parser.error(problem)

    def disk_alone() -> dict[str, float]:
        return plain(options.disk, size) | fio(options.disk, size)

    result: dict[str, Any] = machine() | {"gib": size / GIB, "rounds": []}
    with tempfile.TemporaryDirectory() as runs, contextlib.ExitStack() as stack:
        def bench(name: str, environment: dict[str, str]) -> Bench:
            (folder := Path(runs, name)).mkdir()
            opened = Bench(folder, options.disk, size, int(options.total * GIB), environment)
            stack.callback(opened.close)
            return opened

        programs = {"": bench("card", dict(os.environ))}
        if options.stages:
            wide, locked = allocate(size), page_lock(allocate(size))
            cards, _ = simulate(Path(runs, "cards"), 1, int(options.total * GIB))
            programs["simulated_"] = bench("simulated", cards)
        before = disk_alone()
        for _ in range(options.rounds):
            figures = {kind + key: value for kind, program in programs.items()
                       for key, value in program.round().items()}
            if options.stages:
                figures |= stages(options.disk, size, wide, locked)
            after = disk_alone()
            figures |= {key: (before[key] + after[key]) / 2 for key in after}
            before = after
            result["rounds"].append(figures)
            print(json.dumps({key: round(value, 2) for key, value in figures.items()}), flush=True)
    wrong = sum(program.wrong for program in programs.values())
    result["wrong_pieces"] = wrong
    rounds = result["rounds"]
    for ours, kind in (("park_gbps", "write"), ("wake_gbps", "read")):
        print(f"{ours}: {median(one[ours] for one in rounds):.2f} GB/s (median)", *(
            f"{median(one[ours] / one[theirs] for one in rounds):.0%} of {theirs}"
            for theirs in (f"plain_{kind}_gbps", f"fio_{kind}_gbps") if theirs in rounds[0]
        ), sep=", ")
    if options.stages:
        for key in sorted(key for key in rounds[0] if key.endswith("_gbps")):
            print(f"{key}: {median(one[key] for one in rounds):.2f} (median)")
    print(f"wrong pieces: {wrong}")
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
