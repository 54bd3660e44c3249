# SPDX-License-Identifier: Apache-2.0
"""Podman in a mount namespace of its own, with a specification of NVIDIA's for simulated cards."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.integration.conftest import BUILD, ROOT, SIMULATOR, Site

TOOLS = ("podman", "runc", "unshare", "nsenter", "ldd")
SIM, WORK = "/usr/lib/simulator", "/usr/lib/workload"   # paths in a container
STATE = "/run/simulator"
# Its store is below /var/lib, in memory.
ENVIRONMENT = {**os.environ, "STORAGE_DRIVER": "vfs"}
NEEDED = re.compile(r"(/\S+) \(0x")
SETUP = """
mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir -p /run/cdi /run/nvshare &&
mount --bind "$1" /run/nvshare && echo ready && exec cat
"""


def why_not() -> str:
    """Why Podman cannot run here; "": it can."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if os.getuid() != 0:
        return "Podman's mount namespace needs root"
    return f"there is no {', '.join(missing)} on this machine" if missing else ""


def root_file_system(folder: Path) -> Path:
    """A root file system with glibc and a few programs."""
    found = [str(shutil.which(name)) for name in ("sh", "cat", "id", "env")]
    linked = subprocess.run(
        ["ldd", *found, BUILD / "nvshare-workload", BUILD / "libnvshare.so"],
        capture_output=True, text=True, check=True).stdout
    for path in map(Path, {*NEEDED.findall(linked)}):
        target = folder / str(path).removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in ("bin", "tmp", "etc", "dev", "proc", "sys", "run", "usr/lib"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for program in found:
        shutil.copy(program, folder / "bin" / Path(program).name)
    return folder


class Machine:
    """A machine with Podman, NVIDIA's toolkit (its files alone) and a daemon's socket."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        (site.folder / "run").mkdir(exist_ok=True)
        socket = site.folder / "run" / "nvshare.sock"
        if not socket.is_symlink():
            socket.symlink_to("sock")
        self._space = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", SETUP, "sh", str(site.folder / "run")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._space.stdout is not None
        assert self._space.stdout.readline() == "ready\n"
        self.number = 0

    def close(self) -> None:
        self._space.communicate()

    def inside(self, *command: object, check: bool = True, **environment: str) -> str:
        """What a command on the machine says."""
        done = subprocess.run(
            self._within(*command), cwd=ROOT, text=True, check=False, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=ENVIRONMENT | environment)
        assert done.returncode == 0 or not check, done.stdout
        return done.stdout

    def _within(self, *command: object) -> list[str]:
        namespace = f"--mount=/proc/{self._space.pid}/ns/mnt"
        return ["nsenter", namespace, f"--wdns={ROOT}", *map(str, command)]

    def commands(self) -> Path:
        """A folder with the command podman, which a daemon outside of the machine may use."""
        folder = self.folder / "commands"
        folder.mkdir()
        tool = shlex.join(map(str, self._within(
            "env", "STORAGE_DRIVER=vfs", shutil.which("podman"))))
        (folder / "podman").write_text(f'#!/bin/sh\nexec {tool} "$@"\n')
        (folder / "podman").chmod(0o755)
        return folder

    def nvsharectl(self, *words: str, check: bool = True, bus: str = "none") -> str:
        cards = {name: self.site.environment[name] for name in ("LD_LIBRARY_PATH",
                                                                "NVSHARE_SIM_DIR")}
        return self.inside(sys.executable, "-m", "tests.integration.command", *words, check=check,
                           NVSHARE_BUS=bus, **cards)

    def nvidias(self, **devices: str) -> None:
        """Writes NVIDIA's file: by device name, a variable that containers with it get."""
        mounts = {SIM: SIMULATOR, WORK: BUILD, STATE: self.site.environment["NVSHARE_SIM_DIR"]}
        said = {
            "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
            "devices": [{"name": name.removeprefix("card"), "containerEdits": {
                "env": [f"CARD={value}"]}} for name, value in devices.items()],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void", f"LD_LIBRARY_PATH={SIM}",
                        f"NVSHARE_SIM_DIR={STATE}"],
                "mounts": [{"containerPath": there, "hostPath": str(here), "options": ["bind"]}
                           for there, here in mounts.items()]}}
        # JSON is YAML, too, and NVIDIA's file is called so.
        self.inside("sh", "-c", 'printf %s "$1" >/run/cdi/nvidia.yaml', "sh", json.dumps(said))

    def podman(self, *options: str, root: Path, command: Sequence[object], name: str = "",
               device: str = "nvshare.com/gpu=all") -> subprocess.Popen[str]:
        """A container, as `podman run` starts it. Without a network, as none is needed."""
        self.number += 1
        state = Path(self.site.environment["NVSHARE_SIM_DIR"])
        for path in (state, *state.iterdir()):      # as all users may open /dev/nvidia0
            path.chmod(0o777)
        tool = self._tool("run", "--rm", "--name", name or f"one{self.number}",
                          "--network", "none", "--ulimit", "nofile=4096:4096",
                          "--ulimit", "nproc=4096:4096", "-i", "--device", device,
                          *options, "--rootfs", root, *command)
        popen = subprocess.Popen(
            self._within(*tool), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        self.site.started.append(popen)
        return popen

    def _tool(self, *words: object) -> list[object]:
        return ["podman", "--runtime", shutil.which("runc"), "--cgroup-manager", "cgroupfs",
                "--events-backend", "file", *words]
