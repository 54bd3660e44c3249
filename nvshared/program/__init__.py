# SPDX-License-Identifier: Apache-2.0
"""Functions by which a Python program ends its turn early, such as a trainer between two phases of
reinforcement learning.

    import nvshared.program

    with nvshared.program.turn():
        train()

Without these functions the library waits until the program has been idle for a while (10 ms to half
a second) before it reports to nvshared that the turn may end. The modules beside this one, which
`nvsharectl run` loads, are for unmodified programs. All modules work in Python 3.8 or later and
have no dependencies.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_open_turns = 0


def release() -> bool:
    """Ends the turn of this process on all its GPUs once the work that it has submitted is done.

    Returns at once. Memory is evicted only if other programs need space on the GPU. If the process
    submits more work before its turn has ended, the release is void. Work submitted later waits
    for a turn, as usual, and finds its memory at the same addresses.

    Returns False, and does nothing, if this process shares no GPU: it runs without libnvshare.so or
    nvshared, has not used CUDA yet, or is a forked child of a process that has. Raises nothing.
    """
    function = getattr(ctypes.CDLL(None), "nvshare_release", None)
    return function is not None and function() > 0


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Calls release() when the block ends, also by an exception.

    If blocks are nested, or overlap in several threads, only the end of the last block calls
    release(). The beginning of a block does nothing: the first work in the block waits for a turn.
    """
    global _open_turns
    with _lock:
        _open_turns += 1
    try:
        yield
    finally:
        with _lock:
            _open_turns -= 1
            last = _open_turns == 0
        if last:
            release()
