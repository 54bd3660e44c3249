# SPDX-License-Identifier: Apache-2.0
"""How many launches a program may have in flight, and when it is reported as idle."""

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.programs import Program

LAUNCHES = 400
AHEAD = '''
import time
spin = kernel("spin")
def ahead():
    "Launches a kernel that runs longer than the program takes until its next launch."
    event = c_void_p()
    launch(spin, None, TAKES)
    call("cuEventCreate", byref(event), 2)
    call("cuEventRecord", event, 0)
    time.sleep(0.001)
    return event
events = [ahead() for _ in range(LAUNCHES)]
say(sum(cuda.cuEventQuery(event) != 0 for event in events))
'''


@pytest.mark.parametrize("others_wait", [False, True])
def test_pace_bounds_launches_in_flight_while_other_clients_wait(
    site: Site, others_wait: bool
) -> None:
    # the newest driver: before CUDA 12.5 no client is paced
    site.environment["NVSHARE_SIM_DRIVER"] = ""
    # An unpaced client submits far ahead even on a busy machine.
    takes = 5_000 if others_wait else 1_000_000
    daemon = FakeDaemon(site)
    program = Program(site, f"LAUNCHES, TAKES = {LAUNCHES}, {takes}\n{AHEAD}")
    daemon.accept(Flag.PACE if others_wait else Flag(0))
    daemon.rest()
    ahead = program.hears()
    program.ends_well()
    assert ahead <= LAUNCHES // 4 if others_wait else ahead > LAUNCHES // 4


def test_client_reports_idle_again_to_a_restarted_daemon(site: Site) -> None:
    flags = Flag.PACE | Flag.REPORT_IDLE
    daemon = FakeDaemon(site)
    program = Program(site, "os.read(0, 1)")
    daemon.accept(flags)
    daemon.until(Type.IDLE)
    daemon.send(OrderRecord(Type.INTRODUCE, number=7))
    daemon.until(Type.HELLO)
    daemon.send(OrderRecord(Type.RUN, flags=flags))
    daemon.until(Type.IDLE)
    daemon.let_finish(program)


SECONDS_OF_WORK = """
import time
spin = kernel("spin")
os.read(0, 1)
while True:                             # the test ends it
    launch(spin, None, 1000)
    call("cuCtxSynchronize")
"""


def test_client_reported_as_idle_reports_its_next_work_and_idleness_for_a_changed_window(
        site: Site) -> None:
    flags, window = Flag.REPORT_IDLE, 2_000_000
    daemon = FakeDaemon(site)
    program = Program(site, SECONDS_OF_WORK)
    daemon.accept(flags, window)
    assert not daemon.until(Type.IDLE).has(Flag.WANTS)
    daemon.send(OrderRecord(Type.RUN, flags=flags | Flag.PACE, idle_window=100_000))
    assert not daemon.until(Type.IDLE).has(Flag.WANTS)
    program.go_on()
    assert daemon.until(Type.IDLE).has(Flag.WANTS)
    program.kill()


PAUSES = 8
PAUSES_OF_BOTH_KINDS = f"""
import time
spin = kernel("spin")
pause("waits")
for seconds in (1.5, 1.5, *[0.15] * {PAUSES}, 0):
    launch(spin, None, 1000)
    call("cuCtxSynchronize")
    time.sleep(seconds)
pause("done")
"""


def test_client_reports_idleness_in_long_pauses_and_learns_to_outwait_short_ones(
        site: Site) -> None:
    """The window of the order, 0.9 s, would outwait each short pause; 10 ms would outwait none."""
    daemon = FakeDaemon(site)
    program = Program(site, PAUSES_OF_BOTH_KINDS)
    daemon.accept()
    assert program.hears() == "waits"
    daemon.run(contended=True, idle_window=900_000)
    before = len(daemon.said)
    program.go_on()
    assert program.hears() == "done"
    daemon.move(Type.LOAD, daemon.room)
    idle = [one for one in daemon.said[before:]
            if one.type is Type.IDLE and not one.has(Flag.WANTS)]
    assert 2 < len(idle) < 2 + PAUSES
    program.finish()
