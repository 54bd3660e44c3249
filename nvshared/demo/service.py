# SPDX-License-Identifier: Apache-2.0
"""Runs a private nvshared for the demonstration, on a private D-Bus if dbus-daemon exists."""

import asyncio
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nvshared.demo.gpu import DemoGPU
from nvshared.demo.workload import running
from nvshared.errors import NvshareError

START = 20.0                            # seconds until the daemon must be ready
TQ = 2                                  # seconds; short, so that busy programs hand over, too
# Variables that would override the daemon's configuration file; removed.
SETTINGS = ("NVSHARE_BUS", "NVSHARE_METRICS_ENABLE", "STATE_DIRECTORY", "LISTEN_PID", "LISTEN_FDS")

BUS = """\
<busconfig>
  <type>session</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""

CONFIGURATION = """\
[nvshared]
socket = {socket}
bus = {bus}
trace = {trace}
state-dir = {state}
[gpu]
tq = {tq}
capacity = {capacity}
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A running daemon."""

    bus: str                            # address of its D-Bus; "": it has none
    trace: Path


@asynccontextmanager
async def service(gpu: DemoGPU, folder: Path) -> AsyncIterator[Service]:
    """Runs nvshared for the programs of `gpu`. Raises NvshareError if it does not start."""
    trace = folder / "trace.jsonl"
    trace.touch()
    async with AsyncExitStack() as stack:
        bus = ""
        if program := shutil.which("dbus-daemon"):
            bus = await _start_bus(stack, program, folder)
        configuration = folder / "nvshared.conf"
        configuration.write_text(CONFIGURATION.format(
            socket=folder / "nvshare.sock", bus=bus or "none", trace=trace,
            state=folder / "state",
            # In percent: the setting applies to all cards, and another card may be smaller.
            tq=TQ, capacity=f"{100 * gpu.capacity / gpu.total:.2f}%",
        ))
        await _start_daemon(stack, gpu, folder, configuration)
        yield Service(bus, trace)


async def _start_bus(stack: AsyncExitStack, program: str, folder: Path) -> str:
    configuration = folder / "bus.conf"
    configuration.write_text(BUS.format(path=folder / "bus"))
    process = await stack.enter_async_context(running(
        [program, f"--config-file={configuration}", "--nofork", "--print-address=1"],
        os.environ, stop=signal.SIGTERM,
    ))
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    if not address:
        assert process.stderr is not None
        words = (await process.stderr.read()).decode(errors="replace").strip()
        raise NvshareError(f"a message bus for the demonstration did not start: {words}")
    return address


async def _start_daemon(
    stack: AsyncExitStack, gpu: DemoGPU, folder: Path, configuration: Path
) -> None:
    # The daemon reports by systemd's protocol, sd_notify, that it is ready.
    notifications = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    notifications.setblocking(False)
    notifications.bind(str(folder / "notify"))
    environment = {**gpu.without_sharing(), "NOTIFY_SOCKET": str(folder / "notify")}
    environment = {name: text for name, text in environment.items() if name not in SETTINGS}
    # nvshared may be imported from outside Python's default path: pass this process's path.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    log = folder / "nvshared.log"
    with log.open("wb") as file:
        process = await stack.enter_async_context(running(
            [sys.executable, "-P", "-m", "nvshared", "--config", str(configuration)],
            environment, stdout=file, stderr=file, stop=signal.SIGTERM,
        ))
    try:
        await asyncio.wait_for(_ready(process, notifications), START)
    except TimeoutError:
        raise NvshareError(f"nvshared was not ready after {START:.0f} seconds") from None
    if process.returncode is not None:
        words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise NvshareError(f"nvshared did not start: {words[-1].removeprefix('nvshared: ')}")


async def _ready(process: Process, notifications: socket.socket) -> None:
    """Returns when the daemon reports that it is ready, or has ended."""
    loop = asyncio.get_running_loop()

    async def listen() -> None:
        while b"READY=1" not in await loop.sock_recv(notifications, 4096):
            continue

    tasks = [asyncio.create_task(listen()), asyncio.create_task(process.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
