# SPDX-License-Identifier: Apache-2.0
"""Host memory is allocated while the program runs, for memory that will be evicted."""


from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.fakehook import Hook, pump
from tests.integration.programs import Program

MINE, THEIRS = 160, 950                 # MiB; the card has 1024
LACKS = MINE + THEIRS - 1024

# Computes without a pause until the test sends a line.
BODY = f'''
import threading, time
size = {MINE} * MIB
address = allocate(size)
data = noise(size)
put(address, data)
say("there")
enough = threading.Thread(target=sys.stdin.readline)
enough.start()
while enough.is_alive():
    call("cuMemsetD8_v2", address, data[0], 1)
    call("cuCtxSynchronize")
    time.sleep(0.001)
assert get(address, size) == data
'''


def begin(site: Site, *options: str) -> Program:
    site.start("--tq", "1", "--trace", str(site.folder / "trace"), *options)
    program = Program(site, BODY)
    assert program.hears() == "there"
    return program


def other(site: Site) -> Hook:
    """A client that does not fit beside the program and does not want a turn yet."""
    hook = site.allocating(THEIRS * MIB)
    hook.say(Type.MEMORY)
    return hook


def made(site: Site, program: Program) -> int:
    """Bytes of host memory in the program's last report."""
    said = [line for line in site.lines(pid=program.popen.pid) if "memory" in line]
    return int(said[-1]["memory"]["host"]) if said else 0


def comes_and_goes(site: Site, hook: Hook, program: Program) -> int:
    """Gives `hook` a turn and the program another one. Returns the evicted bytes."""
    hook.want()
    pump([hook], lambda: hook.running)
    evicted = site.lines(event="evicted", pid=program.popen.pid)
    hook.close()
    program.finish()
    return sum(line["bytes"] for line in evicted)


def test_eviction_uses_preallocated_host_memory(site: Site) -> None:
    program = begin(site)
    assert not site.lines(order="preallocate")          # no other client lacks memory yet
    hook = other(site)
    wait_until(lambda: made(site, program) >= LACKS * MIB)
    # An eviction makes what the last PREALLOCATE has not made yet, and the rest of its block.
    wait_until(lambda: made(site, program) >= site.lines(
        order="preallocate", pid=program.popen.pid)[-1]["host"])
    # The turn ends only if the busy machine has delayed the program's thread.
    assert len(site.lines(order="stop")) <= len(site.lines(event="went-idle"))
    assert not site.lines(event="evicted")
    assert comes_and_goes(site, hook, program) >= LACKS * MIB
    # PREALLOCATE grows block by block; the last order may exceed the need by a block.
    most = site.lines(order="preallocate", pid=program.popen.pid)[-1]["host"]
    assert most < MINE * MIB
    evicted = site.lines(event="evicted", pid=program.popen.pid)
    idle = site.lines(event="went-idle", pid=program.popen.pid)     # more is copied of idle memory
    assert idle or max(line["memory"]["host"] for line in evicted) <= most


def test_host_memory_preallocation_continues_when_the_driver_refuses_to_register_the_memory(
    site: Site
) -> None:
    calls = ",".join(f"cuMemHostRegister_v2:{call}" for call in range(1, 9))
    site.environment = {**site.environment, "NVSHARE_SIM_FAIL": calls}
    program = begin(site)
    hook = other(site)
    wait_until(lambda: made(site, program) >= LACKS * MIB)
    assert comes_and_goes(site, hook, program) >= LACKS * MIB

