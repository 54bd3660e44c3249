# SPDX-License-Identifier: Apache-2.0
"""The demonstration: two programs that do not fit together share one GPU, in three acts.

They run together under nvshared, one after the other, and together without it. A program computes
from the same seed in each act, so its results must be the same. Hand-overs and moved bytes are
counted from the daemon's trace. A signal cancels the main task, but only where it waits, in blocks
that at their end remove processes and files. Each child process has its own session, so Ctrl-C
reaches only this process, which ends the programs before the daemon. If this process is killed, the
kernel kills the children (PR_SET_PDEATHSIG)."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

from nvshared import library
from nvshared.errors import NvshareError
from nvshared.machine import host
from nvshared.quantity import rounded
from nvshared.tui.tables import NARROWEST, Column, size
from nvshared.units import GIB, MIB

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.asynccontextmanager
async def running(command: Sequence[str], environment: Mapping[str, str], *,
                  stdin: int = asyncio.subprocess.DEVNULL,
                  stdout: int | IO[bytes] = asyncio.subprocess.PIPE,
                  stderr: int | IO[bytes] = asyncio.subprocess.PIPE) -> AsyncIterator[Process]:
    """Runs a process while the block runs, and then kills it."""
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
LEAST = 256 * MIB                       # least `capacity` in bytes: two CUDA contexts must fit, too
HOST_SHARE = 0.5                        # part of free host memory that swapped memory takes at most
NO_DRIVER = 5                           # exit status of nvshare-workload without a driver


class DemoGPU(NamedTuple):
    name: str
    total: int                          # bytes
    capacity: int                       # bytes of `total` that the programs share
    simulated: bool
    why: str                            # why the GPU is simulated; else how much of it is used
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
    # The caller may see some of the machine's GPUs only: they are not this one.
    others = {name: text for name, text in environment.items() if name != "CUDA_VISIBLE_DEVICES"}
    return DemoGPU("a simulated GPU", SIMULATED_MEMORY, SIMULATED_MEMORY, True, why, 0, {
        **others, "LD_LIBRARY_PATH": ":".join(filter(None, path)),
        "NVSHARE_SIM_DIR": str(folder / "simulator"), "NVSHARE_SIM_GPUS": "1",
        "NVSHARE_SIM_MEMORY": str(SIMULATED_MEMORY),
        "NVSHARE_SIM_COPY_RATE": str(SIMULATED_COPY_RATE)})


def _real(environment: dict[str, str], name: str, total: int, free: int) -> DemoGPU:
    capacity = min(free, MOST, int(HOST_SHARE * host.free())) // MIB * MIB
    why = f"{rounded(capacity)} of its {rounded(total)} are "
    why += "free" if capacity > free - GIB else "used, so that it is over soon"
    return DemoGPU(name, total, capacity, False, why, free - capacity, environment)


START = 20.0                            # seconds until the daemon must be ready
READY_POLL = 0.05                       # seconds between two checks whether the daemon is ready
TRACE = "trace.jsonl"
LOG = "nvshared.log"
TQ = 2                                  # quantum in seconds; short, so that busy programs hand over
# Variables that would override the daemon's configuration file: removed from its environment.
SETTINGS = ("NVSHARE_BUS", "NVSHARE_METRICS_ENABLE", "STATE_DIRECTORY", "LISTEN_PID", "LISTEN_FDS")


@contextlib.asynccontextmanager
async def service(gpu: DemoGPU, folder: Path, bus: str = "none") -> AsyncIterator[None]:
    """Runs nvshared for the programs of `gpu`, tracing to TRACE.

    Raises NvshareError if the daemon does not start."""
    (folder / TRACE).touch()
    configuration = folder / "nvshared.conf"
    # In percent, because the capacity applies to all cards, and other cards may be smaller.
    configuration.write_text(
        f"[nvshared]\nsocket = {folder / 'nvshare.sock'}\nbus = {bus}\n"
        f"trace = {folder / TRACE}\nstate-dir = {folder / 'state'}\n"
        f"[gpu]\ntq = {TQ}\ncapacity = {100 * gpu.capacity / gpu.total:.2f}%\n")
    environment = {name: text for name, text in gpu.environment.items() if name not in SETTINGS}
    # This process may import nvshared from outside Python's default path, so pass its path on.
    environment |= {"NOTIFY_SOCKET": str(folder / "notify"),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", "nvshared", "--config", str(configuration)]
    # The daemon reports over this socket, by systemd's sd_notify, that it is ready.
    with (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
          (folder / LOG).open("wb") as file):
        notifications.setblocking(False)
        notifications.bind(str(folder / "notify"))
        async with running(command, environment, stdout=file, stderr=file) as process:
            await _until_ready(process, notifications, folder)
            yield


async def _until_ready(process: Process, notifications: socket.socket, folder: Path) -> None:
    received = b""
    try:
        async with asyncio.timeout(START):
            while process.returncode is None and b"READY=1" not in received:
                await asyncio.sleep(READY_POLL)
                with contextlib.suppress(BlockingIOError):      # no notification yet
                    received = notifications.recv(4096)
    except TimeoutError:
        raise NvshareError(f"nvshared was not ready after {START:.0f} seconds") from None
    if process.returncode is not None:
        log = folder / LOG
        words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise NvshareError(f"nvshared did not start: {words[-1].removeprefix('nvshared: ')}")


Memory = dict[int, tuple[int, int]]     # by pid: resident and swapped bytes


@dataclass(slots=True)
class Handovers:
    """Reads nvshared's trace while it grows; counts hand-overs and moved bytes."""

    trace: TextIO
    handovers: int = 0                  # turns that follow a turn of another program
    bytes_in: int = 0
    bytes_out: int = 0
    memory: Memory = field(default_factory=dict)
    _holder: int = 0
    _cut: str = ""                      # the incomplete last line of the trace; "": none

    def new(self) -> Iterator[int]:
        """Reads the lines written since the last call; yields the pid of each turn that began."""
        *lines, self._cut = (self._cut + self.trace.read()).split("\n")
        for line in map(json.loads, lines):
            pid = line.get("pid", 0)
            if memory := line.get("memory"):
                # Memory that was never written is neither resident nor swapped.
                swapped = min(memory["allocated"] - memory["resident"], memory["host"])
                self.memory[pid] = memory["resident"] + memory["pinned"], swapped
            match line.get("event"), line.get("report"):
                case "evicted", _:
                    self.bytes_out += line["bytes"]
                case "loaded", _:
                    self.bytes_in += line["bytes"]
                case "left", _:
                    self.memory.pop(pid, None)
                case _, "turn-started":
                    self.handovers += self._holder not in (0, pid)
                    self._holder = pid
                    yield pid


