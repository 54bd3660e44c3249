# SPDX-License-Identifier: Apache-2.0
"""How far a program gets ahead of the card depends on whether somebody waits for it."""

import socket
from dataclasses import replace

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type, decode_report, encode_order
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_own_memory import Program

LAUNCHES = 400
AHEAD = '''
import time
module, spin = c_void_p(), c_void_p()
with open("libhook/demo/kernels.ptx", "rb") as file:
    call("cuModuleLoadData", byref(module), file.read())
call("cuModuleGetFunction", byref(spin), module, b"nvshare_spin")
microseconds = c_uint64(TAKES)
passed = (c_void_p * 1)(ctypes.cast(byref(microseconds), c_void_p))
def launch():
    "A kernel that takes longer than it takes the program to come back."
    event = c_void_p()
    call("cuLaunchKernel", spin, *(1, 1, 1, 1, 1, 1, 0, 0), passed, None)
    call("cuEventCreate", byref(event), 2)
    call("cuEventRecord", event, 0)
    time.sleep(0.001)
    return event
events = [launch() for _ in range(LAUNCHES)]
print(sum(cuda.cuEventQuery(event) != 0 for event in events), flush=True)
'''


def serve(listener: socket.socket, flags: Flag) -> None:
    """A daemon that lets a program run for ever, from its first word to its end."""
    room = 512 * MIB
    limits = OrderRecord(
        Type.LIMITS, commit=room, most=room, total=room, host_slab=32 * MIB)
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE)
    with connection:
        while packet := connection.recv(4096):
            said = decode_report(packet)
            match said.type:
                case Type.HELLO:
                    orders = [
                        limits,
                        OrderRecord(Type.LOAD, number=1, room=room, host=room),
                        OrderRecord(Type.RUN, flags=flags),
                    ]
                case Type.COMMIT:
                    orders = [replace(limits, number=said.number)]
                case _:
                    orders = []
            for order in orders:
                connection.send(encode_order(order))


@pytest.mark.parametrize("others_wait", [False, True])
def test_pace_bounds_launches_in_flight_while_others_wait(
        site: Site, others_wait: bool) -> None:
    site.environment["NVSHARE_SIM_DRIVER"] = ""         # before 12.5 nobody is
    site.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(site.socket))
        listener.listen()
        listener.settimeout(PATIENCE)
        # Whoever is not held back gets ahead on a busy machine, too.
        takes = 5_000 if others_wait else 1_000_000
        program = Program(site, f"LAUNCHES, TAKES = {LAUNCHES}, {takes}\n{AHEAD}")
        serve(listener, Flag.PACE if others_wait else Flag(0))
    ahead = program.hears()
    program.ends_well()
    assert ahead <= LAUNCHES // 4 if others_wait else ahead > LAUNCHES // 4
