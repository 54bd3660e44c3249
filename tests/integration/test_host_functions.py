# SPDX-License-Identifier: Apache-2.0
"""Work in flight may wait for a lock, such as Python's, that a thread holds while it submits work.
The driver loads a module, unregisters host memory and ends a context only when no work is in
flight. Neither stops a hand-over."""

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import PRELUDE
from tests.integration.test_contexts import WAITING

SIZE = 64 * MIB
LOCKING = WAITING.removeprefix(PRELUDE) + '''
import faulthandler
faulthandler.dump_traceback_later(120, exit=True)

SIZE = 64 * MIB
lock, stream, address = threading.Lock(), new_stream(), allocate(SIZE)
fill(address, 7, SIZE)
@ctypes.CFUNCTYPE(None, c_void_p)
def takes_the_lock(_):
    with lock:
        pass
def calls_back():
    call("cuLaunchHostFunc", stream, takes_the_lock, None)
def submits():
    call("cuMemsetD8Async", address, c_uint(7), MIB, stream)
'''
HOLDS = 'call("cuStreamSynchronize", stream)\nassert get(address, SIZE) == bytes([7]) * SIZE\n'


def test_eviction_ends_while_a_thread_holds_the_lock_of_the_host_function_that_it_submits(
    site: Site
) -> None:
    daemon, program = begin(
        site, LOCKING + "away()\nwith lock:\n    calls_back()\n    submits()\n" + HOLDS,
        allocated=SIZE)
    daemon.stop()
    program.go_on()
    while Flag.WANTS not in Flag(daemon.receive().flags):           # the thread is at the gate
        continue
    assert daemon.move(Type.EVICT).moved == SIZE
    daemon.let_return(program)


@pytest.mark.parametrize("count", [1, 3])
def test_drain_ends_while_a_host_function_waits_for_the_lock_of_a_thread_at_the_gate(
    site: Site, count: int
) -> None:
    daemon, program = begin(
        site, LOCKING + "with lock:\n    calls_back()\n    away()\n" + "    submits()\n" * count
        + HOLDS, allocated=SIZE)
    daemon.send(OrderRecord(Type.STOP))
    wait_until(daemon.has_no_unread_order)
    program.go_on()
    assert daemon.until(Type.STOPPED, Type.REOPENED).type is Type.STOPPED
    daemon.let_return(program)


# Each frees memory that was swapped before, while work is in flight that waits for this thread.
FREES = '''
mapped, handle = map_memory(SIZE)
fill(mapped, 5, SIZE)
waiting = kernel("wait_flag")
away()
launch(waiting, stream, flag.value, 1)
call("cuMemUnmap", mapped, SIZE)
call("cuMemRelease", c_uint64(handle))
away()
more = allocate(SIZE)
submits()
away()
reached.value = 1
call("cuStreamSynchronize", stream)
call("cuMemFree_v2", c_uint64(more))
away()
'''


def evict_and_load(daemon: FakeDaemon) -> None:
    daemon.stop()
    daemon.move(Type.EVICT)
    daemon.move(Type.LOAD, daemon.room)
    daemon.run()


def test_host_memory_of_a_running_program_is_released_only_when_no_work_is_in_flight(
    site: Site
) -> None:
    daemon, program = begin(site, LOCKING + FREES + HOLDS, allocated=2 * SIZE)
    evict_and_load(daemon)
    swapped = daemon.memory.host
    assert swapped >= 2 * SIZE
    program.go_on()
    assert program.hears() == "away"
    daemon.until_memory(lambda memory: memory.allocated <= SIZE)
    assert daemon.memory.host == swapped
    program.go_on()                          # its allocation needs an answer of the daemon
    daemon.until_allocated(2 * SIZE)
    assert program.hears() == "away"
    program.go_on()
    assert program.hears() == "away"
    daemon.until_memory(lambda memory: memory.host <= SIZE)
    daemon.let_return(program)
