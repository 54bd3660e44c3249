# SPDX-License-Identifier: Apache-2.0
"""Clients that fit on the card together have turns at once; others take turns."""

import subprocess
import sys

from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests.integration.conftest import CARD, ROOT, Site
from tests.integration.fakehook import pump

PROGRAM = "import sys; from nvshared.cli.main import main; sys.exit(main())"
NVSHARECTL = (sys.executable, "-c", PROGRAM)
LARGE = 700 * MIB
SMALL = 300 * MIB


def test_two_clients_that_fit_on_the_card_together_have_turns_at_once(site: Site) -> None:
    site.start()
    one, two = site.wanting(SMALL), site.wanting(SMALL)
    pump([one, two], lambda: one.running and two.running)
    assert not one.paced
    assert not two.paced


def test_idle_holder_hands_over_before_its_quantum_is_over(site: Site) -> None:
    site.start("--tq", "3600", "--trace", str(site.folder / "trace"))
    one = site.holding(LARGE)
    two = site.wanting(LARGE)
    for holder, waiter in ((one, two), (two, one)) * 5:
        pump([one, two], lambda holder=holder: holder.running and holder.paced)  # type: ignore[misc]
        holder.say(Type.IDLE)
        pump([one, two], lambda waiter=waiter: waiter.running)      # type: ignore[misc]
        assert not holder.running
        assert waiter.memory.resident == LARGE
    for hook in (one, two) * 2:         # an answer of one hook may cause an order to the other
        hook.settle()

    lines = site.trace()
    ordered = {(line["client"], line["number"]) for line in lines
               if line.get("order") in ("evict", "load")}
    answered = {(line["client"], line["number"]): line for line in lines
                if line.get("event") in ("evicted", "loaded")}
    assert ordered == set(answered)
    moved = [line["bytes"] for line in answered.values() if line["event"] == "evicted"]
    # Evicts only as much as needed: of 2 * 700 MiB on a card of 1024, 376 MiB in each hand-over.
    assert sum(moved) <= 10 * (2 * LARGE - CARD + 32 * MIB)
    assert [line["reason"] for line in lines if line.get("report") == "turn-ended"] == ["idle"] * 10


def test_busy_holder_is_stopped_when_its_quantum_is_over(site: Site) -> None:
    site.start("--tq", "1")
    one, two = site.wanting(LARGE), site.wanting(LARGE)
    for _ in range(2):
        pump([one, two], lambda: one.running)
        pump([one, two], lambda: two.running)


def test_drain_command_lets_clients_that_fit_together_run_and_lists_the_others(
    site: Site, bus: str
) -> None:
    daemon = site.start("--bus", bus)
    one = site.holding(LARGE)
    large, small = site.allocating(LARGE), site.allocating(SMALL)
    with subprocess.Popen(
        [*NVSHARECTL, "--bus", bus, "drain", "--no-wait"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as drain:
        pump([one, large, small], lambda: small.running)
        said, error = drain.communicate()
    assert drain.returncode == 1
    # a line for each client, and one for the client that continues
    assert len(said.splitlines()) == 3
    assert error.startswith("nvsharectl: 1 program would stand still without nvshared; ")
    daemon.terminate()
    daemon.wait()
    assert (one.running, large.running, small.running) == (True, False, True)
