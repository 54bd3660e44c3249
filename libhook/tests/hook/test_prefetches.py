# SPDX-License-Identifier: Apache-2.0
"""Where a program has last prefetched each page to, against a list of all pages."""

import ctypes
import random
import subprocess
from pathlib import Path

from libhook.tests.doubles import SOURCE

PAGE = 4096
PAGES = 40
BASE = 0x7000000000
NOWHERE = (0, 0)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Prefetches(ctypes.Structure):
    """struct prefetches."""

    _fields_ = (("runs", ctypes.c_void_p), ("count", ctypes.c_size_t), ("room", ctypes.c_size_t))


def build(directory: Path) -> ctypes.CDLL:
    library = directory / "libprefetches.so"
    subprocess.run(
        ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{SOURCE}",
         f"-I{SOURCE.parent}/include", str(SOURCE / "block" / "prefetches.c"),
         "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.prefetches_last.restype = Location
    return loaded


def test_prefetches_return_the_last_destination_of_each_range(tmp_path: Path) -> None:
    library = build(tmp_path)
    dice = random.Random(1)
    for _ in range(50):
        noted = Prefetches()
        pages = [NOWHERE] * PAGES
        for _ in range(60):
            begin = dice.randrange(PAGES * PAGE)
            size = 1 + dice.randrange(PAGES * PAGE - begin)
            size = min(size, dice.choice((PAGE, 4 * PAGE, PAGES * PAGE)))
            touched = slice(begin // PAGE, (begin + size - 1) // PAGE + 1)
            arguments = ctypes.byref(noted), ctypes.c_uint64(BASE + begin), ctypes.c_size_t(size)
            if dice.random() < 0.5:
                place = dice.choice(((1, 0), (1, 1), (2, 0)))
                library.prefetches_note(*arguments, Location(*place))
                pages[touched] = [place] * len(pages[touched])
            got = library.prefetches_last(*arguments)
            places = set(pages[touched])
            expected = places.pop() if len(places) == 1 else NOWHERE
            assert (got.type, got.id if got.type else 0) == expected
        runs = sum(
            here != before and here != NOWHERE
            for before, here in zip([NOWHERE, *pages], pages, strict=False)
        )
        assert noted.count == runs      # neighbours of one place are one run
        library.prefetches_forget(ctypes.byref(noted))
