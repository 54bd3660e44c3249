# SPDX-License-Identifier: Apache-2.0
"""Four cards have the host's memory between them, and a program on one of them gets all of it."""

import subprocess
import sys
from collections.abc import Callable

from tests.integration.conftest import CARD, MIB, ROOT, Site
from tests.integration.test_kills import BUILD
from tests.integration.test_terms import ALLOCATOR

WHOLE = 1280 * MIB
FIRST, SECOND = 800 * MIB, 900 * MIB
assert FIRST + SECOND > CARD + WHOLE // 4

Allocate = Callable[[int], tuple[int, int]]


def allocator(site: Site) -> Allocate:
    """A program that allocates so many bytes, and says what came of it and what is free then."""
    popen = subprocess.Popen(
        [sys.executable, "-c", ALLOCATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd=ROOT, bufsize=1,
        env={
            **site.environment, "LD_PRELOAD": str(BUILD / "libnvshare.so"),
            "NVSHARE_SOCKET": str(site.socket),
        },
    )
    site.started.append(popen)
    said, answered = popen.stdin, popen.stdout
    assert said is not None
    assert answered is not None

    def allocate(size: int) -> tuple[int, int]:
        said.write(f"{size}\n")
        result, free, _ = map(int, answered.readline().split())
        return result, free

    return allocate


def test_what_other_cards_do_not_need_is_there_for_one_allocation(
    large_site: Site, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    large_site.start("--swap-budget", str(WHOLE))
    first, second = allocator(large_site), allocator(large_site)
    assert first(FIRST)[0] == 0
    eventually(lambda: second(0)[1] >= SECOND)      # of nothing it gets nothing, and sees the rest
    assert second(SECOND)[0] == 0
