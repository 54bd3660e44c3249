# SPDX-License-Identifier: Apache-2.0
"""A client's memory is not evicted while work is in flight in any of the client's contexts."""

import pytest

from tests.integration.conftest import Site, kill
from tests.integration.programs import PRELUDE, Program
from tests.integration.test_broken import BEHIND_THE_LIBRARY
from tests.integration.test_contexts import WAITING

MANY = 20

# Work of the current context, which waits and then fills memory of another context.
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

UNSEEN = BEHIND_THE_LIBRARY + '''
assert behind_the_library("cuCtxCreate_v2")(byref(other), c_uint64(0), c_uint64(0)) == 0
'''

MADE = {
    f"the last of {MANY}": f"for _ in range({MANY}): new_context()\n",
    "for OpenGL": 'call("cuGLCtxCreate_v2", byref(other), 0, 0)\n',
    "created behind the library, then set": UNSEEN + 'call("cuCtxSetCurrent", other)\n',
    "created behind the library, then pushed": UNSEEN + 'call("cuCtxPushCurrent_v2", other)\n',
    "created behind the library, then used": UNSEEN + "more = allocate(MIB)\n",
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
