# SPDX-License-Identifier: Apache-2.0
"""Programs on two cards whose kernels wait for each other take turns there, and all end."""

import subprocess
import sys

import pytest

from nvshared.units import MIB
from tests.integration.conftest import ROOT, Site
from tests.integration.test_kills import BUILD

SIZE = 100 * MIB                        # two of these do not fit a card
PATIENCE = 300


class Gang:
    """One program on both cards: one process, or one for each."""

    def __init__(
        self, site: Site, name: str, *, processes: int, steps: int = 500, ahead: int = 1,
        size: int = SIZE,
    ) -> None:
        shared = site.folder / f"gang-{name}"
        shared.write_bytes(bytes(4096))
        cards = ["0,1"] if processes == 1 else ["0", "1"]
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.integration.gangs", str(shared), card, "2",
                 str(steps), str(size), str(ahead)],
                cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**site.environment, "LD_PRELOAD": str(BUILD / "libnvshare.so"),
                     "NVSHARE_SOCKET": str(site.socket),
                     **({"NVSHARE_GANG": f"{name}:2"} if processes > 1 else {})},
            )
            for card in cards
        ]
        site.started += self.ranks

    def begin(self) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write("\n")
            rank.stdin.flush()

    def ends_well(self) -> None:
        for rank in self.ranks:
            said, _ = rank.communicate(timeout=PATIENCE)
            assert said == "right\n"
            assert rank.returncode == 0


def turns(site: Site) -> int:
    return sum(line.get("event") == "TurnStarted" for line in site.trace())


@pytest.mark.parametrize("ahead", [1, 40])
@pytest.mark.parametrize("processes", [1, 2])
def test_two_gangs_take_turns_and_end(
    small_site: Site, processes: int, ahead: int
) -> None:
    small_site.start("--tq", "1")
    gangs = [Gang(small_site, name, processes=processes, ahead=ahead) for name in ("a", "b")]
    for gang in gangs:
        gang.begin()
    for gang in gangs:
        gang.ends_well()
