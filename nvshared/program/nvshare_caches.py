# SPDX-License-Identifier: Apache-2.0
"""Makes PyTorch and CuPy free cached GPU memory when libnvshare.so requests that.

Cached memory that is freed before an eviction need not be copied; libhook/src/service/caches.c
decides when. A trim has failed if it frees less than half of the cache, raises an error, or if by
the next request half of the freed memory is allocated again. After a failure one request of that
kind (OCCASIONS) is skipped, then two, four, up to LONGEST_PAUSE. Works in Python 3.8 or later."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

WORTH = 256 << 20                       # bytes of the smallest trim: moving 256 MiB takes 10 ms
LONGEST_PAUSE = 64                      # most requests that are skipped after a failed trim
OCCASIONS = 2                           # number of request kinds: a turn begins; a program pauses
PATIENCE = 10                           # seconds that the interpreter's end waits for a trim


class CacheFigures(NamedTuple):
    held: int                           # bytes that the framework has allocated from the driver
    cached: int                         # bytes of `held` that the framework can free
    release: Callable[[], object]       # frees `cached` bytes


def _pytorch(torch: Any, device: int) -> CacheFigures:
    if not torch.cuda.is_initialized():
        return CacheFigures(0, 0, torch.cuda.empty_cache)
    torch.cuda.set_device(device)       # or this thread would make a context on device 0
    figures = torch.cuda.memory_stats(device)
    held, active, split = (
        figures[name + "_bytes.all.current"] for name in ("reserved", "active", "inactive_split"))
    return CacheFigures(held, held - active - split, torch.cuda.empty_cache)


def _cupy(cupy: Any, device: int) -> CacheFigures:
    cupy.cuda.Device(device).use()      # the pool's figures are those of the current device
    pool = cupy.get_default_memory_pool()
    return CacheFigures(pool.total_bytes(), pool.free_bytes(), pool.free_all_blocks)


FRAMEWORKS = {"torch": ("PyTorch", _pytorch), "cupy": ("CuPy", _cupy)}


class Cache:
    def __init__(self, name: str, device: int) -> None:
        self._name, self._device = name, device
        self._pauses = [0] * OCCASIONS  # requests to skip after the latest failure, by kind
        self._left = [0] * OCCASIONS    # requests still to skip, by kind
        # The last trim: its kind, bytes freed, bytes kept; None once it has been judged.
        self._last: tuple[int, int, int] | None = None

    def trim(self, occasion: int) -> None:
        """Frees the cache if it has at least WORTH bytes, unless this request is to be skipped."""
        held, cached, release = self._figures()
        if self._last is not None:
            previous, freed, kept = self._last
            self._last = None
            if held - kept > freed / 2:
                self.failed(previous)
            else:
                self._pauses[previous] = 0
        if self._left[occasion] > 0:
            self._left[occasion] -= 1
        elif cached >= WORTH:
            release()
            kept = self._figures().held
            self._last = occasion, held - kept, kept
            if held - kept < cached / 2:
                self.failed(occasion)

    def failed(self, occasion: int) -> None:
        """Notes that a trim has failed, and doubles the number of requests to skip."""
        self._last = None
        self._pauses[occasion] = min(2 * self._pauses[occasion] or 1, LONGEST_PAUSE)
        self._left[occasion] = self._pauses[occasion]

    def _figures(self) -> CacheFigures:
        # import_module() waits if another thread is importing the framework.
        return FRAMEWORKS[self._name][1](importlib.import_module(self._name), self._device)


class Trimmer:
    """The thread that trims caches. Starts when the program first imports a framework."""

    def __init__(self) -> None:
        self._releasing = threading.Lock()
        self._complained = False
        self._caches: dict[tuple[str, int], Cache] = {}

    def start(self) -> None:
        import ctypes

        wait = getattr(ctypes.CDLL(None), "nvshare_trim_wait", None)
        if wait is None:
            return
        self._run(wait)
        os.register_at_fork(after_in_child=lambda: self._run(wait))
        atexit.register(lambda: self._releasing.acquire(timeout=PATIENCE))

    def _run(self, wait: Callable[[], int]) -> None:
        self._releasing = threading.Lock()      # new: a forked child may inherit a held lock
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
            self._complain(f"{FRAMEWORKS[name][0]} does not give back its cached memory "
                           f"({type(error).__name__}: {error})")

    def _complain(self, what: str) -> None:
        if not self._complained:
            self._complained = True
            # stderr may be None, closed, or on a full disk.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                sys.stderr.write(f"nvshare_caches[{os.getpid()}]: {what}; the program goes on\n")


class ImportWatch:
    """A finder in sys.meta_path that notes imports of the frameworks and finds no module."""

    started = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Starts the thread at the first import of a framework. Returns None: not found here."""
        if name in FRAMEWORKS and not self.started:
            self.started = True
            Trimmer().start()


if os.environ.get("NVSHARE_TRIM_CACHES") == "1":
    watch = ImportWatch()
    sys.meta_path.insert(0, watch)
    for name in FRAMEWORKS.keys() & sys.modules.keys():
        watch.find_spec(name)
