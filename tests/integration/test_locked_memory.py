# SPDX-License-Identifier: Apache-2.0
"""Addresses that the library reserves for host memory do not become memory at once in a program
that locks all its memory (mlockall(2) with MCL_FUTURE), as real-time programs do."""

import pytest

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import begin

BODY = """
def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
address = allocate(256 * MIB)
fill(address, 7, 256 * MIB)
put(address, noise(64 * MIB))
locked = ctypes.CDLL(None).mlockall(2) == 0
open("/proc/self/clear_refs", "w").write("5")     # VmHWM begins anew
before = status("VmHWM")
away()
say(status("VmHWM") - before if locked else None)
assert bytes(get(address, 16)) != b""
"""


@pytest.mark.parametrize("kind", [Type.EVICT, Type.PREALLOCATE])
def test_order_to_a_program_with_mlockall_populates_at_most_the_ordered_bytes(
    site: Site, kind: Type
) -> None:
    daemon, program = begin(site, BODY)
    most = 32 * MIB
    if kind is Type.EVICT:
        daemon.stop()
        daemon.send(OrderRecord(Type.EVICT, number=2, room=240 * MIB, host=most))
        daemon.until(Type.MOVED)
    else:
        daemon.send(OrderRecord(Type.PREALLOCATE, host=most))
        daemon.until_memory(lambda memory: memory.host > 0)
    program.tell()
    grown = program.hears()
    if grown is None:
        pytest.skip("this user may not lock memory")
    assert grown < 128 * MIB            # also stacks of threads
    program.kill()
