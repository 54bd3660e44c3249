# SPDX-License-Identifier: Apache-2.0
"""What a program is called: by its command line for its own user and root, by its name for others.

The daemon tells nobody command lines, which may have secrets in them: it serves all users alike.
The kernel shows them here, and with them what tells programs apart whose command lines are all the
same: the notebook that a kernel is for, or the name of the job. What a program calls itself comes
first.
"""

import os
import re
from functools import lru_cache

LONGEST = 4096                          # bytes of a command line
ENVIRONMENT = 1 << 17                   # bytes of one that are looked through
COMM_LONGEST = 15                       # bytes of a process's name that the kernel keeps
KERNEL = b"ipykernel"                   # in the command line of every notebook's process
NOTEBOOK = b"JPY_SESSION_NAME="         # Jupyter tells its kernels which notebook they are for;
CONNECTION = re.compile(rb"/(kernel-[\w-]{8})")  # failing that, where they listen
JOB = b"SLURM_JOB_NAME="


@lru_cache(4096)
def command(client: int, pid: int, uid: int, name: str, tenant: str) -> str:
    """What to show for a client that is called this: train.ipynb: python3 -m …"""
    if os.geteuid() not in (0, uid):
        return name
    try:
        owner, words = _read(f"/proc/{pid}/cmdline", LONGEST)
        if owner != uid:
            return name                 # it ended, or we live in another pid namespace
        title = _own(pid, name, tenant) or _title(pid, words, tenant)
    except OSError:
        return name
    if title:
        words = title + b": " + words[words.rfind(b"/", 0, words.find(b"\0")) + 1:]
    text = words.replace(b"\0", b" ").decode(errors="replace").strip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text or name


def _own(pid: int, name: str, tenant: str) -> bytes:
    """What it calls itself, where that is the name: not that of its process, or its pod's."""
    _, process = _read(f"/proc/{pid}/comm", LONGEST)
    is_process = process.rstrip() == name.encode()[:COMM_LONGEST]
    return b"" if is_process or tenant == f"pod:{name}" else name.encode()


def _title(pid: int, words: bytes, tenant: str) -> bytes:
    """The notebook's file, or the job's name."""
    if KERNEL in words:
        found = _variable(pid, NOTEBOOK).rpartition(b"/")[2]
        listens = CONNECTION.search(words)
        return found or (listens[1] if listens else b"")
    return _variable(pid, JOB) if tenant.startswith("job:") else b""


def _variable(pid: int, name: bytes) -> bytes:
    """As of the start of the process."""
    _, environment = _read(f"/proc/{pid}/environ", ENVIRONMENT)
    return (b"\0" + environment).partition(b"\0" + name)[2].partition(b"\0")[0]


def _read(path: str, longest: int) -> tuple[int, bytes]:
    """The owner of a file, and how it begins. There may be a thousand programs."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(file).st_uid, os.read(file, longest)
    finally:
        os.close(file)
