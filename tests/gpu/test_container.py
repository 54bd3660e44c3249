# SPDX-License-Identifier: Apache-2.0
"""Programs share the card in root file systems like a restricted pod's.

Such a root has the library's folder, the socket's folder and a line in /etc/ld.so.preload, the
card's devices and NVIDIA's driver, and no other file of the machine. The program has no user of
the machine and no capability.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness import LIBRARY, run, sharing
from bench.trace import summary

WORKLOAD = LIBRARY.with_name("nvshare-workload")
INSIDE = "/usr/lib/nvshare"
# The libraries beside libcuda.so.1 that NVIDIA's container toolkit mounts for compute programs.
DRIVER = ("libcuda.so*", "libnvidia-ptxjitcompiler.so*", "libnvidia-nvvm*", "libnvidia-gpucomp.so*")

# Arguments: the root, the socket's folder, a command. The mounts end with the mount namespace.
ENTER = f"""
set -e
root=$1 socket=$2; shift 2
mount --bind "$root" "$root"
mount --bind "$root/library" "$root{INSIDE}"
mount --bind "$socket" "$root/run/nvshare"
for folder in {INSIDE} /run/nvshare; do mount -o remount,bind,ro "$root$folder"; done
for device in /dev/nvidia* /dev/null /dev/shm; do
    if [ -d "$device" ]; then mkdir -p "$root$device"
    elif [ -e "$device" ]; then touch "$root$device"
    else continue; fi
    mount --rbind "$device" "$root$device"
done
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
exec chroot --userspec=65534:65534 --groups= "$root" "$@"
"""


def needed(program: Path) -> list[Path]:
    """The libraries that `program` is linked to, and the dynamic linker."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


def driver() -> Path:
    """The folder of libcuda.so.1, which this process has loaded already."""
    (path, *_) = re.findall(r"(/\S+/libcuda\.so\S*)$", Path("/proc/self/maps").read_text(), re.M)
    return Path(path).parent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with only driver, library, workload and what these need."""
    for folder in ("bin", "driver", "library", "dev", "proc", "etc", "run/nvshare", INSIDE[1:]):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(LIBRARY, tmp_path / "library")
    shutil.copy(WORKLOAD, tmp_path / "bin")
    from_driver = [path for pattern in DRIVER for path in driver().glob(pattern)]
    for path in from_driver:
        shutil.copy(path, tmp_path / "driver")
    libraries = {one for path in (WORKLOAD, LIBRARY, *from_driver) for one in needed(path)}
    for path in libraries:
        (tmp_path / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to("/"))
    (tmp_path / "etc/ld.so.preload").write_text(f"{INSIDE}/{LIBRARY.name}\n")
    for path in (tmp_path, *tmp_path.parents[:2]):      # for the unprivileged user
        path.chmod(path.stat().st_mode | 0o055)
    return tmp_path


def test_programs_in_separate_root_file_systems_share_the_card(
    root: Path, record: Callable[[str, dict[str, Any]], None]
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    # 16 GiB suffice for the programs' commits and for 2 GiB, the card's size, kept for other users.
    with sharing("--tq", "200ms", "--capacity", "2GiB", "--swap-budget", "16GiB") as daemon:
        daemon.socket.parent.chmod(0o755)
        daemon.socket.chmod(0o666)
        results = run([
            ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(root), str(daemon.socket.parent),
             "/bin/nvshare-workload", "--json", "--memory", "1400MiB", "--chunk", "64MiB",
             "--rounds", "1", "--seconds", "5", "--seed", str(seed)]
            for seed in (1, 2)
        ], {"NVSHARE_SOCKET": f"/run/nvshare/{daemon.socket.name}", "NVSHARE_REQUIRED": "1",
            "LD_LIBRARY_PATH": "/driver"})
        figures = summary(daemon.trace())
    record("programs in roots of their own", figures)
    for one in results:
        assert one.code == 0, one.errors
        assert one.output["right"] is True
    assert figures["turns"] > 4, "they did not take turns"
