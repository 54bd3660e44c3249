# SPDX-License-Identifier: Apache-2.0
"""Drivers that lack functions: what is safe is what today's driver makes of it.

NVSHARE_SIM_DRIVER=550 runs all tests of this level as that driver; make test-drivers does it.
"""

import select
from collections.abc import Callable

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type, decode_report
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.test_bus_sharing import Daemon
from tests.integration.test_captures import under
from tests.integration.test_contexts import WAITING
from tests.integration.test_drain import LONGER_THAN_A_WRONG_DRAIN
from tests.integration.test_green_contexts import GREEN
from tests.integration.test_own_memory import PRELUDE, Program

BEFORE_EVENTS_OF_CONTEXTS = ["535", "550"]

Start = Callable[[str], tuple[Daemon, Program]]


@pytest.fixture(params=BEFORE_EVENTS_OF_CONTEXTS)
def start(request: pytest.FixtureRequest, site: Site) -> Start:
    """Starts a program on such a driver, and has it work until it says that it is away."""
    site.environment["NVSHARE_SIM_DRIVER"] = request.param

    def run(body: str) -> tuple[Daemon, Program]:
        daemon = Daemon(site)
        program = Program(site, body.removeprefix(PRELUDE))
        daemon.accept(Flag(0))
        while daemon.until(Type.MEMORY).memory.allocated < 64 * MIB:
            continue
        assert program.hears() == "away"
        return daemon, program

    return run


DEPENDS = WAITING + '''
address, flag_there, first, second = (c_uint64() for _ in range(4))
for one in (first, second):
    call("cuStreamCreate", byref(one), FLAGS)
call("cuMemAlloc_v2", byref(address), 64 * MIB)
call("cuMemAlloc_v2", byref(flag_there), 4)
flag = flag_there
going_on = True
while going_on:
    call("cuMemsetD32_v2", flag_there, c_uint(0), 1)
    call("cuCtxSynchronize")             # which streams that do not block do not wait for
    wait_in(first)
    away()
    call("cuMemsetD32Async", flag_there, c_uint(1), 1, second)
    call("cuStreamSynchronize", first)
    print(json.dumps("done"), flush=True)
    going_on = sys.stdin.readline() != "end\\n"
'''


@pytest.mark.parametrize("flags", [0, 1])
def test_work_in_flight_may_depend_on_a_call_that_waits_at_the_gate(
    start: Start, flags: int
) -> None:
    daemon, program = start(DEPENDS.replace("FLAGS", str(flags)))
    assert program.popen.stdin is not None
    while True:
        daemon.send(OrderRecord(Type.STOP))
        program.go_on()
        assert program.hears() == "done"
        if daemon.until(Type.REOPENED, Type.STOPPED).type is Type.REOPENED:
            break
        daemon.send(OrderRecord(Type.RUN))          # the call came before the gate was shut
        program.go_on()
        assert program.hears() == "away"
    program.popen.stdin.write("end\n")
    program.popen.stdin.flush()
    daemon.rest()
    program.ends_well()


# How work comes to be in a stream, and what becomes of that.
STREAMS = {
    "its own order": 'call("cuStreamCreate", byref(stream), 1)\nwork()',
    "with a priority": 'call("cuStreamCreateWithPriority", byref(stream), 1, c_int(-1))\nwork()',
    "in order with the NULL stream": 'call("cuStreamCreate", byref(stream), 0)\nwork()',
    "the NULL stream": 'work()',
    "a thread's": 'stream.value = 2\nthread = threading.Thread(target=work)\n'
                  'thread.start()\nthread.join()',
    "another context's": 'begin_context()\ncall("cuStreamCreate", byref(stream), 1)\nwork()',
    "destroyed": 'call("cuStreamCreate", byref(stream), 1)\nwork()\n'
                 'call("cuStreamDestroy_v2", stream)',
    "destroyed in a capture": 'call("cuStreamCreate", byref(stream), 1)\nwork()\n'
                              'call("cuStreamBeginCapture_v2", stream, c_int(GLOBAL))\n'
                              'call("cuStreamDestroy_v2", stream)',
}

