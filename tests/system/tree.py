# SPDX-License-Identifier: Apache-2.0
"""The Debian that a container boots: made once, kept outside the checkout, never changed.

Debian 12, or the suite that NVSHARE_DEBIAN_SUITE names (trixie: Debian 13).

Dependencies of the packages under test are not installed in the tree, only downloaded to apt's
cache there: `apt install ./nvshared_*.deb` must determine and install the dependencies, as on an
administrator's machine, but needs no network.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SUITE = os.environ.get("NVSHARE_DEBIAN_SUITE", "bookworm")
PYTHON = {"bookworm": "3.11", "trixie": "3.13"}[SUITE]
MIRROR = os.environ.get("NVSHARE_DEBIAN_MIRROR", "http://deb.debian.org/debian")

# A small server: basic packages of Debian, and programs that a preloaded library might disturb.
INSTALLED = (
    "systemd-sysv", "dbus", "polkitd", "libpam-systemd", "python3", "cron", "openssh-server",
    "openssh-client", "sudo", "procps", "man-db",
)
# Packages that apt installs in tests: dependencies of the packages under test, and a few others.
KUBELETS = ("python3-grpcio", "python3-protobuf", "python3-yaml")   # only for nvshare-kubelet
DOWNLOADED = (
    "python3-dbus-next", "python3-rich", "python3-sdnotify", "python3-prometheus-client", *KUBELETS,
)


class NoTree(Exception):
    """The tree could not be made; the message has the end of the failed tool's output."""


def prepared(*besides: str, venv: str = "", pypi: Sequence[str] = ()) -> Path:
    """Returns the tree with the Debian packages `besides`, and PyPI packages in `venv`.

    Takes two minutes the first time. Raises NoTree.
    """
    installed = (*INSTALLED, *besides)
    recipe = "\n".join((SUITE, MIRROR, *installed, "", *DOWNLOADED))
    if pypi:
        recipe = "\n".join((recipe, "", venv, *pypi))
    name = f"{SUITE}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"

    def make(tree: Path) -> None:
        _make(tree, besides)
        if pypi:
            _add(tree, venv, pypi)

    return cached(name, make)


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder of this name outside the checkout, made once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvshare"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with _alone(cache / f"{name}.lock"):
        if not folder.is_dir():
            unfinished = cache / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


def _make(tree: Path, besides: Sequence[str]) -> None:
    run(
        "debootstrap", "--variant=minbase", f"--include={','.join(INSTALLED)}",
        SUITE, str(tree), MIRROR)
    # Give the tree its own host name and machine id, not the build machine's.
    (tree / "etc" / "hostname").write_text("gpuhost\n")
    (tree / "etc" / "hosts").write_text("127.0.0.1 localhost gpuhost\n")
    (tree / "etc" / "machine-id").write_text("")
    environment = ("env", "DEBIAN_FRONTEND=noninteractive")
    apt = ("chroot", str(tree), *environment, "apt-get", "-qq")
    run(*apt, "update")
    # Installed by apt: debootstrap handles no alternative or virtual packages.
    run(*apt, "install", "-y", "--no-install-recommends", *besides)
    run(*apt, "install", "-y", "--no-install-recommends", "--download-only", *DOWNLOADED)


def _add(tree: Path, venv: str, pypi: Sequence[str]) -> None:
    """Downloads with this machine's pip, which can reach PyPI; installs with the tree's pip."""
    wheels = tree / "root" / "wheels"
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:",
        f"--python-version={PYTHON}", f"--dest={wheels}", *pypi)
    run("chroot", str(tree), "python3", "-m", "venv", venv)
    run(
        "chroot", str(tree), f"{venv}/bin/pip", "install", "--quiet", "--no-index",
        "--find-links=/root/wheels", *pypi)
    shutil.rmtree(wheels)


def run(*command: str) -> None:
    """Raises NoTree if the command fails."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise NoTree(f"{_shown(command)} failed:\n" + "\n".join(done.stdout.splitlines()[-15:]))


def _shown(command: Sequence[str]) -> str:
    return " ".join(command[:4]) + (" …" if len(command) > 4 else "")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
