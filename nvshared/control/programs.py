# SPDX-License-Identifier: Apache-2.0
"""The title of a program: its command line for its own user and root, its name for other users.

Command lines may contain secrets, so this module reads them from /proc with the caller's rights."""

import os
import re
from functools import lru_cache

LONGEST = 4096                          # bytes of a command line
ENVIRONMENT = 1 << 17                   # bytes of an environment that are searched
COMM_LONGEST = 15                       # bytes of a process's name that /proc/PID/comm can hold
KERNEL = b"ipykernel"                   # in the command line of every notebook's process
NOTEBOOK = b"JPY_SESSION_NAME="         # the notebook, set by Jupyter for its kernels
CONNECTION = re.compile(rb"/(kernel-[\w-]{8})")  # connection file, if there is no notebook name
JOB = b"SLURM_JOB_NAME="


@lru_cache(4096)
def command(client: int, pid: int, uid: int, name: str, tenant: str) -> str:
    """The displayed text of a client: "train.ipynb: python3 -m …", or its name if unreadable."""
    if os.geteuid() not in (0, uid):
        return name
    try:
        owner, words = _read(f"/proc/{pid}/cmdline", LONGEST)
        if owner != uid:
            return name                 # the process ended, or is in another pid namespace
        title = _own(pid, name, tenant) or _title(pid, words, tenant)
    except OSError:
        return name
    if title:
        words = title + b": " + words[words.rfind(b"/", 0, words.find(b"\0")) + 1:]
    text = words.replace(b"\0", b" ").decode(errors="replace").strip()
    return "".join(c if c.isprintable() else "?" for c in text) or name


def _own(pid: int, name: str, tenant: str) -> bytes:
    """The client's name if the program chose it: not its process's or pod's name. Else b""."""
    _, process = _read(f"/proc/{pid}/comm", LONGEST)
    is_process = process.rstrip() == name.encode()[:COMM_LONGEST]
    return b"" if is_process or tenant == f"pod:{name}" else name.encode()


def _title(pid: int, words: bytes, tenant: str) -> bytes:
    """The notebook's file name, or the SLURM job's name; b"" without either."""
    if KERNEL in words:
        found = _variable(pid, NOTEBOOK).rpartition(b"/")[2]
        listens = CONNECTION.search(words)
        return found or (listens[1] if listens else b"")
    return _variable(pid, JOB) if tenant.startswith("job:") else b""


def _variable(pid: int, name: bytes) -> bytes:
    """The value of an environment variable when the process started; b"" if unset."""
    _, environment = _read(f"/proc/{pid}/environ", ENVIRONMENT)
    return (b"\0" + environment).partition(b"\0" + name)[2].partition(b"\0")[0]


def _read(path: str, longest: int) -> tuple[int, bytes]:
    """A file's owner and first bytes. Uses os.open() for speed with a thousand programs."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(file).st_uid, os.read(file, longest)
    finally:
        os.close(file)
