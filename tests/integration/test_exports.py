# SPDX-License-Identifier: Apache-2.0
"""Pools that could be exported to another process: they are the driver's."""

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.test_own_memory import give_it_back
from tests.integration.test_pools import program


def test_exportable_pool_stays_on_the_card(site: Site) -> None:
    site.start("--tq", "1")
    running = program(site, '''
a, own, data = stream(), make_pool(handles=1), noise(3 * MIB)
address = take(len(data), a, own)
put(address, data)
assert attribute(14, address) == 1           # CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
assert attribute(17, address) == own
away()
assert get(address, len(data)) == data
give(address, a)
call("cuMemPoolDestroy", own)
# Of another kind the simulated driver makes none.
call("cuMemPoolCreate", byref(c_uint64()), byref(PoolProperties(1, 2, Location(1, 0))),
     result=NOT_SUPPORTED)
''')
    give_it_back(running.lose_card(800 * MIB))
    running.ends_well()