class EventLines:
    """Prints a line for each event of an act, with the seconds since the act began."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._start = 0.0
        self.tasks: dict[int, Task] = {}        # by process

    def act(self, title: str) -> None:
        self.tasks.clear()
        self._start = time.monotonic()
        print(f"\n{title}", file=self._file, flush=True)

    def say(self, task: Task, words: str) -> None:
        seconds = time.monotonic() - self._start
        print(f"{seconds:6.1f} s  {task.name}{words}", file=self._file, flush=True)

    def turn_started(self, holder: int, memory: Memory) -> None:
        """Says that a turn of the process `holder` began, and where the programs' memory is."""
        parts = []
        for pid, task in self.tasks.items():
            if pid in memory:
                resident, swapped = memory[pid]
                away = f" and {size(swapped)} in host memory" if swapped else ""
                parts.append(f"{task.name} has {size(resident)} on it{away}")
        if holder in self.tasks:
            self.say(self.tasks[holder], f" holds the GPU; {', '.join(parts)}")


SHARE = 0.7                             # part of the GPU's memory that each program needs
STEPS = 4
STEP_GPU_US = 700_000                   # microseconds that a step's kernels spin besides computing
STEP_CPU_MS = 700                       # milliseconds of CPU time of a step
CHUNKS = 12                             # most allocations that a program makes
BLOCK = 2 * MIB                         # granularity of device memory; the driver rounds sizes up
POLL = 0.2                              # seconds between two readings of the trace
HOLD_CHUNK = GIB                        # bytes of one allocation of the ballast