AT_WORK = WAITING + '''
address, stream = c_uint64(), c_uint64()
call("cuMemAlloc_v2", byref(address), 64 * MIB)
def work():
    if not stream.value == 2:
        call("cuCtxGetCurrent", byref(context))
    call("cuCtxSetCurrent", context)
    wait_in(stream)
    call("cuMemsetD8Async", address, 7, 64 * MIB, stream)
WORK
away()
reached.value = 1
away()
call("cuCtxSynchronize")
assert get(address, 64 * MIB) == bytes([7]) * (64 * MIB)
'''


@pytest.mark.parametrize("how", STREAMS)
def test_eviction_waits_for_streams_with_work_in_flight(start: Start, how: str) -> None:
    daemon, program = start(AT_WORK.replace("WORK\n", STREAMS[how] + "\n"))
    daemon.send(OrderRecord(Type.STOP), OrderRecord(Type.EVICT, number=2, host=1 << 40))
    while select.select([daemon.connection], [], [], LONGER_THAN_A_WRONG_DRAIN)[0]:
        assert decode_report(daemon.connection.recv(4096)).type is not Type.STOPPED
    program.go_on()
    assert program.hears() == "away"
    assert daemon.until(Type.MOVED).moved >= 64 * MIB
    daemon.send(OrderRecord(Type.LOAD, number=3, room=512 * MIB, host=1 << 40),
                OrderRecord(Type.RUN))
    program.go_on()
    daemon.rest()
    program.ends_well()


UNMARKED = WAITING + '''
own, stream = begin_context(), c_uint64()
call("cuStreamCreate", byref(stream), 1)
wait_in(stream)
threading.Timer(0.3, lambda: setattr(reached, "value", 1)).start()
call("cuStreamDestroy_v2", stream)
call("cuCtxDestroy_v2", own)
print(json.dumps("ended"))
'''


@pytest.mark.parametrize("driver", BEFORE_EVENTS_OF_CONTEXTS)
def test_context_ends_when_the_driver_creates_no_event(site: Site, driver: str) -> None:
    site.environment |= {"NVSHARE_SIM_DRIVER": driver, "NVSHARE_SIM_FAIL": "cuEventCreate:1+:2"}
    site.start()
    assert under(site, UNMARKED) == "ended"


FORKS = WAITING + '''
import signal
address, none = c_uint64(), c_uint64()
call("cuMemAlloc_v2", byref(address), 64 * MIB)
streams = [c_uint64() for _ in range(64)]
for stream in streams:
    call("cuStreamCreate", byref(stream), 1)
wait_in(streams[0])
away()
for _ in range(300):
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        cuda.cuStreamBeginCapture_v2(streams[1], c_int(RELAXED))
        cuda.cuStreamDestroy_v2(streams[1])
        cuda.cuCtxDestroy_v2(context)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
reached.value = 1
away()
'''


def test_child_forked_during_a_drain_waits_for_no_lock(start: Start) -> None:
    daemon, program = start(FORKS)
    daemon.send(OrderRecord(Type.STOP))
    program.go_on()
    assert program.hears() == "away"
    assert daemon.until(Type.STOPPED)
    program.go_on()
    daemon.rest()
    program.ends_well()


def test_program_with_a_green_context_is_pinned_on_a_driver_that_cannot_query_it(
    site: Site
) -> None:
    site.environment["NVSHARE_SIM_DRIVER"] = "550"
    site.start("--tq", "100ms")
    program = Program(site, GREEN + """
call("cuMemAlloc_v2", byref(address), size)
put(address, bytes([7]) * size)
away()
assert get(address, size) == bytes([7]) * size
""")
    assert program.popen.stderr is not None
    assert "this program stays on GPU 0" in program.popen.stderr.readline()
    program.go_on()
    program.ends_well()
