# SPDX-License-Identifier: Apache-2.0
"""What a program is called: by its command line for its own user and root, by its name for others.

The daemon tells nobody command lines, which may have secrets in them: it serves all users alike.
The kernel shows them here, and with them what tells notebooks apart, whose command lines are all
the same.
"""

import os
from functools import lru_cache

LONGEST = 4096                          # bytes of a command line
ENVIRONMENT = 1 << 17                   # bytes of one that are looked through
KERNEL = b"ipykernel"                   # in the command line of every notebook's process
NOTEBOOK = b"JPY_SESSION_NAME="         # Jupyter tells its kernels which notebook they are for


@lru_cache(4096)
def command(client: int, pid: int, uid: int, name: str) -> str:
    """What to show for a client whose process goes by this name: train.ipynb: python3 -m …"""
    if os.geteuid() not in (0, uid):
        return name
    try:
        owner, words = _read(f"/proc/{pid}/cmdline", LONGEST)
        if owner != uid:
            return name                 # it ended, or we live in another pid namespace
        notebook = _notebook(pid) if KERNEL in words else b""
    except OSError:
        return name
    if notebook:
        words = notebook + b": " + words[words.rfind(b"/", 0, words.find(b"\0")) + 1:]
    text = words.replace(b"\0", b" ").decode(errors="replace").strip()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text or name


def _notebook(pid: int) -> bytes:
    _, environment = _read(f"/proc/{pid}/environ", ENVIRONMENT)
    _, _, rest = (b"\0" + environment).partition(b"\0" + NOTEBOOK)
    return rest.partition(b"\0")[0].rpartition(b"/")[2]


def _read(path: str, longest: int) -> tuple[int, bytes]:
    """The owner of a file, and how it begins. There may be a thousand programs."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(file).st_uid, os.read(file, longest)
    finally:
        os.close(file)
