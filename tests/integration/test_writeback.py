# SPDX-License-Identifier: Apache-2.0
"""Memory of an idle program is written back while no client waits, and evicted without a copy."""

import os
import signal

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.units import MIB
from tests.integration import fakedaemon
from tests.integration.conftest import Site, wait_until
from tests.integration.fakehook import Hook, pump
from tests.integration.programs import Program

MINE, THEIRS = 96, 1000                 # MiB; the card has 1024

BODY = f'''
size = {MINE} * MIB
address = allocate(size)
data = noise(size)
put(address, data)
pause("there")
'''

LEAVES = BODY + '''
assert get(address, size) == data
'''


def ready(site: Site) -> int:
    return max((line["bytes"] for line in site.lines(event="written-back")), default=0)


def other(site: Site) -> Hook:
    hook = site.holding(THEIRS * MIB)
    hook.say(Type.MEMORY)
    return hook


def begin(site: Site, body: str, *options: str) -> tuple[Hook, Program]:
    """An idle program. As much of its memory is written back as the other client needs."""
    site.start("--tq", "1", "--trace", str(site.folder / "trace"), *options)
    hook = other(site)
    one = Program(site, body)
    stop = hook.hear()
    while stop is not None and stop.type is not Type.STOP:
        hook.obey(stop)
        if hook.paced and hook.granted:
            hook.say(Type.IDLE)
        stop = hook.hear()
    hook.granted = False
    hook.say(Type.STOPPED)              # without WANTS: the client wants no turn
    while hook.memory.resident + MINE * MIB > 1024 * MIB:
        order = hook.hear()
        assert order is not None
        hook.obey(order)
    return hook, one


@pytest.mark.parametrize("examine", ["1", "0"])
def test_written_back_memory_is_evicted_without_a_copy(site: Site, examine: str) -> None:
    site.environment = {**site.environment, "NVSHARE_EXAMINE": examine}
    hook, one = begin(site, LEAVES)
    assert one.hears() == "there"
    missing = THEIRS * MIB - hook.memory.resident
    wait_until(lambda: ready(site) >= missing)
    saved = site.lines(event="written-back")[-1]
    assert saved["memory"]["resident"] == saved["memory"]["allocated"] >= MINE * MIB
    assert saved["memory"]["host"] >= missing
    hook.want()
    pump([hook], lambda: hook.running)
    evicted = site.lines(event="evicted", client=saved["client"])
    assert evicted
    assert sum(answer["bytes"] for answer in evicted) == 0
    hook.close()
    one.finish()


MANY = '''
made = []
for value in range(12):
    address = allocate(4 * MIB)
    put(address, bytes([value + 1]) * (4 * MIB))
    made.append(address)
away()
for value, address in enumerate(made):
    assert get(address, 4 * MIB) == bytes([value + 1]) * (4 * MIB)
'''


def test_writeback_ends_when_the_host_memory_allowed_by_the_order_is_used_up(site: Site) -> None:
    daemon, program = fakedaemon.begin(site, MANY, host_slab=8 * MIB)
    daemon.stop()
    saved = daemon.move(Type.EVICT, flags=Flag.KEEP, writeback=1 << 50, host=20 * MIB)
    assert saved.flags & Flag.NO_MEMORY
    assert 0 < saved.moved <= 20 * MIB
    assert saved.memory.host <= 20 * MIB
    assert saved.memory.resident >= 48 * MIB
    # All memory has been written back, so all of it can be evicted without a copy.
    saved = daemon.move(Type.EVICT, flags=Flag.KEEP, writeback=1 << 50)
    assert saved.moved == saved.memory.resident
    evicted = daemon.move(Type.EVICT)
    assert evicted.moved == evicted.memory.resident == 0
    daemon.let_return(program)


