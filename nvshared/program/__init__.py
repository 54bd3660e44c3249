# SPDX-License-Identifier: Apache-2.0
"""Functions by which a Python program ends its turn early, such as between two phases of training.

Without them a turn ends after the program has been idle for 10 ms to half a second. The modules in
this folder work in Python 3.8 or later and have no dependencies."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

# The process of each open turn(): a forked child inherits the open turns of its parent. There is no
# lock, as a child could inherit it locked; if two threads both release, the second does nothing.
_open_turns: list[int] = []


def release() -> bool:
    """Ends the turn of this process on all its GPUs once the work that it has submitted is done.

    Returns at once. Work submitted before the turn has ended makes the release void; later work
    waits for a turn, and finds its memory at the same addresses. Returns False if this process
    shares no GPU, has not used CUDA yet, or is a forked child of a process that has. Raises
    nothing."""
    function = getattr(ctypes.CDLL(None), "nvshare_release", None)
    return function is not None and function() > 0


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Calls release() when the block, or the last of several blocks, ends, also by an exception.

    The beginning of a block does nothing: the first work in the block waits for a turn."""
    process = os.getpid()
    _open_turns.append(process)
    try:
        yield
    finally:
        _open_turns.remove(process)
        if os.getpid() not in _open_turns:
            release()
