# SPDX-License-Identifier: Apache-2.0
"""Memory of a pool that the driver manages counts on the pool's card, whichever is current."""

import pytest

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.programs import Program, ends_well
from tests.integration.test_peers import TWO
from tests.integration.test_pools import POOLS

# `context` is on card 0, `other` on card 1. A wrong count would change that of card 0's array.
PINNED = POOLS + '''
new_array(128 * MIB)
def used_on(which):
    call("cuCtxSetCurrent", which)
    return used()
def pool_of_card(card):
    pool = c_uint64()                    # an exportable pool, which stays with the driver
    call("cuMemPoolCreate", byref(pool), byref(PoolProperties(1, 1, Location(1, card))))
    return pool.value
'''


COUNTED = PINNED + TWO + '''
there, pool = stream(), pool_of_card(1)
on(context)
here, before = stream(), (used_on(context), used_on(other))
def more(much):
    assert (used_on(context), used_on(other)) == (before[0], before[1] + much)
for _ in range(3):
    on(other)
    address = take(96 * MIB, there, pool)
    more(96 * MIB)
    give(address, there)
    synchronize(there)
    on(context)
    call("cuMemPoolTrimTo", pool, 0)     # the pool shrinks while card 0 is current
    more(0)
    on(context)
    address = take(64 * MIB, here, pool)             # the pool grows
    more(64 * MIB)
    on(context)
    give(address, here)
    synchronize(here)
    address = take(32 * MIB, here, pool)             # the pool has shrunk before this allocation
    more(32 * MIB)
    on(context)
    give(address, here)
    synchronize(here)
    call("cuMemPoolTrimTo", pool, 0)
    more(0)
# The pool is destroyed.
on(other)
setting(THRESHOLD, FOR_EVER, pool)
give(take(96 * MIB, there, pool), there)
synchronize(there)
more(96 * MIB)
on(context)
call("cuMemPoolDestroy", pool)
more(0)
'''


def test_free_pool_memory_of_another_card_is_unmapped_when_its_client_gets_a_stop_order(
    site: Site
) -> None:
    site.start("--tq", "1")
    program = Program(site, PINNED + TWO + '''
there, pool = stream(), pool_of_card(1)
Held(there).let_go()
before = used_on(context), used_on(other)
address = take(96 * MIB, there, pool)
held = Held(there)
give(address, there)                     # the stream reaches the free later
held.let_go()
assert (used_on(context), used_on(other)) == (before[0], before[1] + 96 * MIB)
away()
assert (used_on(context), used_on(other)) == before
''')
    assert program.hears() == "away"
    hook = site.holding(880 * MIB)      # fits only if all evictable memory is evicted
    program.go_on()
    hook.close()
    program.ends_well()


# Memory of card 1's pool counts from the first allocation after card 1 has a context.
NOT_USED_YET = PINNED + '''
here, pool, before = stream(), pool_of_card(1), used_on(context)
kept = take(32 * MIB, here, pool)
assert used_on(context) == before
other = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(other), 1)
first = used_on(other)
call("cuCtxSetCurrent", context)
address = take(32 * MIB, here, pool)
assert (used_on(context), used_on(other)) == (before, first + 64 * MIB)
call("cuCtxSetCurrent", context)
for one in (kept, address):
    give(one, here)
synchronize(here)
call("cuMemPoolTrimTo", pool, 0)
assert (used_on(context), used_on(other)) == (before, first)
'''


ITS_OWN = PINNED + TWO + '''
pool = c_uint64()
call("cuDeviceGetDefaultMemPool", byref(pool), 1)
on(context)
here, before = stream(), (used_on(context), used_on(other))
on(context)
address = take(96 * MIB, here, pool.value)
assert (used_on(context), used_on(other)) == (before[0], before[1] + 96 * MIB)
on(context)
give(address, here)
synchronize(here)
assert (used_on(context), used_on(other)) == before
'''


@pytest.mark.parametrize("body", [COUNTED, NOT_USED_YET, ITS_OWN],
                         ids=["exportable", "of a card not used yet", "the card's own"])
def test_pool_memory_counts_as_used_on_the_pools_card_whichever_card_is_current(
    site: Site, body: str
) -> None:
    ends_well(site, body)
