# SPDX-License-Identifier: Apache-2.0
"""A capture that a living thread leaves open delays no hand-over while no work is in flight."""

import os

import pytest

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import PRELUDE, Program
from tests.integration.test_contexts import WAITING

needs_context_events = pytest.mark.skipif(
    os.environ.get("NVSHARE_SIM_DRIVER") in ("535", "550"),
    reason="before CUDA 12.5 there is no cuCtxRecordEvent, and a drain waits for the capture's end")

PREPARED = WAITING.removeprefix(PRELUDE) + '''
address, captured, side, legacy = allocate(64 * MIB), new_stream(), new_stream(), new_stream(0)
fill(address, 7, 64 * MIB)
def capture(stream=captured, mode=RELAXED):
    call("cuStreamBeginCapture_v2", stream, c_int(mode))
def capture_ends(stream=captured):
    graph, runnable = c_void_p(), c_void_p()
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphInstantiateWithFlags", byref(runnable), graph, 0)
    call("cuGraphLaunch", runnable, stream)
    call("cuStreamSynchronize", stream)
def fill_in(stream, value):
    call("cuMemsetD8Async", address, c_uint(value), 64 * MIB, stream)
'''
ENDING = '''
reached.value = 1
call("cuCtxSynchronize")
assert get(address, 64 * MIB) == bytes([expected]) * (64 * MIB)
'''


def program_of(site: Site, body: str) -> tuple[FakeDaemon, Program]:
    return begin(site, PREPARED + body + ENDING, allocated=64 * MIB)


# By name: calls before and after the pause, and the value of the filled 64 MiB afterwards.
RESTING = {
    "a launch": ("capture()\nwait_in(captured)\nreached.value = 1\naway()\ncapture_ends()\n", 7),
    "in a stream that waits for the default one":
        ("capture(legacy)\nfill_in(legacy, 9)\naway()\ncapture_ends(legacy)\n", 9),
    "again": ("capture()\ncapture_ends()\nfill_in(side, 8)\ncall('cuStreamSynchronize', side)\n"
              "capture()\nfill_in(captured, 9)\naway()\ncapture_ends()\n", 9),
}


@needs_context_events
@pytest.mark.parametrize("body", RESTING)
def test_idle_client_obeys_stop_while_its_capture_stays_open(site: Site, body: str) -> None:
    body, expected = RESTING[body]
    daemon, program = program_of(site, f"expected = {expected}\n{body}")
    daemon.send(OrderRecord(Type.STOP), OrderRecord(Type.EVICT, number=2, host=1 << 40))
    daemon.until(Type.STOPPED)
    assert daemon.until(Type.MOVED).memory.resident == 0
    assert Type.REOPENED not in [record.type for record in daemon.said]
    daemon.let_return(program)


# Work that is in flight during the capture.
UNDER_WAY = {
    "from before": "wait_in(side)\ncapture()\naway()\n",
    "beside it": "capture()\nwait_in(side)\naway()\n",
}


@pytest.mark.parametrize("body", UNDER_WAY)
def test_client_with_an_open_capture_delays_its_stop_reply_while_other_work_is_in_flight(
    site: Site, body: str
) -> None:
    daemon, program = program_of(
        site, "expected = 9\n" + UNDER_WAY[body]
        + "fill_in(side, 9)\nreached.value = 1\ncapture_ends()\n")
    daemon.send(OrderRecord(Type.STOP))
    daemon.assert_no_stop()
    daemon.let_return(program)


@needs_context_events
def test_work_submitted_before_a_capture_is_drained_while_the_capture_stays_open(
    site: Site
) -> None:
    daemon, program = program_of(
        site, "expected = 7\nwait_in(side)\ncapture()\n"
        "threading.Timer(0.3, lambda: setattr(reached, 'value', 1)).start()\n"
        "away()\ncapture_ends()\n")
    daemon.stop()
    daemon.let_return(program)
