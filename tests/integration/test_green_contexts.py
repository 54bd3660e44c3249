# SPDX-License-Identifier: Apache-2.0
"""Green contexts: their memory belongs to the primary context, and drains wait for their work."""

import os

import pytest

from tests.integration.conftest import Site
from tests.integration.programs import PRELUDE, Program, alike
from tests.integration.test_contexts import WAITING
from tests.integration.test_every_context import UNDER_WAY, sent_away
from tests.integration.test_pools import POOLS

pytestmark = pytest.mark.skipif(
    os.environ.get("NVSHARE_SIM_DRIVER") in ("535", "550"),
    reason="before 555 there are none, or a program with one stays")

GREEN = WAITING + '''
class Resource(ctypes.Structure):
    _fields_ = [("type", c_int), ("padding", ctypes.c_ubyte * 92), ("rest", c_uint * 12)]
def begin_green():
    whole, part, count, described, made = Resource(), Resource(), c_uint(1), c_void_p(), c_void_p()
    call("cuDeviceGetDevResource", 0, byref(whole), 1)
    call("cuDevSmResourceSplitByCount", byref(part), byref(count), byref(whole), c_void_p(), 0, 8)
    call("cuDevResourceGenerateDesc", byref(described), byref(part), 1)
    call("cuGreenCtxCreate", byref(made), described, 0, 1)
    return made
def entered(made):
    handle = c_void_p()
    call("cuCtxFromGreenCtx", byref(handle), made)
    return handle
def let_go_on():
    threading.Timer(0.5, lambda: setattr(reached, "value", 1)).start()
address, other, stream, another, size = c_uint64(), c_uint64(), c_uint64(), c_uint64(), 32 * MIB
green = begin_green()
'''

ALLOCATED = 'call("cuMemAlloc_v2", byref(other), size)\n'

# fills the next allocation, which may reuse the address of the first
NEXT = '''
call("cuStreamCreate", byref(another), 1)
call("cuMemsetD8Async", other, 9, size, another)
call("cuStreamSynchronize", another)
call("cuStreamSynchronize", stream)
print(json.dumps(get(other, size) == bytes([9]) * size))
'''

TAKEN_FIRST = GREEN + '''
call("cuStreamCreate", byref(stream), 1)
call("cuCtxSetCurrent", entered(green))
call("cuMemAlloc_v2", byref(address), size)
call("cuCtxSetCurrent", home)
wait_in(stream)
call("cuMemsetD8Async", address, 7, size, stream)
let_go_on()
call("cuMemFree_v2", address)
'''

TAKEN_IN_IT = TAKEN_FIRST + '''
call("cuCtxSetCurrent", entered(green))
''' + ALLOCATED + '''
call("cuCtxSetCurrent", home)
''' + NEXT

ENDED_FIRST = (TAKEN_FIRST + ALLOCATED + NEXT).replace(
    "\nwait_in", '\ncall("cuGreenCtxDestroy", green)\nwait_in')

AT_WORK = GREEN + '''
call("cuGreenCtxStreamCreate", byref(stream), green, 1, 0)
call("cuMemAlloc_v2", byref(address), size)
wait_in(stream)
call("cuMemsetD8Async", address, 7, size, stream)
let_go_on()
'''

WORKED_IN_IT = AT_WORK + 'call("cuMemFree_v2", address)\n' + ALLOCATED + NEXT

ENDED_AT_WORK = AT_WORK + '''
call("cuGreenCtxDestroy", green)
call("cuMemFree_v2", address)
call("cuStreamCreate", byref(stream), 1)
''' + ALLOCATED + NEXT

THE_LAST = GREEN + '''
call("cuCtxSetCurrent", entered(green))
call("cuMemAlloc_v2", byref(address), size)
put(address, bytes([3]) * size)
call("cuDevicePrimaryCtxRelease_v2", 0)
results = [get(address, size) == bytes([3]) * size, cuda.cuGreenCtxDestroy(green)]
call("cuDevicePrimaryCtxRetain", byref(home), 0)
call("cuCtxSetCurrent", home)
call("cuMemAlloc_v2", byref(address), 900 * MIB)             # the green context's memory is free
print(json.dumps(results))
'''

IN_ORDER = GREEN + POOLS + '''
theirs = c_uint64()
setting(THRESHOLD, FOR_EVER)
call("cuGreenCtxStreamCreate", byref(theirs), green, 1, 0)
mine, its_own = stream(), entered(green)
taken = threading.Event(), threading.Event()
def has_it():
    call("cuCtxSetCurrent", its_own)                         # current to this thread only
    taken[0].set()
    taken[1].wait()
    call("cuCtxSetCurrent", c_void_p())
thread = threading.Thread(target=has_it)
thread.start()
taken[0].wait()
first = take(size, theirs)
wait_in(theirs)
call("cuMemsetD8Async", first, 7, size, theirs)
give(first, theirs)
second = take(size, mine)
call("cuMemsetD8Async", second, 9, size, mine)
call("cuStreamSynchronize", mine)
third = take(size, theirs)
call("cuMemsetD8Async", third, 5, size, theirs)
reached.value = 1
call("cuStreamSynchronize", theirs)
taken[1].set()
thread.join()
call("cuCtxSetCurrent", its_own)
fourth = take(size, 0)                                       # in the green context's default stream
call("cuMemsetD8Async", fourth, 4, size, 0)
give(fourth, 0)
call("cuCtxSynchronize")
print(json.dumps([first == second, get(second, size) == bytes([9]) * size,
                  get(third, size) == bytes([5]) * size]))
'''

