# SPDX-License-Identifier: Apache-2.0
"""Tests whether a directory can hold swapped memory, opens files in it. All functions may block."""

import fcntl
import os
import signal
from pathlib import Path

from nvshared.machine import cgroup
from nvshared.units import GIB

SECTOR = 512                            # bytes; the unit of st_blocks
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
REMOTE = frozenset({                    # file systems that depend on a server or a cluster
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "afs", "gfs2", "ocfs2",
    "lustre", "gpfs", "beegfs", "glusterfs", "orangefs",
})


def fault(directory: Path, size: int) -> str:
    """Returns why the directory cannot hold `size` bytes of swapped memory; "": it can."""
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"{directory}: {error.strerror}"
    try:
        kind = _file_system(folder)
    finally:
        os.close(folder)
    if kind in IN_MEMORY:
        return f"{directory} is on {kind}, which is memory itself"
    if kind in REMOTE or kind.startswith("fuse"):
        return f"{directory} is on {kind}: it must be on a disk of this machine"
    if kind == "overlay":
        return f"{directory} is in a container's own layers: mount a disk's directory there"
    try:
        whole = os.statvfs(directory)
        if size > (has := whole.f_blocks * whole.f_frsize):
            return (f"{size / GIB:.1f} GiB are more than the file system of {directory} has: "
                    f"{has / GIB:.1f} GiB")
        descriptor = open_file(directory, direct=False)
        try:
            os.write(descriptor, bytearray(SECTOR))
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{directory} cannot be written to: {error.strerror}"
    return ""


def open_file(directory: Path, *, direct: bool = True) -> int:
    """Opens a new unnamed file, which the kernel removes after a crash, too. Raises OSError.

    O_EXCL: linkat(2) cannot give it a name."""
    flags = os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    try:
        return os.open(directory, flags, 0o600)
    except OSError:
        if not direct:
            raise
        return open_file(directory, direct=False)


def open_again(descriptor: int) -> int:
    """Opens a file once more, in the same mode. Unlike os.dup() that makes an open file description
    of its own, so that is_held() can tell whether a process has it. Raises OSError."""
    direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | direct)


def is_held(descriptor: int) -> bool:
    """Whether a file has another open file description: in any process, mapped, or in a socket.

    The kernel grants a write lease only for a file that no other process has open. OSError: the
    file system has no leases."""
    # By default an open() that breaks the lease would end the daemon, by SIGIO.
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return True
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def written(descriptor: int) -> int:
    """The bytes that a file occupies on the disk."""
    return os.fstat(descriptor).st_blocks * SECTOR


def _file_system(descriptor: int) -> str:
    """The type of a descriptor's file system, found by its mount id; "": not found."""
    info = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").split()
    number = info[info.index("mnt_id:") + 1]
    return next((kind for mount, kind, _ in cgroup.mounts() if mount[0] == number), "")