def test_preallocate_order_allocates_host_memory_up_to_the_ordered_size(site: Site) -> None:
    daemon, program = fakedaemon.begin(site, MANY, host_slab=0)
    daemon.send(OrderRecord(Type.PREALLOCATE, host=20 * MIB))
    daemon.until_memory(lambda memory: memory.host >= 18 * MIB)
    assert daemon.said[-1].memory.host <= 20 * MIB
    # The client never preallocates more than it could use (tiers_useful()).
    daemon.send(OrderRecord(Type.PREALLOCATE, host=1 << 40))
    daemon.until_memory(lambda memory: memory.host == 48 * MIB)
    # If other clients need host memory, the client frees its preallocated memory, the allocation in
    # progress as soon as it completes, and preallocates no more.
    if daemon.move(Type.LOAD, daemon.room, host=0).memory.host:
        daemon.until_memory(lambda memory: memory.host == 0)
    # A new daemon does not know PREALLOCATE orders of an earlier daemon.
    daemon.send(OrderRecord(Type.PREALLOCATE, host=1 << 40), OrderRecord(Type.INTRODUCE, number=7))
    made = daemon.until(Type.HELLO).memory.host     # includes the allocation in progress
    daemon.send(daemon.limits)
    assert daemon.move(Type.LOAD, daemon.room).memory.host == made
    # The eviction does not wait for the allocation in progress.
    daemon.send(OrderRecord(Type.PREALLOCATE, host=1 << 40))
    daemon.stop()
    evicted = daemon.move(Type.EVICT)
    assert evicted.moved == 48 * MIB
    assert evicted.memory.resident == 0
    daemon.let_return(program)


# The path copies a piece in 62 ms, and a block in a second.
SLOW = {"NVSHARE_SIM_COPY_RATE": "32M", "NVSHARE_EXAMINE": "0", "NVSHARE_SIM_NVLINK": "1"}
LEAST_PIECE = 2 * MIB
BLOCKS = '''
made = []
for number in range(3):
    address = allocate(32 * MIB)
    call("cuMemsetD32_v2", address, number + 77, 8 * MIB)
    made.append(address)
call("cuCtxSynchronize")
away()
for number, address in enumerate(made):
    assert get(address, 4 * MIB) == (number + 77).to_bytes(4, "little") * MIB
'''


@pytest.mark.parametrize("source", ["card", "neighbour", "loan"])
def test_copy_to_the_host_on_a_slow_path_copies_three_pieces_at_most_after_a_yield(
    site: Site, source: str
) -> None:
    """The return of a loan yields to a LOAD of its client: loaded blocks need no copy."""
    copies = site.folder / "copies"
    site.environment |= {**SLOW, "NVSHARE_SIM_COPIES": str(copies)}
    daemon, program = fakedaemon.begin(site, BLOCKS, allocated=96 * MIB, host_slab=0)
    daemon.stop()
    size, loan = (96 * MIB, 0) if source == "card" else (0, 96 * MIB)
    if loan:
        lent = daemon.move(Type.EVICT, loan=loan, lender=site.uuids[1])
        assert lent.memory.resident == 0
    copies.unlink(missing_ok=True)

    def copied() -> int:
        return sum(map(int, copies.read_text().split())) if copies.exists() else 0

    order = OrderRecord(
        Type.EVICT, Flag.KEEP | Flag.AHEAD, number=7, room=daemon.room, host=1 << 40,
        writeback=size, loan=loan, lender=site.uuids[1])
    follows = OrderRecord(Type.YIELD, number=7)
    if source == "loan":
        order = OrderRecord(Type.EVICT, number=7, host=1 << 40, lender=site.uuids[1])
        follows = OrderRecord(Type.LOAD, number=8, host=1 << 40)     # into no room: copies nothing
    daemon.send(order)
    wait_until(lambda: copied() >= LEAST_PIECE)
    program.popen.send_signal(signal.SIGSTOP)
    os.waitpid(program.popen.pid, os.WUNTRACED)
    before = copied()
    # The daemon has answered a request before it sends YIELD.
    daemon.send(daemon.limits, follows)
    program.popen.send_signal(signal.SIGCONT)
    answer = daemon.until(Type.MOVED)
    assert answer.flags == Flag.YIELDED
    assert copied() - before <= 3 * LEAST_PIECE
    daemon.let_return(program)
