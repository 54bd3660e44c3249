# SPDX-License-Identifier: Apache-2.0
"""The Debian packages under test, built from the checkout, and the same with a later version."""

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.system.container import Container

ROOT = Path(__file__).parents[2]
TRIPLET = f"{platform.machine()}-linux-gnu"
LIBRARY = f"/usr/lib/{TRIPLET}/libnvshare.so"


class NotBuilt(Exception):
    """The packages could not be built; the message has the end of the build's output."""


@dataclass(frozen=True, slots=True)
class Packages:
    nvshared: Path
    libnvshare: Path

    def put_into(self, container: Container) -> list[str]:
        paths = []
        for package in (self.nvshared, self.libnvshare):
            container.copy(package, f"/root/{package.name}")
            paths.append(f"/root/{package.name}")
        return paths


def build(folder: Path) -> Packages:
    """Builds the packages into `folder` as `make deb` does. Raises NotBuilt."""
    done = subprocess.run(
        [
            "make", "--no-print-directory", "--file=packaging/packaging.mk", "deb",
            f"DIST={folder}", f"PYTHON={sys.executable}",
        ],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise NotBuilt("make deb failed:\n" + "\n".join(done.stdout.splitlines()[-25:]))
    return _found(folder)


def newer(packages: Packages, folder: Path, suffix: str = "+next") -> Packages:
    """Makes packages with the same files and a higher version, like a later release."""
    old = _field(packages.nvshared, "Version")
    new = old + suffix
    for package in (packages.nvshared, packages.libnvshare):
        unpacked = folder / package.stem
        subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(unpacked)], check=True)
        control = unpacked / "DEBIAN" / "control"
        text = control.read_text().replace(f"Version: {old}\n", f"Version: {new}\n")
        control.write_text(text.replace(f"(= {old})", f"(= {new})"))
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", str(unpacked), str(folder)],
            check=True, stdout=subprocess.DEVNULL)
    return _found(folder)


def _field(package: Path, name: str) -> str:
    return subprocess.run(
        ["dpkg-deb", "--field", str(package), name], capture_output=True, text=True, check=True
    ).stdout.strip()


def _found(folder: Path) -> Packages:
    (nvshared,) = folder.glob("nvshared_*.deb")
    (libnvshare,) = folder.glob("libnvshare_*.deb")
    return Packages(nvshared, libnvshare)