PROGRAMS = {
    "allocated in a green context": TAKEN_IN_IT,
    "whose green context has ended": ENDED_FIRST,
    "that a green context's stream fills": WORKED_IN_IT,
    "that a green context filled as it ended": ENDED_AT_WORK,
    "of a primary context that a green one alone holds": THE_LAST,
    "of a pool, in the order of a green context's stream": IN_ORDER,
}


@pytest.mark.parametrize("which", PROGRAMS)
def test_memory_of_a_green_context_is_evicted_and_loaded(which: str, site: Site) -> None:
    alike(site, PROGRAMS[which])


MADE = {
    "by its stream": 'call("cuGreenCtxStreamCreate", byref(stream), green, 1, 0)\n',
    "that is current": '''
call("cuCtxSetCurrent", entered(green))
call("cuStreamCreate", byref(stream), 1)
''',
    "in the default stream": '''
call("cuCtxSetCurrent", entered(green))
stream = c_uint64(0)
''',
}

HANDED_OVER = {
    f"in a green context, {how}": GREEN + '''
size = 64 * MIB
call("cuMemAlloc_v2", byref(address), size)
''' + made + "wait_in" + UNDER_WAY.partition("wait_in")[2]
    for how, made in MADE.items()
}


@pytest.mark.parametrize("how", HANDED_OVER)
def test_drain_waits_for_work_of_a_green_context(how: str, site: Site) -> None:
    site.start("--tq", "1")
    sent_away(site, HANDED_OVER[how])


CHURN = GREEN.removeprefix(PRELUDE) + '''
import random
over = threading.Event()
def begin(kind):
    "A context of its own, a green one that is entered, or one that is not; and a stream in it."
    made, its_stream = c_void_p(), c_uint64()
    if kind == 0:
        made = new_context()
    else:
        made = begin_green()
    if kind == 1:
        call("cuCtxSetCurrent", entered(made))
    if kind == 2:
        call("cuGreenCtxStreamCreate", byref(its_stream), made, 1, 0)
    else:
        call("cuStreamCreate", byref(its_stream), 1)
    return made, its_stream
def churn(seed):
    dice, mine, there = random.Random(seed), c_uint64(), c_uint64()
    call("cuCtxSetCurrent", home)
    call("cuMemAlloc_v2", byref(mine), size)
    while not over.is_set():
        kind, value = dice.randrange(3), dice.randrange(256)
        made, its_stream = begin(kind)
        call("cuMemAlloc_v2", byref(there), size)
        call("cuMemsetD8Async", there, value ^ 1, size, its_stream)
        call("cuMemsetD8Async", mine, value, size, its_stream)
        if dice.randrange(2):
            call("cuMemFree_v2", there)
            there.value = 0
        call("cuStreamSynchronize", its_stream)
        call("cuStreamDestroy_v2", its_stream)
        call("cuCtxSetCurrent", home)
        call("cuGreenCtxDestroy" if kind else "cuCtxDestroy_v2", made)
        if kind and there.value:
            call("cuMemFree_v2", there)
        wrong.extend([value] * (get(mine, size) != bytes([value]) * size))
wrong, size = [], 4 * MIB
def begun(seed):
    try:
        churn(seed)
    except AssertionError as error:
        wrong.append(str(error))
threads = [threading.Thread(target=begun, args=[seed]) for seed in range(3)]
for thread in threads:
    thread.start()
away()
over.set()
for thread in threads:
    thread.join()
assert not wrong, wrong
'''


def test_green_contexts_can_be_made_and_destroyed_while_memory_is_evicted(site: Site) -> None:
    site.environment["NVSHARE_SIM_CONTEXT"] = str(1 << 16)
    site.start("--tq", "1")
    program = Program(site, CHURN)
    assert program.hears() == "away"
    for _ in range(5):
        site.holding().close()
    program.finish()


ABANDONED = GREEN.removeprefix(PRELUDE) + '''
status = c_int()
call("cuMemAlloc_v2", byref(address), size)
fill(address, 7, size)
call("cuGreenCtxStreamCreate", byref(stream), green, 1, 0)
def begins():
    call("cuCtxSetCurrent", home)
    call("cuStreamBeginCapture_v2", stream, c_int(GLOBAL))
thread = threading.Thread(target=begins)
thread.start()
thread.join()
call("cuCtxSetCurrent", entered(green))                      # current to this thread only
away()
call("cuStreamIsCapturing", stream, byref(status))
assert status.value == 0
'''


def test_capture_begun_by_an_ended_thread_in_a_green_context_delays_no_turn(site: Site) -> None:
    site.start("--tq", "100ms")
    program = Program(site, ABANDONED)
    assert program.hears() == "away"
    site.holding().close()
    program.finish()
