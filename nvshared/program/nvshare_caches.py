# SPDX-License-Identifier: Apache-2.0
"""Has PyTorch and CuPy give cached GPU memory back when libnvshare.so asks for it.

A program imports this module, or a `sitecustomize` does; `nvsharectl run` sees to that. It works
in any Python from 3.8 on and needs nothing else. It does nothing without NVSHARE_TRIM_CACHES=1
in the environment, without the library, and until the program imports one of the frameworks.

Both frameworks keep the memory that the program frees. Memory that is given back before the
program leaves the card need not be copied to the host. The library knows when to ask; see
libhook/src/daemon/caches.c. This module knows how, and whether it was of use.

A thread of its own waits in the library. The frameworks' functions may be called there, as they
lock what they need. No signal handler of the program runs in that thread, so no exception of the
program is raised there. If the interpreter ended meanwhile, the thread would be torn down within
the framework; hence the interpreter's end waits for it.

Asking is of no use if the program has taken half of the memory again by the next time: it needs
that memory all the time. Then one occasion of that kind passes without asking, after the next
failure two, then four, up to LONGEST_PAUSE. The same holds if less than half of what was offered
has come, or none because of an error. So a training that uses all its cache in each step is asked
in few of its turns when one begins, and in each when it pauses for its next data.

JAX is not here: it keeps what it has taken, and has no function to give it back.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

WORTH = 256 << 20                       # bytes; the bus carries that both ways in 10 ms
LONGEST_PAUSE = 64
OCCASIONS = 2                           # when a turn begins, and when the program pauses
PATIENCE = 10                           # seconds that the interpreter's end waits


class Figures(NamedTuple):
    """What a framework has on a device."""

    held: int                           # bytes that it has of the driver
    cached: int                         # and of these, bytes that it could give back
    release: Callable[[], object]       # does so


def _pytorch(torch: Any, device: int) -> Figures:
    if not torch.cuda.is_initialized():
        return Figures(0, 0, torch.cuda.empty_cache)
    torch.cuda.set_device(device)       # or this thread would make a context on device 0
    figures = torch.cuda.memory_stats(device)
    held, active, split = (
        figures[name + "_bytes.all.current"] for name in ("reserved", "active", "inactive_split"))
    return Figures(held, held - active - split, torch.cuda.empty_cache)


def _cupy(cupy: Any, device: int) -> Figures:
    cupy.cuda.Device(device).use()      # the pool answers for the device that is current
    pool = cupy.get_default_memory_pool()
    return Figures(pool.total_bytes(), pool.free_bytes(), pool.free_all_blocks)


FRAMEWORKS = {"torch": ("PyTorch", _pytorch), "cupy": ("CuPy", _cupy)}


class Cache:
    """What one framework has cached on one device."""

    def __init__(self, name: str, device: int) -> None:
        self._name, self._device = name, device
        self._pauses = [0] * OCCASIONS  # how many occasions passed after the last failure,
        self._left = [0] * OCCASIONS    # and how many of them are left
        # The occasion of the last release, bytes given back, bytes kept; until that is judged.
        self._last: tuple[int, int, int] | None = None

    def trim(self, occasion: int) -> None:
        """Gives back what is worth it."""
        held, cached, release = self._look()
        self._judge(held)
        if self._left[occasion] > 0:
            self._left[occasion] -= 1
        elif cached >= WORTH:
            release()
            kept = self._look().held
            self._last = occasion, held - kept, kept
            if held - kept < cached / 2:
                self.failed(occasion)

    def failed(self, occasion: int) -> None:
        """It was of no use to ask."""
        self._last = None
        self._pauses[occasion] = min(2 * self._pauses[occasion] or 1, LONGEST_PAUSE)
        self._left[occasion] = self._pauses[occasion]

    def _look(self) -> Figures:
        # If another thread is importing the framework, this waits until that is done.
        return FRAMEWORKS[self._name][1](importlib.import_module(self._name), self._device)

    def _judge(self, held: int) -> None:
        if self._last is None:
            return
        occasion, given, kept = self._last
        if held - kept > given / 2:
            self.failed(occasion)
        else:
            self._pauses[occasion] = 0
        self._last = None


class Trimmer:
    """The thread, from when the program imports a framework."""

    def __init__(self) -> None:
        self._releasing = threading.Lock()
        self._complained = False
        self._caches: dict[tuple[str, int], Cache] = {}

    def start(self) -> None:
        """Does nothing if the program runs without the library."""
        import ctypes

        wait = getattr(ctypes.CDLL(None), "nvshare_trim_wait", None)
        if wait is None:
            return
        self._run(wait)
        os.register_at_fork(after_in_child=lambda: self._run(wait))
        atexit.register(lambda: self._releasing.acquire(timeout=PATIENCE))

    def _run(self, wait: Callable[[], int]) -> None:
        self._releasing = threading.Lock()      # after a fork, the old one may be locked for ever
        try:
            threading.Thread(
                target=self._serve, args=(wait,), name="nvshare_caches", daemon=True).start()
        except RuntimeError as error:
            self._complain(f"there is no thread for it ({error})")

    def _serve(self, wait: Callable[[], int]) -> None:
        while True:
            device, occasion = divmod(wait(), OCCASIONS)
            with self._releasing:
                for name in FRAMEWORKS:
                    if name in sys.modules:
                        self._trim(name, device, occasion)

    def _trim(self, name: str, device: int, occasion: int) -> None:
        cache = self._caches.setdefault((name, device), Cache(name, device))
        try:
            cache.trim(occasion)
        except Exception as error:
            cache.failed(occasion)
            self._complain(f"{FRAMEWORKS[name][0]} does not give back what it has cached "
                           f"({type(error).__name__}: {error})")

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            sys.stderr.write(f"nvshare_caches[{os.getpid()}]: {what}; the program goes on\n")


class Watch:
    """Is asked for each module before it is imported, and leaves importing it to the others."""

    started = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """What the import system calls."""
        if name in FRAMEWORKS and not self.started:
            self.started = True
            Trimmer().start()


if os.environ.get("NVSHARE_TRIM_CACHES") == "1":
    watch = Watch()
    sys.meta_path.insert(0, watch)
    for name in FRAMEWORKS.keys() & sys.modules.keys():
        watch.find_spec(name)
