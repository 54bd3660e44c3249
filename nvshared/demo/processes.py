# SPDX-License-Identifier: Apache-2.0
"""The programs, the GPU (real if one works) and the private daemon of the demonstration.

Each child process has its own session, so Ctrl-C reaches only this process, which ends the programs
before the daemon. If this process is killed, the kernel kills the children (PR_SET_PDEATHSIG)."""

import asyncio
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from nvshared import library
from nvshared.errors import NvshareError
from nvshared.quantity import rounded
from nvshared.units import GIB, KIB, MIB

PR_SET_PDEATHSIG = 1
PATIENCE = 3.0                          # seconds between running()'s `stop` and SIGKILL

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.asynccontextmanager
async def running(command: Sequence[str], environment: Mapping[str, str], *,
                  stdin: int | IO[bytes] | None = asyncio.subprocess.DEVNULL,
                  stdout: int | IO[bytes] | None = asyncio.subprocess.PIPE,
                  stderr: int | IO[bytes] | None = asyncio.subprocess.PIPE,
                  stop: signal.Signals = signal.SIGKILL) -> AsyncIterator[Process]:
    """Runs a process while the block runs. Then sends `stop`, and after PATIENCE SIGKILL."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:      # the parent died before prctl()
            os.kill(os.getpid(), signal.SIGKILL)

    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdin=stdin, stdout=stdout, stderr=stderr,
        start_new_session=True, preexec_fn=prepare)
    try:
        yield process
    finally:
        try:
            if process.returncode is None and stop != signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(stop)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), PATIENCE)
        finally:
            await _end(process)


async def _end(process: Process) -> None:
    """Kills the process's group, and waits for the process, even if cancelled meanwhile."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    cancelled = False
    while process.returncode is None:
        try:
            await process.wait()
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def errors_of(process: Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode(errors="replace").strip()


OUT_OF_MEMORY = 3                       # exit status of nvshare-workload when an allocation fails

Event = dict[str, Any]                  # one line of nvshare-workload --json


class Task(NamedTuple):
    """A run of nvshare-workload. Each field but `name` is an option of that program."""

    name: str                           # shown to the user
    memory: int                         # bytes
    chunk: int                          # bytes
    steps: int
    cpu_ms: int                         # milliseconds of CPU time after each step
    kernel_us: int                      # microseconds that a chunk's kernel spins besides computing
    seed: int

    def command(self) -> list[str]:
        _, *options = self._asdict().items()
        words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options]
        return [str(library.workload()), "--json", *(word for pair in words for word in pair)]


class Outcome(NamedTuple):
    task: Task
    status: int                         # exit status, negative for a signal
    checksum: str                       # checksum of the result; "": no result was printed
    right: bool                         # every chunk equals the CPU's result
    seconds: float                      # from the start to the result, without the result's check
    message: str                        # the last line on stderr

    @property
    def out_of_memory(self) -> bool:
        return self.status == OUT_OF_MEMORY

    @property
    def verdict(self) -> str:
        if self.out_of_memory:
            return f"{self.task.name} out of memory"
        if self.right:
            return f"{self.task.name} right"
        if self.checksum and not self.message:
            return f"{self.task.name} WRONG"
        return f"{self.task.name} failed: {self.message or f'status {self.status}'}"


SIMULATED_MEMORY = 256 * MIB
SIMULATED_COPY_RATE = 4 * GIB           # bytes per second in each direction
MOST = 8 * GIB                          # most bytes of a real card to share: the demo stays short
LEAST = 256 * MIB                       # bytes that `capacity` must have: a context must fit, too
HOST_SHARE = 0.5                        # part of free host memory that swapped memory takes at most
NO_DRIVER = 5                           # exit status of nvshare-workload without a driver


class DemoGPU(NamedTuple):
    name: str
    total: int                          # bytes
    capacity: int                       # bytes of `total` that the programs share
    simulated: bool
    why: str                            # why the GPU is simulated, or how much of it is used
    ballast: int                        # free bytes to occupy so that `capacity` bytes stay free
    environment: dict[str, str]         # variables of a program that uses the GPU without nvshared

    def sharing(self) -> dict[str, str]:
        return library.preloaded(self.environment)


async def find(folder: Path, simulate: bool) -> DemoGPU:
    """The real GPU, or (always with `simulate`) a simulated GPU with its state in `folder`.

    Raises NvshareError if the real GPU works but has no free memory."""
    # No daemon serves this socket yet: programs must not find the machine's own nvshared.
    environment = {**os.environ, "NVSHARE_SOCKET": str(folder / "nvshare.sock")}
    environment[library.PRELOAD] = ":".join(library.preloads(environment))
    if simulate:
        return _simulated(environment, folder, "as requested")
    command = [str(library.workload()), "--json", "--memory", "1MiB", "--steps", "1"]
    async with running(command, environment) as process:
        output, errors = await process.communicate()
    *_, words = errors.decode(errors="replace").strip().splitlines() or [""]
    answer: Event = json.loads(output.splitlines()[0]) if output else {}
    status = process.returncode
    if status == OUT_OF_MEMORY:
        raise NvshareError(
            "the GPU has no memory left for a demonstration", "try again with --simulate")
    if status != 0:
        return _simulated(
            environment, folder, "this machine has no NVIDIA driver" if status == NO_DRIVER else
            f"the GPU of this machine does not work: {words}")
    return _real(environment, str(answer["gpu"]), int(answer["total"]), int(answer["free"]))


