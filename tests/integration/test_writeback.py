# SPDX-License-Identifier: Apache-2.0
"""What an idle program has is copied while nobody waits, and leaves without a copy then."""

import select
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, ReportRecord, Type
from nvshared.units import MIB
from tests.integration.commander import Commander
from tests.integration.commander import Hook as Obeying
from tests.integration.conftest import CARD, Site
from tests.integration.fakehook import Hook, pump
from tests.integration.test_own_memory import Program

MINE, THEIRS = 96, 1000                 # MiB; the card has 1024

BODY = f'''
def say(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()
size = {MINE} * MIB
address = allocate(size)
data = noise(size)
put(address, data)
say("there")
'''

LEAVES = BODY + '''
assert get(address, size) == data
'''

RUNS_AGAIN = BODY + '''
assert get(address, size) == data
data = noise(MIB) + data[MIB:]
put(address, data[:MIB])
say("changed")
assert get(address, size) == data
'''


def told(site: Site, **what: object) -> list[dict[str, Any]]:
    """Lines of the trace that say so."""
    return [line for line in site.trace() if what.items() <= line.items()]


def ready(site: Site) -> int:
    """Bytes that could leave without a copy."""
    return max((line["bytes"] for line in told(site, event="written-back")), default=0)


def other(site: Site) -> Hook:
    """Somebody who has had the card to itself, and is idle."""
    hook = site.hook()
    hook.hello()
    assert hook.allocate(THEIRS * MIB)
    hook.want()
    pump([hook], lambda: hook.running)
    hook.say(Type.MEMORY)
    return hook


def begin(site: Site, body: str, *options: str) -> tuple[Hook, Program]:
    """A program that has copied what the other one lacks, and does nothing."""
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
    hook.say(Type.STOPPED)              # and wants nothing
    while hook.memory.resident + MINE * MIB > 1024 * MIB:
        order = hook.hear()
        assert order is not None
        hook.obey(order)
    return hook, one


@pytest.mark.parametrize("examine", ["1", "0"])
def test_written_back_memory_is_evicted_without_a_copy(
    site: Site, eventually: Callable[[Callable[[], bool]], None], examine: str
) -> None:
    site.environment = {**site.environment, "NVSHARE_EXAMINE": examine}
    hook, one = begin(site, LEAVES)
    assert one.hears() == "there"
    lacks = THEIRS * MIB - hook.memory.resident
    eventually(lambda: ready(site) >= lacks)
    saved = told(site, event="written-back")[-1]
    assert saved["memory"]["resident"] == saved["memory"]["allocated"] >= MINE * MIB
    assert saved["memory"]["host"] >= lacks
    hook.want()
    pump([hook], lambda: hook.running)
    evicted = told(site, event="evicted", client=saved["client"])
    assert evicted
    assert sum(answer["bytes"] for answer in evicted) == 0
    hook.close()
    one.go_on()
    one.ends_well()


@pytest.fixture
def commander(site: Site) -> Iterator[Commander]:
    """A daemon that does what a test says."""
    site.socket.parent.mkdir()
    made = Commander(site.socket, CARD, CARD, seed=1, refuses=0)
    yield made
    made.close()


def move(
    commander: Commander, kind: Type, room: int = 0, *, writeback: int = 0, host: int = 1 << 40,
    loan: int = 0,
) -> ReportRecord:
    """Has the only program do so. Returns its answer."""
    (hook,) = commander.hooks
    flags = Flag.KEEP if writeback else Flag(0)
    commander.move(hook, OrderRecord(
        kind, flags, room=room, host=host, writeback=writeback, loan=loan, lender=commander.lender))
    while hook.moves:
        commander.receive(1)
    assert commander.heard is not None
    return commander.heard


def until(commander: Commander, done: Callable[[Obeying], bool]) -> Obeying:
    """Something is so of the only program."""
    while not commander.hooks or not done(commander.hooks[0]):
        commander.receive(1)
    return commander.hooks[0]


def hears(commander: Commander, one: Program) -> Any:
    """What the program says next, which may have to ask for something first."""
    assert one.popen.stdout is not None
    while not select.select([one.popen.stdout], [], [], 0)[0]:
        commander.receive(0.01)
    return one.hears()


