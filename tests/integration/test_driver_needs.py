# SPDX-License-Identifier: Apache-2.0
"""Other clients are evicted when the driver lacks memory for its own use on a full card."""

from pathlib import Path

import pytest

from nvshared.units import MIB
from tests.integration.conftest import Cards, Site
from tests.integration.programs import PRELUDE, Program, alone

# Two programs with this many bytes, and their contexts, leave 8 of the card's 224 MiB free.
EACH = 100 * MIB

FULL = PRELUDE + f'''
stream, address = new_stream(), allocate({EACH})
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
def launch_fill():
    launch(filling, stream, address, 1 << 17, 77, blocks=64, threads=256)
away()
call("cuModuleLoadData", byref(module), image)
call("cuModuleGetFunction", byref(filling), module, b"nvshare_fill")
launch_fill()
call("cuStreamSynchronize", stream)
call("cuStreamBeginCapture_v2", stream, c_int(2))
launch_fill()
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphInstantiateWithFlags", byref(exec), graph, 0)
call("cuGraphLaunch", exec, stream)
call("cuStreamSynchronize", stream)
print(json.dumps(zlib.crc32(get(address, len(data)))))
'''

NEEDY = ["cuModuleGetFunction", "cuLaunchKernel", "cuGraphLaunch", "cuStreamCreate"]


@pytest.fixture(scope="module")
def expected(cards: Cards) -> object:
    """The output of the program LATE alone on the card."""
    return alone(Site(Path(), *cards), LATE.replace("away()\n", ""))


@pytest.mark.parametrize("call", NEEDY)
def test_other_clients_are_evicted_for_memory_the_driver_needs(
    small_site: Site, expected: object, call: str
) -> None:
    site = small_site
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


def test_driver_call_returns_out_of_memory_when_no_eviction_frees_enough(site: Site) -> None:
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
