# SPDX-License-Identifier: Apache-2.0
"""How far a program gets ahead of the card depends on whether somebody waits for it."""

import pytest

from nvshared.protocol import Type
from tests.integration.conftest import MIB, Site
from tests.integration.fakehook import pump
from tests.integration.test_own_memory import Program

LAUNCHES = 400
AHEAD = '''
import time
module, spin = c_void_p(), c_void_p()
with open("libhook/demo/kernels.ptx", "rb") as file:
    call("cuModuleLoadData", byref(module), file.read())
call("cuModuleGetFunction", byref(spin), module, b"nvshare_spin")
microseconds = c_uint64(5000)
passed = (c_void_p * 1)(ctypes.cast(byref(microseconds), c_void_p))
def launch():
    "A kernel that takes five times as long as it takes the program to come back."
    event = c_void_p()
    call("cuLaunchKernel", spin, *(1, 1, 1, 1, 1, 1, 0, 0), passed, None)
    call("cuEventCreate", byref(event), 2)
    call("cuEventRecord", event, 0)
    time.sleep(0.001)
    return event
away()
events = [launch() for _ in range(LAUNCHES)]
print(sum(cuda.cuEventQuery(event) != 0 for event in events), flush=True)
'''


@pytest.mark.parametrize("others_wait", [False, True])
def test_it_is_kept_from_getting_far_ahead_while_others_wait(
        site: Site, others_wait: bool) -> None:
    site.start("--tq", "1000", "--anti-thrash", "on")
    program = Program(site, f"LAUNCHES = {LAUNCHES}\n{AHEAD}")
    assert program.hears() == "away"
    if others_wait:
        hook = site.hook()
        assert hook.hello() is not None
        hook.say(Type.WANT)
        assert hook.allocate(MIB)       # answered, so the program has been told by now
    program.go_on()
    ahead = program.hears()
    assert ahead <= LAUNCHES // 4 if others_wait else ahead > LAUNCHES // 4
    program.ends_well()
    if others_wait:
        pump([hook], lambda: hook.running)
