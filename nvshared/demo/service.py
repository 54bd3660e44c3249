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
from pathlib import Path

from nvshared.demo.gpu import DemoGPU
from nvshared.demo.workload import errors_of, running
from nvshared.errors import NvshareError

START = 20.0                            # seconds until the daemon must be ready
TRACE = "trace.jsonl"
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


@asynccontextmanager
async def service(gpu: DemoGPU, folder: Path) -> AsyncIterator[str]:
    """Runs nvshared for the programs of `gpu`; it writes its trace to TRACE in `folder`.

    Yields the address of its D-Bus; "": it has none. Raises NvshareError if it does not start.
    """
    (folder / TRACE).touch()
    async with AsyncExitStack() as stack:
        bus = ""
        if program := shutil.which("dbus-daemon"):
            bus = await _start_bus(stack, program, folder)
        configuration = folder / "nvshared.conf"
        configuration.write_text(CONFIGURATION.format(
            socket=folder / "nvshare.sock", bus=bus or "none", trace=folder / TRACE,
            state=folder / "state",
            # In percent: the setting applies to all cards, and another card may be smaller.
            tq=TQ, capacity=f"{100 * gpu.capacity / gpu.total:.2f}%",
        ))
        await _start_daemon(stack, gpu, folder, configuration)
        yield bus


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
        words = await errors_of(process)
        raise NvshareError(f"a message bus for the demonstration did not start: {words}")
    return address


async def _start_daemon(
    stack: AsyncExitStack, gpu: DemoGPU, folder: Path, configuration: Path
) -> None:
    # The daemon reports by systemd's protocol, sd_notify, that it is ready.
    notifications = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    notifications.setblocking(False)
    notifications.bind(str(folder / "notify"))
    environment = {name: text for name, text in gpu.environment.items() if name not in SETTINGS}
    # nvshared may be imported from outside Python's default path: pass this process's path.
    environment |= {"NOTIFY_SOCKET": str(folder / "notify"),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    log = folder / "nvshared.log"
    with log.open("wb") as file:
        process = await stack.enter_async_context(running(
            [sys.executable, "-P", "-m", "nvshared", "--config", str(configuration)],
            environment, stdout=file, stderr=file, stop=signal.SIGTERM,
        ))
    if not await _settled(process, notifications):
        raise NvshareError(f"nvshared was not ready after {START:.0f} seconds")
    if process.returncode is not None:
        words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        raise NvshareError(f"nvshared did not start: {words[-1].removeprefix('nvshared: ')}")


async def _settled(process: Process, notifications: socket.socket) -> bool:
    """Waits until the daemon reports that it is ready, or has ended. False: neither in START."""
    loop = asyncio.get_running_loop()

    async def listen() -> None:
        while b"READY=1" not in await loop.sock_recv(notifications, 4096):
            continue

    tasks = [asyncio.create_task(listen()), asyncio.create_task(process.wait())]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=START, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
