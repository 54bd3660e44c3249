# SPDX-License-Identifier: Apache-2.0
"""The driver lacks memory for itself on a card that is full: others make room for it."""

import pytest

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.test_captures import alone
from tests.integration.test_own_memory import PRELUDE, Program

# Two of these and their contexts leave 8 MiB of the 1024 free.
EACH = 500 * MIB

FULL = PRELUDE + f'''
address, stream = c_uint64(), c_uint64()
call("cuStreamCreate", byref(stream), 1)
call("cuMemAlloc_v2", byref(address), {EACH})
data = bytes(range(256)) * (8 * MIB >> 8)
put(address, data)
'''

OTHER = FULL + '''
away()
assert get(address, len(data)) == data
'''

LATE = FULL + '''
import zlib
module, filling, graph, exec = (c_void_p() for _ in range(4))
with open("libhook/demo/kernels.ptx", "rb") as file:
    image = file.read()
def launch():
    values = [c_uint64(value) for value in (address.value, 1 << 17, 77)]
    passed = (c_void_p * 3)(*(ctypes.cast(byref(v), c_void_p) for v in values))
    call("cuLaunchKernel", filling, *(64, 1, 1, 256, 1, 1, 0), stream, passed, None)
away()
call("cuModuleLoadData", byref(module), image)
call("cuModuleGetFunction", byref(filling), module, b"nvshare_fill")
launch()
call("cuStreamSynchronize", stream)
call("cuStreamBeginCapture_v2", stream, c_int(2))
launch()
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphInstantiateWithFlags", byref(exec), graph, 0)
call("cuGraphLaunch", exec, stream)
call("cuStreamSynchronize", stream)
print(json.dumps(zlib.crc32(get(address, len(data)))))
'''

NEEDY = ["cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuGraphInstantiateWithFlags",
         "cuGraphLaunch", "cuStreamCreate"]


@pytest.mark.parametrize("call", NEEDY)
def test_other_clients_are_evicted_for_memory_the_driver_needs(site: Site, call: str) -> None:
    expected = alone(site, LATE.replace("away()\n", ""))
    site.start("--tq", "1")
    other = Program(site, OTHER.removeprefix(PRELUDE))
    assert other.hears() == "away"
    site.environment["NVSHARE_SIM_FAIL"] = f"{call}:<32M"
    late = Program(site, LATE.removeprefix(PRELUDE))
    assert late.hears() == "away"
    late.go_on()
    assert late.hears() == expected
    late.ends_well()
    other.go_on()
    other.ends_well()


def test_driver_memory_that_no_eviction_makes_room_for_is_out_of_memory(site: Site) -> None:
    """Alone on the card, whatever it would leave is its own."""
    site.start()
    site.environment["NVSHARE_SIM_FAIL"] = "cuModuleLoadData:<1024M"
    program = Program(site, '''
module = c_void_p()
call("cuModuleLoadData", byref(module), b"", result=2)
print(json.dumps("refused"))
''')
    assert program.hears() == "refused"
    program.ends_well()


def test_driver_call_out_of_memory_without_a_daemon_is_not_retried(site: Site) -> None:
    site.environment["NVSHARE_SIM_FAIL"] = "cuCtxSetLimit:1:2"
    Program(site, 'call("cuCtxSetLimit", c_int(0), 4096, result=2)').ends_well()