def stop(commander: Commander) -> None:
    """Until it has drained."""
    commander.hooks[0].stopping = True
    commander.send(commander.hooks[0], OrderRecord(Type.STOP))
    until(commander, lambda hook: not hook.stopping)


WRITES = '''
def say(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()
address = allocate(8 * MIB)
put(address, b"old" * MIB)
say("old")
put(address, b"new" * MIB)
say("new")
assert get(address, 3 * MIB) == b"new" * MIB
'''


MANY = '''
made = []
for value in range(12):
    address = allocate(4 * MIB)
    put(address, bytes([value + 1]) * (4 * MIB))
    made.append(address)
print(json.dumps("there"), flush=True)
sys.stdin.readline()
for value, address in enumerate(made):
    assert get(address, 4 * MIB) == bytes([value + 1]) * (4 * MIB)
'''


def test_writeback_ends_when_the_host_allowance_is_used_up(
    site: Site, commander: Commander
) -> None:
    """It does not save one in the place of another for ever."""
    one = Program(site, MANY)
    hook = until(commander, lambda hook: hook.wants)
    hook.running, hook.room = True, 128 * MIB
    move(commander, Type.LOAD, 128 * MIB)
    commander.send(hook, OrderRecord(Type.RUN))
    assert hears(commander, one) == "there"
    stop(commander)
    saved = move(commander, Type.EVICT, writeback=1 << 50, host=20 * MIB)
    assert saved.type is Type.MOVED
    assert saved.flags & Flag.NO_MEMORY
    assert 0 < saved.moved <= 20 * MIB
    assert saved.memory.host <= 20 * MIB
    assert saved.memory.resident >= 48 * MIB
    # All of it, and then it can all leave at once.
    saved = move(commander, Type.EVICT, writeback=1 << 50)
    assert saved.moved == saved.memory.resident
    evicted = move(commander, Type.EVICT)
    assert evicted.moved == evicted.memory.resident == 0
    hook.room = 128 * MIB
    move(commander, Type.LOAD, 128 * MIB)
    commander.send(hook, OrderRecord(Type.RUN))
    one.go_on()
    one.ends_well()


def test_preallocate_order_preallocates_host_memory_up_to_its_allowance(
    site: Site, commander: Commander
) -> None:
    one = Program(site, MANY)
    hook = until(commander, lambda hook: hook.wants)
    hook.running, hook.room = True, 128 * MIB
    move(commander, Type.LOAD, 128 * MIB)
    commander.send(hook, OrderRecord(Type.RUN))
    assert hears(commander, one) == "there"
    commander.send(hook, OrderRecord(Type.PREALLOCATE, host=20 * MIB))
    until(commander, lambda hook: hook.memory.host >= 18 * MIB)
    assert hook.memory.host <= 20 * MIB
    # Never more than there is use for.
    commander.send(hook, OrderRecord(Type.PREALLOCATE, host=1 << 40))
    until(commander, lambda hook: hook.memory.host == 48 * MIB)
    # Where others need it, it goes back, what is being made as soon as it is, and no more is made.
    move(commander, Type.LOAD, 128 * MIB, host=0)
    until(commander, lambda hook: hook.memory.host == 0)
    # A new daemon knows nothing of what an earlier one has ordered.
    commander.send(hook, OrderRecord(Type.PREALLOCATE, host=1 << 40))
    commander.take_over()
    hook = commander.hooks[0]
    made = hook.memory.host             # what was begun may yet end, and counts already
    move(commander, Type.LOAD, 128 * MIB)
    assert hook.memory.host == made
    # It does not wait for what is being made.
    commander.send(hook, OrderRecord(Type.PREALLOCATE, host=1 << 40))
    stop(commander)
    evicted = move(commander, Type.EVICT)
    assert evicted.moved == 48 * MIB
    assert evicted.memory.resident == 0
    hook.room = 128 * MIB
    move(commander, Type.LOAD, 128 * MIB)
    commander.send(hook, OrderRecord(Type.RUN))
    one.go_on()
    one.ends_well()
