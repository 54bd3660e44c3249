# SPDX-License-Identifier: Apache-2.0
"""Drains with drivers that lack cuCtxRecordEvent and the query of a green context.

make test-drivers runs all tests of this level with older drivers.
"""

from collections.abc import Callable

import pytest

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import PRELUDE, Program
from tests.integration.test_contexts import WAITING
from tests.integration.test_green_contexts import GREEN

Start = Callable[[str], tuple[FakeDaemon, Program]]


@pytest.fixture
def start(site: Site) -> Start:
    site.environment["NVSHARE_SIM_DRIVER"] = "535"

    def run(body: str) -> tuple[FakeDaemon, Program]:
        return begin(site, body.removeprefix(PRELUDE), allocated=64 * MIB)

    return run


# By name of the stream: calls that submit work to the stream and may destroy it.
STREAMS = {
    "its own order": 'stream = new_stream()\nwork()',
    "a thread's": 'stream.value = 2\nthread = threading.Thread(target=work)\n'
                  'thread.start()\nthread.join()',
    "another context's": 'new_context()\nstream = new_stream()\nwork()',
    "destroyed in a capture": 'stream = new_stream()\nwork()\n'
                              'call("cuStreamBeginCapture_v2", stream, c_int(GLOBAL))\n'
                              'call("cuStreamDestroy_v2", stream)',
}

AT_WORK = WAITING + '''
address, stream = allocate(64 * MIB), c_uint64()
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
    daemon.assert_no_stop()
    program.go_on()
    assert program.hears() == "away"
    assert daemon.until(Type.MOVED).moved >= 64 * MIB
    daemon.let_return(program)


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
    program.finish()
