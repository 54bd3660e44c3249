# SPDX-License-Identifier: Apache-2.0
"""A program larger than the card is out of memory unless NVSHARE_ENABLE_SINGLE_OVERSUB is 1."""

import subprocess

from nvshared.units import MIB
from tests.integration.conftest import Site, kill
from tests.integration.fakehook import PATIENCE
from tests.integration.test_managed import CONTEXTS, on_the_card, program

CAPACITY = 120 * MIB
ALLOWED = {"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}


def workload(site: Site, size: str, **settings: str) -> subprocess.Popen[str]:
    return site.workload("--memory", size, "--chunk", "16MiB", "--steps", "3", "--kernel-us",
                         "2000", "--json", **settings)


def test_allocation_beyond_the_card_without_single_oversub_returns_out_of_memory(
    site: Site
) -> None:
    site.start("--capacity", str(CAPACITY))
    for settings in ({}, {"NVSHARE_ENABLE_SINGLE_OVERSUB": "0"}):
        large = workload(site, "160MiB", **settings)
        said, _ = large.communicate(timeout=PATIENCE)
        assert large.returncode == 3, said


def test_program_larger_than_the_card_computes_right_results_in_turns(site: Site) -> None:
    trace = str(site.folder / "trace")
    site.start("--tq", "300ms", "--capacity", str(CAPACITY), "--trace", trace)
    both = [workload(site, "160MiB", **ALLOWED), workload(site, "80MiB")]
    for one in both:
        said, _ = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, said
    lines = site.trace()
    resident = [line["memory"]["resident"] + line["memory"]["pinned"]
                for line in lines if "memory" in line]
    assert max(resident) <= CAPACITY
    assert len({line["client"] for line in lines if line.get("report") == "turn-started"}) == 2


def test_allocation_too_large_for_the_card_has_the_attributes_of_card_memory(site: Site) -> None:
    site.environment = {**site.environment, **ALLOWED}
    site.start("--tq", "1", "--capacity", str(CAPACITY))
    one = program(site, '''
def asked(address):
    base, length = c_uint64(), c_size_t()
    call("cuMemGetAddressRange_v2", byref(base), byref(length), address + 5 * MIB)
    call("cuPointerGetAttribute", byref(c_uint64()), c_int(4), address, result=INVALID)
    return [base.value - address, length.value, attribute(2, address, c_uint),
            attribute(8, address, c_uint), attribute(9, address, c_int),
            attribute(1, address) == context.value, attribute(13, address, c_uint)]
size = 100 * MIB
here, beyond = allocate(size), allocate(size)
fill(here, 3, size)
fill(beyond, 4, size)
assert used() == size, used()
assert asked(here) == asked(beyond)
call("cuPointerSetAttribute", byref(c_uint(1)), c_int(7), here, result=INVALID)     # BUFFER_ID
call("cuPointerSetAttribute", byref(c_uint(1)), c_int(6), here)                     # SYNC_MEMOPS
assert attribute(6, here, c_uint) == 1
away()
assert asked(here) == asked(beyond)
sys.stdin.readline()
assert get(here, size) == bytes([3]) * size
assert get(beyond, size) == bytes([4]) * size
small = allocate(100)
more = managed(size)                    # managed memory may also exceed the card
fill(small, 5, 100)
fill(more, 6, size)
assert (get(small, 100), get(more, size)) == (bytes([5]) * 100, bytes([6]) * size)
print(json.dumps("full"), flush=True)
sys.stdin.readline()
call("cuMemFreeAsync", more, None, result=INVALID)
call("cuMemFreeAsync", beyond, None)
call("cuMemFree_v2", beyond, result=INVALID)
for address in (here, more, small):
    call("cuMemFree_v2", address)
assert used() <= GRAIN, used()          # one page is kept for small allocations
''')
    assert one.hears() == "away"
    assert on_the_card(site) < CAPACITY + CONTEXTS
    hook = site.holding(110 * MIB)
    assert on_the_card(site) < CONTEXTS
    one.go_on()
    one.go_on()
    hook.close()
    assert one.hears() == "full"
    assert on_the_card(site) < CAPACITY + CONTEXTS
    one.go_on()
    one.ends_well()


def test_program_larger_than_the_card_survives_a_daemon_restart(site: Site) -> None:
    site.environment = {**site.environment, **ALLOWED}
    command = "--tq", "1", "--capacity", str(CAPACITY)
    daemon = site.start(*command)
    one = program(site, '''
first = [managed(50 * MIB) for _ in range(4)]          # two of the four are beyond the card
for place, address in enumerate(first):
    fill(address, place, 50 * MIB)
away()
call("cuMemFree_v2", first.pop())
first.append(managed(50 * MIB))
fill(first[3], 3, 50 * MIB)
for place, address in enumerate(first):
    assert get(address, 50 * MIB) == bytes([place]) * (50 * MIB)
''')
    assert one.hears() == "away"
    kill(daemon)
    site.start(*command)
    one.go_on()
    one.ends_well()