class Act(NamedTuple):
    name: str
    outcomes: tuple[Outcome, Outcome]
    seconds: float                      # from the act's start until all programs had results
    handovers: int = 0
    bytes_moved: int = 0                # sum of the bytes copied onto and off the GPU


def tasks(gpu: DemoGPU) -> tuple[Task, Task]:
    memory = int(gpu.capacity * SHARE) // BLOCK * BLOCK
    chunk = (memory // CHUNKS // BLOCK + 1) * BLOCK
    chunks = -(-memory // chunk)

    def task(name: str, seed: int) -> Task:
        return Task(name, memory, chunk, STEPS, STEP_CPU_MS, STEP_GPU_US // chunks, seed)

    return task("A", 1), task("B", 2)


async def together(gpu: DemoGPU, folder: Path, lines: EventLines) -> Act:
    async with service(gpu, folder):
        with (folder / TRACE).open(encoding="utf-8") as trace:
            handovers = Handovers(trace)
            first, second = (_perform(task, gpu.sharing(), lines) for task in tasks(gpu))
            performing = asyncio.gather(first, second)
            try:
                ended = False
                while not ended:
                    ended = performing.done()
                    for holder in handovers.new():
                        lines.turn_started(holder, handovers.memory)
                    await asyncio.wait([performing], timeout=POLL)
                outcomes = await performing
            finally:
                performing.cancel()
                await asyncio.gather(performing, return_exceptions=True)
    moved = handovers.bytes_in + handovers.bytes_out
    return Act("together, with nvshared", outcomes, max(one.seconds for one in outcomes),
               handovers.handovers, moved)


async def in_turn(gpu: DemoGPU, lines: EventLines) -> Act:
    first, second = [await _perform(task, gpu.environment, lines) for task in tasks(gpu)]
    return Act("one after the other", (first, second), first.seconds + second.seconds)


async def unshared(gpu: DemoGPU, lines: EventLines) -> Act:
    """Act 3, without nvshared: program 2 starts once program 1 has allocated its memory."""
    first, second = tasks(gpu)
    async with contextlib.AsyncExitStack() as stack:
        if gpu.ballast >= GIB:
            await stack.enter_async_context(_ballast(gpu))
        allocated = asyncio.Event()
        performing = asyncio.create_task(_perform(first, gpu.environment, lines, allocated))
        try:
            await allocated.wait()
            two = await _perform(second, gpu.environment, lines)
            outcomes = (await performing, two)
        finally:
            performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
    return Act("together, without nvshared", outcomes, max(one.seconds for one in outcomes))


async def _perform(task: Task, environment: Mapping[str, str], lines: EventLines,
                   allocated: asyncio.Event | None = None) -> Outcome:
    """Runs the program to its end. Sets `allocated` once the program has its memory, or ends."""
    allocated = allocated or asyncio.Event()
    loop = asyncio.get_running_loop()
    start = loop.time()
    seconds, checksum, right = 0.0, "", False
    try:
        async with running(task.command(), environment) as process:
            lines.tasks[process.pid] = task
            assert process.stdout is not None
            errors = asyncio.create_task(errors_of(process))
            async for line in process.stdout:
                event = json.loads(line)
                match event["event"]:
                    case "allocated":
                        allocated.set()
                    case "finished":
                        seconds, checksum = loop.time() - start, event["checksum"]
                        lines.say(task, ": checking every word on the CPU")
                    case "checked":
                        right = event["right"]
                        lines.say(task, ": right" if right else ": WRONG")
            status = await process.wait()
            *_, words = (await errors).splitlines() or [""]
    finally:
        allocated.set()
    message = words.removeprefix("nvshare-workload: ")
    if status != 0:
        lines.say(task, f": {message or f'ended with status {status}'}")
    return Outcome(task, status, checksum, right and status == 0, seconds, message)


@contextlib.asynccontextmanager
async def _ballast(gpu: DemoGPU) -> AsyncIterator[None]:
    """Occupies the part of a large card's memory that the two programs shall not use."""
    command = [
        str(library.workload()), "--json", "--hold",
        "--memory", str(gpu.ballast), "--chunk", str(HOLD_CHUNK)]
    async with running(command, gpu.environment, stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        if not await process.stdout.readline():
            words = await errors_of(process)
            raise NvshareError(f"the rest of the GPU's memory cannot be occupied: {words}")
        yield


COLUMNS = [
    Column("TWO PROGRAMS", lambda act: act.name),
    Column("SECONDS", lambda act: f"{act.seconds:.1f}", right=True),
    Column("HAND-OVERS", lambda act: str(act.handovers or ""), right=True),
    Column("MOVED", lambda act: size(act.bytes_moved) if act.bytes_moved else "", right=True),
    Column("RESULTS", lambda act: ", ".join(one.verdict for one in act.outcomes),
           shrinks_to=NARROWEST),
]


class Report(NamedTuple):
    gpu: DemoGPU
    shared: Act
    in_turn: Act
    unshared: Act

    def faults(self) -> list[str]:
        found = [
            f"{act.name}: {outcome.verdict}"
            for act in self[1:] for number, outcome in enumerate(act.outcomes)
            # Without nvshared the second program may run out of memory; the first must succeed.
            if not outcome.right and not (act is self.unshared and number and outcome.out_of_memory)
        ]
        found += [
            f"{one.task.name} has the checksum {one.checksum or 'none'} together and "
            f"{other.checksum or 'none'} alone"
            for one, other in zip(self.shared.outcomes, self.in_turn.outcomes, strict=True)
            if one.checksum != other.checksum]
        return found

    def as_dict(self) -> dict[str, Any]:
        """The report as --json prints it, in bytes and seconds."""
        return {
            "gpu": self.gpu.name, "simulated": self.gpu.simulated, "note": self.gpu.why,
            "memory": self.gpu.capacity, "faults": self.faults(), "acts": [{
                "name": act.name, "seconds": round(act.seconds, 3), "hand_overs": act.handovers,
                "bytes_moved": act.bytes_moved, "programs": [{
                    "name": one.task.name, "memory": one.task.memory,
                    "seconds": round(one.seconds, 3), "right": one.right,
                    "out_of_memory": one.out_of_memory, "checksum": one.checksum,
                    "status": one.status, "message": one.message} for one in act.outcomes],
            } for act in self[1:]]}


LONGEST_TMPDIR = 60                     # characters; a path of a socket below it has at most 107


def run(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Runs the demonstration. Raises NvshareError, or SystemExit after a signal."""
    received: list[signal.Signals] = []

    async def main() -> Report:
        task = asyncio.current_task()
        assert task is not None

        def interrupt(number: signal.Signals) -> None:
            if not received:
                task.cancel()
            received.append(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
        return await play(simulate=simulate, file=file)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:      # interrupt() cancelled the task
        raise SystemExit(128 + received[0]) from None


async def play(*, simulate: bool, file: TextIO = sys.stdout) -> Report:
    """Runs and prints the three acts. `simulate`: on a simulated GPU, even beside a real one.

    Raises NvshareError if an act cannot run."""
    parent = "/tmp" if len(tempfile.gettempdir()) > LONGEST_TMPDIR else None
    with tempfile.TemporaryDirectory(prefix="nvshare-demo-", dir=parent) as name:
        folder = Path(name)
        gpu = await find(folder, simulate)
        if gpu.capacity < LEAST:
            raise NvshareError(
                f"{gpu.name} is too small for a demonstration: {rounded(gpu.capacity)} of memory "
                f"can be used, and {rounded(LEAST)} are needed", "try again with --simulate")
        memory = tasks(gpu)[0].memory
        is_what = "is simulated: " if gpu.simulated else f"is {gpu.name}; "
        print(f"The GPU {is_what}{gpu.why}.\nTwo programs share it. Each needs {memory // MIB} of "
              f"{gpu.capacity // MIB} MiB of its memory, {memory / gpu.capacity:.0%}.", file=file,
              flush=True)
        lines = EventLines(file)
        lines.act("Together, with nvshared: they take turns.")
        first = await together(gpu, folder, lines)
        lines.act("One after the other.")
        second = await in_turn(gpu, lines)
        lines.act("Together, without nvshared: the second finds no memory.")
        third = await unshared(gpu, lines)
        return Report(gpu, first, second, third)
