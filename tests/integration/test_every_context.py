# SPDX-License-Identifier: Apache-2.0
"""Memory is not evicted while work is in flight in any context, however it was created."""

import pytest

from tests.integration.conftest import Site, kill
from tests.integration.programs import PRELUDE, Program
from tests.integration.test_contexts import WAITING

MANY = 20

# In the current context, work that waits and then fills memory of another context.
UNDER_WAY = '''
stream = new_stream()
wait_in(stream)
call("cuMemsetD8Async", address, 7, size, stream)
threading.Timer(1, lambda: setattr(reached, "value", 1)).start()
away()
call("cuStreamSynchronize", stream)
call("cuCtxSetCurrent", home)
assert get(address, size) == bytes([7]) * size
'''

MINE = WAITING + '''
other, size = c_void_p(), 64 * MIB
address = allocate(size)
'''

# The driver's own function, found in the library file's symbol table.
PAST_THE_LIBRARY = '''
import subprocess
def past(name):
    maps = [line.split() for line in open("/proc/self/maps") if "/libcuda.so" in line]
    names = subprocess.run(["nm", "-D", maps[0][-1]], capture_output=True, text=True).stdout
    offset = next(line.split()[0] for line in names.splitlines() if line.split()[-1] == name)
    return ctypes.CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)(
        int(maps[0][0].split("-")[0], 16) + int(offset, 16))
assert past("cuCtxCreate_v2")(ctypes.addressof(other), 0, 0) == 0
'''

MADE = {
    f"the last of {MANY}": f'''
for _ in range({MANY}):
    new_context()
''',
    "for OpenGL": 'call("cuGLCtxCreate_v2", byref(other), 0, 0)\n',
    "by whom nobody sees, then entered": PAST_THE_LIBRARY + 'call("cuCtxSetCurrent", other)\n',
    "by whom nobody sees, then pushed": PAST_THE_LIBRARY + 'call("cuCtxPushCurrent_v2", other)\n',
    "by whom nobody sees, then used": PAST_THE_LIBRARY + '''
more = allocate(MIB)
''',
}

PROGRAMS = {how: MINE + made + UNDER_WAY for how, made in MADE.items()}


def sent_away(site: Site, body: str) -> None:
    program = Program(site, body.removeprefix(PRELUDE))
    program.evict()
    program.ends_well()


@pytest.mark.parametrize("how", PROGRAMS)
def test_drain_waits_for_work_in_every_context(how: str, site: Site) -> None:
    site.environment["NVSHARE_SIM_CONTEXT"] = str(1 << 20)
    site.start("--tq", "1")
    sent_away(site, PROGRAMS[how])


def test_drain_waits_for_work_on_an_unshared_card(site: Site) -> None:
    """The card was first used while no daemon ran."""
    daemon = site.start("--tq", "1")
    program = Program(site, MINE.removeprefix(PRELUDE) + '''
away()
call("cuDevicePrimaryCtxRetain", byref(other), 1)
call("cuCtxSetCurrent", other)
call("cuCtxEnablePeerAccess", home, 0)
away()
''' + UNDER_WAY)
    assert program.hears() == "away"
    kill(daemon)
    program.go_on()
    assert program.hears() == "away"
    site.start("--tq", "1")
    program.go_on()
    program.evict()
    program.ends_well()


def test_drain_does_not_wait_for_an_ended_context(site: Site) -> None:
    """The drain does not wait either for a new context at the same address without work."""
    site.start("--tq", "1")
    sent_away(site, MINE + '''
for _ in range(40):
    call("cuCtxCreate_v2", byref(other), 0, 0)
    call("cuCtxDestroy_v2", other)
call("cuCtxSetCurrent", home)
put(address, bytes([5]) * size)
away()
assert get(address, size) == bytes([5]) * size
''')
