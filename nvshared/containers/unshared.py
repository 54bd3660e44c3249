# SPDX-License-Identifier: Apache-2.0
"""Why a process in a container uses a GPU without sharing it."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from nvshared.containers import cdi
from nvshared.machine import host, tenant
from nvshared.machine.tenant import Kind

DEVICE = f"--device {cdi.KIND}=all"
OLDEST = (2, 17)                        # the glibc that the library needs
LIBC = re.compile(r"/libc(?:-2\.[0-9]+)?\.so(?:\.6)?$")
MUSL = re.compile(r"/(?:ld-musl-[^/]*|libc\.musl-[^/]*)$")
VERSION = re.compile(rb"GNU C Library[^\n]*version ([0-9]+)\.([0-9]+)")
LARGEST = 16 << 20                      # bytes of a libc that are searched


def container(pid: int) -> str:
    """The tenant's name, container:ID, of a process in a container; "": it is in none."""
    try:
        uid = (host.PROCESSES / str(pid)).stat().st_uid
    except OSError:
        return ""
    found, _ = tenant.locate(
        host.process(pid, "cgroup"), uid, host.process(os.getpid(), "cgroup"),
        lambda *_: 0, lambda *_: "", lambda: "")
    return next((str(one) for one in found if one.kind is Kind.CONTAINER), "")


def reason(pid: int) -> tuple[str, str]:
    """Why a process of a container does not have the library, and advice. May need root."""
    mounts = host.process(pid, "mountinfo")
    if mounts and f" {cdi.LIBRARY} " not in mounts:
        return ("its container was started without nvshare's device",
                f"start it with {DEVICE} in the place of its NVIDIA device or --gpus")
    names = {name for line in host.process(pid, "maps").split("\n")
             for name in line.split(None, 5)[5:] if "/" in name}
    if not names:
        return "it cannot be inspected", "as root, this command sees more"
    if any(map(MUSL.search, names)):
        return ("its program is made for musl, which loads no driver of NVIDIA and no library of "
                "ours", "use an image with glibc")
    libc = next(filter(LIBC.search, sorted(names)), None)
    if libc is None:
        return "its program is statically linked, so nothing is preloaded", "link it dynamically"
    if (version := _glibc(host.PROCESSES / str(pid) / "root", libc)) and version < OLDEST:
        return (f"its image has glibc {version[0]}.{version[1]}, and the library needs 2.17",
                "use a newer image")
    return ("it was started before its container had the library, or without /etc/ld.so.preload",
            "start the container again")


def _glibc(root: Path, path: str) -> tuple[int, int] | None:
    with suppress(OSError), open(_opened(root, path), "rb") as file:
        if found := VERSION.search(file.read(LARGEST)):
            return int(found[1]), int(found[2])
    return None


def _opened(root: Path, path: str) -> int:
    """Opens a file in a container for reading. Raises OSError unless it is a regular one.

    No link is followed, and nothing else opened: the container's user chooses what is at this path,
    root opens it, a link leads out of the container, and opening a pipe waits, a device acts."""
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        for part in filter(None, path.split("/")):
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    finally:
        os.close(descriptor)
