# SPDX-License-Identifier: Apache-2.0
"""While a failed drain leaves open whether work is done, the memory of the work stays mapped."""

import pytest

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import PRELUDE, Program, under
from tests.integration.test_contexts import WAITING
from tests.integration.test_pools import POOLS

UNDER_WAY = WAITING + '''
address, stream = allocate(64 * MIB), new_stream()
wait_in(stream)
call("cuMemsetD8Async", address, 7, 64 * MIB, stream)
'''

FINISHED = '''
reached.value = 1
call("cuStreamSynchronize", stream)
assert get(address, 64 * MIB) == bytes([7]) * (64 * MIB)
'''


def fail(site: Site, failing: str) -> None:
    """The driver fails in these calls; drains use cuStreamQuery with old drivers only."""
    driver = "535" if failing.startswith("cuStreamQuery") else "580"
    site.environment |= {"NVSHARE_SIM_FAIL": failing, "NVSHARE_SIM_DRIVER": driver}


def stopped(site: Site, failing: str) -> tuple[FakeDaemon, Program]:
    fail(site, failing)
    body = UNDER_WAY.removeprefix(PRELUDE) + "away()\n" + FINISHED
    daemon, program = begin(site, body, allocated=64 * MIB)
    daemon.send(OrderRecord(Type.STOP))
    return daemon, program


@pytest.mark.parametrize(
    "failing", ["cuCtxRecordEvent:1:900,cuEventQuery:1:2", "cuStreamQuery:1:2"])
def test_drain_that_fails_once_is_repeated(site: Site, failing: str) -> None:
    daemon, program = stopped(site, failing)
    daemon.send(OrderRecord(Type.EVICT, number=2, host=1 << 40))
    daemon.assert_no_stop()
    daemon.let_return(program)


@pytest.mark.parametrize(
    "failing", ["cuEventQuery:1+:2", "cuCtxRecordEvent:1+:2,cuMemGetInfo_v2:1+:2"])
def test_drain_that_keeps_failing_is_reported_with_a_reopened_message(
    site: Site, failing: str
) -> None:
    daemon, program = stopped(site, failing)
    daemon.until(Type.REOPENED)
    assert Type.STOPPED not in [record.type for record in daemon.said]
    daemon.let_finish(program)


FREED = UNDER_WAY + '''
threading.Timer(0.5, lambda: setattr(reached, "value", 1)).start()
call("cuMemFree_v2", address)
other, another = allocate(64 * MIB), new_stream()
call("cuMemsetD8Async", other, 9, 64 * MIB, another)
call("cuStreamSynchronize", another)
call("cuStreamSynchronize", stream)
print(json.dumps(get(other, 64 * MIB) == bytes([9]) * (64 * MIB)))
'''


@pytest.mark.parametrize("failing", ["cuStreamQuery:1:2", "cuEventSynchronize:1:2"])
def test_freed_memory_stays_mapped_while_its_work_may_be_in_flight(
    site: Site, failing: str
) -> None:
    fail(site, failing)
    site.start()
    assert under(site, FREED)


FREED_IN_A_STREAM = WAITING + POOLS + '''
setting(THRESHOLD, FOR_EVER)
a, b, size = stream(), stream(), 64 * MIB
first = take(size, a)
wait_in(c_uint64(a))
call("cuMemsetD8Async", first, 1, size, a)
give(first, a)
second = take(size, b)
call("cuMemsetD8Async", second, 9, size, b)
synchronize(b)
reached.value = 1
synchronize(a)
print(json.dumps([first != second, get(second, size) == bytes([9]) * size]))
'''


@pytest.mark.parametrize("failing", ["cuEventQuery:1+:2", "cuEventSynchronize:1:2"])
def test_memory_freed_in_a_stream_is_not_reused_while_its_work_may_be_in_flight(
    site: Site, failing: str
) -> None:
    site.environment |= {"NVSHARE_SIM_FAIL": failing}
    site.start()
    assert under(site, FREED_IN_A_STREAM) == [True, True]


FULL = POOLS + '''
setting(THRESHOLD, FOR_EVER)
a, b, address = stream(), stream(), c_uint64()
first = take(600 * MIB, a)
give(first, a)
synchronize(a)
got = cuda.cuMemAllocAsync(byref(address), c_size_t(800 * MIB), c_uint64(b))
print(json.dumps(got))
'''


@pytest.mark.parametrize(("failing", "result"), [("1:2", 0), ("1+:2", 2)])
def test_pool_allocation_returns_in_bounded_time_when_queries_of_freed_memory_fail(
    site: Site, failing: str, result: int
) -> None:
    site.environment |= {"NVSHARE_SIM_FAIL": f"cuEventQuery:{failing}"}
    site.start("--swap-budget", "0")
    assert under(site, PRELUDE + FULL) == result


LENT = WAITING + '''
address, stream = allocate(64 * MIB), new_stream()
data = noise(64 * MIB)
put(address, data)
away()
wait_in(stream)
away()
reached.value = 1
call("cuStreamSynchronize", stream)
assert get(address, 64 * MIB) == data
'''


def test_evict_order_during_a_drain_releases_borrowed_memory_before_the_drain_ends(
    site: Site
) -> None:
    """Work in flight cannot use borrowed blocks, and a client of the lending card may need them."""
    daemon, program = begin(site, LENT.removeprefix(PRELUDE))
    room = 512 * MIB
    order = OrderRecord(Type.EVICT, number=2, host=room, loan=64 * MIB, lender=site.uuids[1])
    daemon.send(
        OrderRecord(Type.STOP), order, OrderRecord(Type.LOAD, number=3, room=room, host=room))
    assert daemon.until(Type.BORROWED).moved == 64 * MIB
    daemon.until(Type.MOVED, number=3)
    daemon.send(OrderRecord(Type.RUN))
    program.go_on()
    assert program.hears() == "away"
    daemon.send(OrderRecord(Type.STOP), OrderRecord(Type.EVICT, number=4, room=room, host=room))
    before = daemon.until(Type.BORROWED, Type.STOPPED, Type.REOPENED)
    assert (before.type, before.moved) == (Type.BORROWED, 0)
    program.go_on()
    daemon.until(Type.STOPPED, Type.REOPENED)
    daemon.send(OrderRecord(Type.RUN))
    daemon.rest()
    program.ends_well()
