# SPDX-License-Identifier: Apache-2.0
"""Starts a private daemon with simulated cards and a private bus, and acts as its systemd."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import ROOT
from nvshared import library
from nvshared.errors import NvshareError

PATIENCE = 60.0                         # seconds for the daemon's start
WATCHDOG = 30_000_000                   # microseconds, as in nvshared.service
BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/>
  </policy>
</busconfig>
"""
FIND = "from nvshared.machine.nvml import NVML; [print(f.uuid_bytes.hex()) for f in NVML().find()]"


@dataclass(frozen=True, slots=True)
class Service:
    pid: int
    socket: Path
    bus: str                            # address of the bus, or "none"
    uuids: tuple[bytes, ...]            # UUIDs of the cards

    @property
    def uuid(self) -> bytes:
        return self.uuids[0]


@contextmanager
def service(memory: int, *options: str, module: str = "nvshared", cards: int = 1,
            log: Path | None = None, has_bus: bool = True) -> Iterator[Service]:
    """Runs a daemon with cards of `memory` bytes, which is ready, while the `with` block runs.

    `module`: the Python module started as the daemon. `log`: a file for the daemon's log.
    `has_bus`: whether the daemon connects to a message bus, which needs dbus-daemon.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nvshare-bench-")))
        folder.chmod(0o755)             # for clients of other users
        log = log or folder / "log"
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library.simulator()),
            "NVSHARE_SIM_DIR": str(folder),
            "NVSHARE_SIM_GPUS": str(cards),
            "NVSHARE_SIM_MEMORY": str(memory),
            "NOTIFY_SOCKET": str(folder / "notify"),
            "WATCHDOG_USEC": str(WATCHDOG)}
        found = subprocess.run([sys.executable, "-c", FIND], env=environment, cwd=ROOT,
                               stdout=subprocess.PIPE, text=True, check=True)
        bus = stack.enter_context(message_bus(folder)) if has_bus else "none"
        ready = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        ready.bind(environment["NOTIFY_SOCKET"])
        ready.settimeout(PATIENCE)
        (folder / "conf").write_text("[gpu]\nreserve = 0\ncontext-reserve = 0\n")
        errors = stack.enter_context(log.open("w+"))
        daemon = subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(folder / "conf"), "--bus", bus,
             "--socket", str(folder / "sock"), "--max-clients-per-user", "4096",
             "--state-dir", str(folder / "state"), *options],
            env=environment, cwd=ROOT, stderr=errors)
        stack.callback(_end_well, daemon, log)
        while ready.recv(1000) != b"READY=1":
            continue
        ready.close()                   # its stderr is not read from now on
        uuids = tuple(bytes.fromhex(line) for line in found.stdout.split())
        yield Service(daemon.pid, folder / "sock", bus, uuids)


@contextmanager
def message_bus(folder: Path) -> Iterator[str]:
    """The address of a bus that runs while the `with` block runs; needs dbus-daemon."""
    (folder / "bus.conf").write_text(BUS.format(path=folder / "bus"))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={folder / 'bus.conf'}", "--nofork", "--print-address"],
        # Hide stderr: a warning about the limit of open files is possible, but has no effect here.
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert daemon.stdout is not None
        if not daemon.stdout.readline():
            raise NvshareError("the message bus of the benchmark did not start")
        yield f"unix:path={folder / 'bus'}"
    finally:
        _end(daemon)
        assert daemon.stdout is not None
        daemon.stdout.close()


def _end_well(daemon: "subprocess.Popen[bytes]", log: Path) -> None:
    """Raises an error if the daemon failed: then the figures measured with it are invalid."""
    _end(daemon)
    if daemon.returncode != 0:
        raise NvshareError(
            f"the daemon ended with status {daemon.returncode}: {log.read_text()[-2000:]}")


def _end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait(PATIENCE)