def _simulated(environment: dict[str, str], folder: Path, why: str) -> DemoGPU:
    path = [str(library.simulator()), environment.get("LD_LIBRARY_PATH", "")]
    return DemoGPU("a simulated GPU", SIMULATED_MEMORY, SIMULATED_MEMORY, True, why, 0, {
        **environment, "LD_LIBRARY_PATH": ":".join(filter(None, path)),
        "NVSHARE_SIM_DIR": str(folder / "simulator"), "NVSHARE_SIM_GPUS": "1",
        "NVSHARE_SIM_MEMORY": str(SIMULATED_MEMORY),
        "NVSHARE_SIM_COPY_RATE": str(SIMULATED_COPY_RATE)})


def _real(environment: dict[str, str], name: str, total: int, free: int) -> DemoGPU:
    available = re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if available is None:
        raise NvshareError("/proc/meminfo does not say how much memory is available")
    host_memory = int(HOST_SHARE * int(available[1]) * KIB)
    capacity = min(free, MOST, host_memory) // MIB * MIB
    why = f"{rounded(capacity)} of its {rounded(total)} are "
    why += "free" if capacity > free - GIB else "used, so that it is over soon"
    return DemoGPU(name, total, capacity, False, why, free - capacity, environment)


START = 20.0                            # seconds until the daemon must be ready
POLL = 0.05                             # seconds between two checks whether the daemon is ready
TRACE = "trace.jsonl"
TQ = 2                                  # quantum in seconds; short, so that busy programs hand over
# Variables that would override the daemon's configuration file: removed from its environment.
SETTINGS = ("NVSHARE_BUS", "NVSHARE_METRICS_ENABLE", "STATE_DIRECTORY", "LISTEN_PID", "LISTEN_FDS")


@contextlib.asynccontextmanager
async def service(gpu: DemoGPU, folder: Path) -> AsyncIterator[str]:
    """Runs nvshared for the programs of `gpu`, tracing to TRACE. Yields its bus; "": no bus.

    Raises NvshareError if the daemon does not start."""
    (folder / TRACE).touch()
    async with contextlib.AsyncExitStack() as stack:
        bus = ""
        if program := shutil.which("dbus-daemon"):
            bus = await _start_bus(stack, program, folder)
        configuration = folder / "nvshared.conf"
        # In percent, because the capacity applies to all cards, and other cards may be smaller.
        configuration.write_text(
            f"[nvshared]\nsocket = {folder / 'nvshare.sock'}\nbus = {bus or 'none'}\n"
            f"trace = {folder / TRACE}\nstate-dir = {folder / 'state'}\n"
            f"[gpu]\ntq = {TQ}\ncapacity = {100 * gpu.capacity / gpu.total:.2f}%\n")
        await _start_daemon(stack, gpu, folder, configuration)
        yield bus


async def _start_bus(stack: contextlib.AsyncExitStack, program: str, folder: Path) -> str:
    process = await stack.enter_async_context(running(
        [program, "--session", f"--address=unix:path={folder / 'bus'}", "--nofork",
         "--print-address=1"],
        os.environ, stop=signal.SIGTERM))
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    if not address:
        words = await errors_of(process)
        raise NvshareError(f"a message bus for the demonstration did not start: {words}")
    return address


async def _start_daemon(stack: contextlib.AsyncExitStack, gpu: DemoGPU, folder: Path,
                        configuration: Path) -> None:
    # The daemon reports over this socket, by systemd's sd_notify, that it is ready.
    notifications = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    notifications.setblocking(False)
    notifications.bind(str(folder / "notify"))
    environment = {name: text for name, text in gpu.environment.items() if name not in SETTINGS}
    # This process may import nvshared from outside Python's default path, so pass its path on.
    environment |= {"NOTIFY_SOCKET": str(folder / "notify"),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    log = folder / "nvshared.log"
    with log.open("wb") as file:
        process = await stack.enter_async_context(running(
            [sys.executable, "-P", "-m", "nvshared", "--config", str(configuration)],
            environment, stdout=file, stderr=file, stop=signal.SIGTERM))
    try:
        async with asyncio.timeout(START):
            received = b""
            while process.returncode is None and b"READY=1" not in received:
                await asyncio.sleep(POLL)
                with contextlib.suppress(BlockingIOError):      # no notification yet
                    received = notifications.recv(4096)
    except TimeoutError:
        raise NvshareError(f"nvshared was not ready after {START:.0f} seconds") from None
    if process.returncode is not None:
        words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise NvshareError(f"nvshared did not start: {words[-1].removeprefix('nvshared: ')}")
