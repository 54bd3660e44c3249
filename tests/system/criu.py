# SPDX-License-Identifier: Apache-2.0
"""CRIU for a container: that of Debian's unstable release, as Debian 12 has none."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.system.container import Container
from tests.system.packages import ROOT, TRIPLET
from tests.system.tree import MIRROR, cached, run

HOME = "/opt/criu"                      # in a container
SYS_RESOURCE = 24                       # CAP_SYS_RESOURCE


def prepared() -> Path:
    """Returns a folder with CRIU and its libraries, C library included. Raises NoTree."""
    return cached("criu-sid", _make)


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        (state / "status").touch()      # as if no package were installed
        (state / "sources.list").write_text(f"deb {MIRROR} sid main\n")
        for part in ("lists/partial", "cache/archives/partial"):
            (state / part).mkdir(parents=True)
        settings = {
            "Dir::Etc::sourcelist": state / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": state, "Dir::State::lists": state / "lists",
            "Dir::State::status": state / "status", "Dir::Cache": state / "cache",
            "APT::Sandbox::User": "root"}
        apt = ["apt-get", "-qq"]
        for setting, value in settings.items():
            apt += ["-o", f"{setting}={value}"]
        run(*apt, "update")
        run(*apt, "install", "-y", "--no-install-recommends", "--download-only", "criu")
        for package in (state / "cache/archives").glob("*.deb"):
            run("dpkg-deb", "--extract", str(package), str(folder))


def install(container: Container) -> None:
    """Installs CRIU as /usr/local/sbin/criu. Raises NoTree."""
    with tempfile.TemporaryDirectory() as name:
        archive, library = Path(name) / "criu.tar", Path(name) / "limits.so"
        subprocess.run(["tar", "-C", prepared(), "-cf", archive, "."], check=True)
        container.copy(archive, f"{HOME}.tar")
        container.run("mkdir", HOME)
        container.run("tar", "-C", HOME, "-xf", f"{HOME}.tar")
        preload = ""
        if not _has(SYS_RESOURCE):      # without, root cannot read other users' limits
            subprocess.run(["gcc", "-shared", "-fPIC", ROOT / "tests/integration/criu.c",
                            "-o", library], check=True)
            container.copy(library, f"{HOME}/limits.so")
            preload = f"--preload {HOME}/limits.so"
    libraries = f"{HOME}/usr/lib/{TRIPLET}"
    container.write(
        "/usr/local/sbin/criu",
        f'#!/bin/sh\nexec {HOME}/usr/lib64/ld-linux-x86-64.so.2 {preload} '
        f'--library-path {libraries} {HOME}/usr/sbin/criu "$@"\n', mode=0o755)


def _has(capability: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def is_possible() -> bool:
    return shutil.which("apt-get") is not None and TRIPLET == "x86_64-linux-gnu"
