# SPDX-License-Identifier: Apache-2.0
"""Gangs on two cards with kernels that wait for each other take turns and all finish."""

import subprocess
import sys
from time import sleep

import pytest

from tests.integration.conftest import Process, Site, kill

SHAPES = [["0,1"], ["0", "1"]]


class Gang:
    """A program on several cards, of one process or several. begin() waits for all processes."""

    def __init__(
        self, site: Site, name: str, *, cards: list[str], steps: int = 100, ahead: int = 1
    ) -> None:
        shared = site.folder / f"gang-{name}"
        shared.write_bytes(bytes(4096))
        # two gangs do not fit on a card together
        size = int(site.environment["NVSHARE_SIM_MEMORY"]) * 5 // 8
        number = str(sum(len(each.split(",")) for each in cards))
        self.ranks = [
            Process(site.program(
                [sys.executable, "-m", "tests.integration.gangs", shared, card, number, steps,
                 size, ahead],
                {"NVSHARE_GANG": f"{name}:2"} if len(cards) > 1 else {}, stderr=None))
            for card in cards
        ]

    def begin(self) -> None:
        for rank in self.ranks:
            assert rank.line() == "ready"
        for rank in self.ranks:
            rank.tell()

    def ends_well(self) -> None:
        for rank in self.ranks:
            assert rank.line() == "right"
            rank.end()


@pytest.mark.parametrize(("cards", "ahead"), [
    *zip(SHAPES, (40, 1), strict=True),
    *(pytest.param(*one, marks=pytest.mark.long) for one in zip(SHAPES, (1, 40), strict=True)),
])
def test_two_gangs_take_turns_and_finish(tiny_site: Site, cards: list[str], ahead: int) -> None:
    tiny_site.start("--tq", "1")
    gangs = [Gang(tiny_site, name, cards=cards, ahead=ahead) for name in ("a", "b")]
    for gang in gangs:
        gang.begin()
    for gang in gangs:
        gang.ends_well()


def test_killed_gang_does_not_delay_other_clients(tiny_site: Site) -> None:
    tiny_site.start("--tq", "1")
    doomed = Gang(tiny_site, "a", cards=["0", "1"], steps=1_000_000)
    other = Gang(tiny_site, "b", cards=["0", "1"], ahead=40)
    doomed.begin()
    other.begin()
    assert doomed.ranks[0].popen.poll() is None
    doomed.ranks[0].kill()
    with pytest.raises(subprocess.TimeoutExpired):
        doomed.ranks[1].popen.wait(2)         # its kernel waits for the other rank's kernel
    doomed.ranks[1].kill()
    other.ends_well()


def test_gangs_finish_after_the_daemon_is_killed_and_restarted_repeatedly(tiny_site: Site) -> None:
    daemon = tiny_site.start("--tq", "1")
    gangs = [Gang(tiny_site, name, cards=["0", "1"], steps=400) for name in ("a", "b")]
    for gang in gangs:
        gang.begin()
    for _ in range(2):
        sleep(0.5)
        kill(daemon)
        daemon = tiny_site.start("--tq", "1")
    for gang in gangs:
        gang.ends_well()
