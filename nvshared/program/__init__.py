# SPDX-License-Identifier: Apache-2.0
"""For Python programs that know when they are done with the GPU, such as a trainer between two
phases of reinforcement learning.

    import nvshared.program

    with nvshared.program.turn():
        train()

Without these functions the library waits until the program has been idle for a while (10 ms to half
a second) before it reports that the next program may come. The modules beside this one, which
`nvsharectl run` loads, are for programs that are not changed. All work in any Python from 3.8 on
and need nothing else.
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

    Returns at once and moves no memory by itself: other programs take what room they need. If the
    process submits more work before its turn has ended, the release is void. The next work waits
    for a turn, as usual, and finds its memory in place.

    Returns False, and does nothing, if this process shares no GPU: it runs without libnvshare.so or
    nvshared, has not used CUDA yet, or is a fork of one that has. Raises nothing.
    """
    told = getattr(ctypes.CDLL(None), "nvshare_release", None)
    return told is not None and told() > 0


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Releases the turn when its block ends, also by an exception.

    Where blocks of several threads overlap, or are nested, the end of the last one counts. The
    block's beginning does nothing: the first work within waits for a turn.
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
