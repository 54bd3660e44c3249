# SPDX-License-Identifier: Apache-2.0
"""A machine with the real daemon, the real nvshare-kubelet and a simulated kubelet."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from tests.bus.service import PrivateBus, private_bus
from tests.integration.conftest import ROOT, Site, zygote
from tests.integration.fakehook import PATIENCE
from tests.integration.kubelet import Kubelet
from tests.integration.zygote import Daemon


@dataclass
class Node:
    """A machine with kubelet and a bus, and the daemons and plugins that a test starts."""

    site: Site
    bus: PrivateBus
    kubelet: Kubelet
    plugins: list[subprocess.Popen[str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)     # words before the plugin's command

    @property
    def state(self) -> Path:
        return self.kubelet.folder.parent / "state"

    @property
    def log(self) -> Path:
        return self.kubelet.folder.parent / "log"

    def command(self, *options: str) -> list[str]:
        return [
            sys.executable, "-c", "import sys; from nvshared.kubelet.main import main; "
            "sys.exit(main())", "--bus", self.bus.address, "--socket", str(self.site.socket),
            "--kubelet", str(self.kubelet.folder), "--state", str(self.state),
            "--cdi", "off", *options,
        ]

    def daemon(self) -> "subprocess.Popen[str]":
        return self.site.start("--bus", self.bus.address)

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """An nvshare-kubelet that is ready when this returns."""
        address = self.kubelet.folder.parent / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, self.log.open("a") as log:
            ready.bind(str(address))
            ready.settimeout(PATIENCE)
            environment = {**os.environ, "NOTIFY_SOCKET": str(address)}
            plugin: subprocess.Popen[str] = subprocess.Popen(
                [*self.before, *self.command(*options)], cwd=ROOT, stderr=log, text=True,
                env=environment) if self.before else Daemon(
                    zygote("nvshared.kubelet.main"), self.command(*options)[3:], stderr=log,
                    env=environment)
            self.plugins.append(plugin)
            while ready.recv(4096) != b"READY=1":
                continue
            address.unlink()
        return plugin

    def kill_daemon(self) -> None:
        self.site.started[-1].kill()
        self.site.started[-1].wait()

    def kill_plugin(self) -> None:
        self.plugins[-1].kill()
        self.plugins[-1].wait()

    def fails(self, *options: str) -> tuple[int, str]:
        """Exit status and errors of an nvshare-kubelet that is expected not to start."""
        done = subprocess.run(
            [*self.before, *self.command(*options)], cwd=ROOT, capture_output=True, text=True,
            timeout=PATIENCE, check=False)
        return done.returncode, done.stderr

    def allocatable(self, number: int) -> None:
        self.kubelet.wait(lambda: self.kubelet.allocatable() == number)

    def refused(self, *shares: str) -> str:
        """The plugin's reason for refusing these shares to a container."""
        with pytest.raises(grpc.RpcError) as refused:
            self.kubelet.allocate(shares)
        return str(refused.value.details())


@contextmanager
def made(site: Site, folder: Path) -> Iterator[Node]:
    with private_bus() as bus:
        node = Node(site, bus, Kubelet(folder / "kubelet"))
        try:
            yield node
        finally:
            node.kubelet.stop()
            for plugin in node.plugins:
                plugin.kill()
                plugin.wait()
            if node.log.exists():
                sys.stderr.write(node.log.read_text())


@contextmanager
def small_disk(node: Node) -> Iterator[Path]:
    """A small disk for the state of nvshare-kubelet. Other processes find it at another path."""
    node.state.mkdir()
    mount = 'mount -t tmpfs -o size=16m nvshare "$0" && echo && exec sleep infinity'
    with subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", mount, node.state], stdout=subprocess.PIPE) as one:
        try:
            assert one.stdout
            assert one.stdout.readline()
            node.before = ["nsenter", f"--mount=/proc/{one.pid}/ns/mnt", "--wd=."]
            yield Path(f"/proc/{one.pid}/root{node.state}")
        finally:
            one.kill()
