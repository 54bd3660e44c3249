# SPDX-License-Identifier: Apache-2.0
"""A client reports copies of its program; speculative moves of others yield the bus to copies."""

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import Program

# Copies of 16 MiB to and from the card, by functions of every kind.
KINDS = ["asynchronous", "unified", "2D", "2D of an array", "3D unified", "batch", "prefetch"]
COPIES = f"KINDS = {KINDS}" + '''
import select, time
address = c_uint64(allocate(64 * MIB))
def go_on():
    "Takes the test's line by read(): select() does not see what a buffer of Python holds."
    os.read(0, 1)
def stopped():
    return bool(select.select([0], [], [], 0)[0])
SIZE, WIDTH, UNIFIED = 16 * MIB, 4096, 4
host = ctypes.create_string_buffer(SIZE)
there, here, stream, array, managed = (
    address.value, ctypes.addressof(host), new_stream(), c_uint64(), c_uint64())
call("cuArrayCreate_v2", byref(array), (c_uint64 * 3)(WIDTH, SIZE // WIDTH, 1 | 1 << 32))
call("cuMemAllocManaged", byref(managed), SIZE, c_uint(1))
def waits(*arguments):
    call(*arguments)
    call("cuStreamSynchronize", stream)
def side(deep, kind, place):
    "The fields of one side of a copy. kind: 1 host, 2 card, 3 array, or UNIFIED."
    places = [0, 0, 0]
    places[{1: 0, 2: 1, 3: 2, UNIFIED: 1}[kind]] = place
    more = [0] if deep else []
    return [0] * (4 if deep else 2) + [kind, *places, *more, WIDTH, *[SIZE // WIDTH] * deep]
def shape(deep, source, target):
    values = side(deep, *source) + side(deep, *target) + [WIDTH, SIZE // WIDTH] + [1] * deep
    return (c_uint64 * len(values))(*values)
def shapes(way, kind, place, other):
    ends = [(other, here), (kind, place)]
    source, target = ends if way == "in" else ends[::-1]
    return source, target
def batch(way):
    to, source = (there, here) if way == "in" else (here, there)
    attributes = (c_uint * 6)(1)
    waits("cuMemcpyBatchAsync", byref(c_uint64(to)), byref(c_uint64(source)), byref(c_uint64(SIZE)),
          1, attributes, byref(c_uint64(0)), 1, None, stream)
def prefetch(way):
    "The simulated driver prefetches in no time; the library counts 16 MiB at 12 GB/s each time."
    waits("cuMemPrefetchAsync", managed.value, SIZE, c_int(0 if way == "in" else -1), stream)
    time.sleep(0.002)
def unified(way):
    return (there, here) if way == "in" else (here, there)
kinds = {
    "asynchronous": lambda way: waits(
        *(("cuMemcpyHtoDAsync_v2", there, host) if way == "in" else
          ("cuMemcpyDtoHAsync_v2", host, there)), SIZE, stream),
    "unified": lambda way: call("cuMemcpy", *unified(way), SIZE),
    "2D": lambda way: call("cuMemcpy2D_v2", shape(0, *shapes(way, 2, there, 1))),
    "2D of an array": lambda way: call("cuMemcpy2DUnaligned_v2",
                                       shape(0, *shapes(way, 3, array.value, 1))),
    "3D unified": lambda way: waits("cuMemcpy3DAsync_v2",
                                    shape(1, *shapes(way, UNIFIED, there, UNIFIED)), stream),
    "batch": batch,
    "prefetch": prefetch,
}
for kind in KINDS:
    for way in ("in", "out"):
        while not stopped():
            kinds[kind](way)
        go_on()
while not stopped():
    call("cuMemcpyDtoD_v2", there, there + SIZE, SIZE)
go_on()
'''


def test_client_reports_the_direction_of_every_kind_of_copy(site: Site) -> None:
    daemon = FakeDaemon(site)
    program = Program(site, COPIES)
    daemon.accept(Flag.PACE | Flag.REPORT_COPIES)
    for kind in KINDS:
        for flag in (Flag.INWARD, Flag.OUTWARD):
            print(kind, flag)
            daemon.until_copying(flag)
            program.go_on()
    daemon.until_copying(Flag(0))
    daemon.let_finish(program)


MOVES = '''
addresses = []
for number in range(PIECES):
    address = allocate(32 * MIB)
    call("cuMemsetD32_v2", address, number + 77, 8 * MIB)
    addresses.append(address)
call("cuCtxSynchronize")
away()
for number, address in enumerate(addresses):
    assert get(address, 32 * MIB) == (number + 77).to_bytes(4, "little") * (8 * MIB)
'''


def ahead(kind: Type, number: int, room: int = 0) -> OrderRecord:
    return OrderRecord(kind, flags=Flag.AHEAD, number=number, room=room, host=1 << 40)


def test_load_is_answered_before_the_next_load_has_copied_all_its_blocks(site: Site) -> None:
    """Otherwise the daemon learns late that it can send another, and the bus pauses."""
    site.environment |= {"NVSHARE_SIM_COPY_RATE": "2G", "NVSHARE_EXAMINE": "0"}
    daemon, program = begin(site, "PIECES = 16\n" + MOVES, allocated=512 * MIB)
    daemon.stop()
    assert daemon.move(Type.EVICT).memory.resident == 0
    first, second = (OrderRecord(Type.LOAD, number=number, room=room, host=1 << 40)
                     for number, room in ((7, 64 * MIB), (8, 512 * MIB)))
    daemon.send_at_once(program, first, second)
    answer = daemon.until(Type.MOVED)
    # Of the second order's blocks, at most four are in flight, and one is mapped to follow them.
    assert (answer.number, answer.moved) == (7, 64 * MIB)
    assert answer.memory.resident <= 64 * MIB + 5 * 32 * MIB
    answer = daemon.until(Type.MOVED)
    assert (answer.number, answer.moved, answer.memory.resident) == (8, 448 * MIB, 512 * MIB)
    daemon.let_return(program)


def test_speculative_move_ended_by_yield_reports_moved_bytes_and_keeps_every_byte(
    site: Site
) -> None:
    site.environment |= {"NVSHARE_SIM_COPY_RATE": "2G", "NVSHARE_EXAMINE": "0"}
    daemon, program = begin(site, "PIECES = 4\n" + MOVES, allocated=128 * MIB)
    daemon.stop()
    # Two orders at once, as the real daemon sends them: each is ended by its own YIELD.
    daemon.send_at_once(
        program, ahead(Type.EVICT, 7), ahead(Type.EVICT, 8),
        OrderRecord(Type.YIELD, number=7), OrderRecord(Type.YIELD, number=8))
    for number in (7, 8):
        answer = daemon.until(Type.MOVED)
        assert answer.number == number
        assert answer.flags == Flag.YIELDED
        assert answer.moved == 0
        assert answer.memory.resident == 128 * MIB
        assert answer.memory.room == 128 * MIB
    # A move without AHEAD does not yield, nor does a move that begins after the YIELD.
    daemon.send_at_once(
        program, OrderRecord(Type.YIELD, number=9), OrderRecord(Type.EVICT, number=9, host=1 << 40),
        OrderRecord(Type.YIELD, number=9))
    answer = daemon.until(Type.MOVED)
    assert (answer.number, answer.flags, answer.memory.resident) == (9, 0, 0)
    room = 128 * MIB
    daemon.send_at_once(program, ahead(Type.LOAD, 10, room), OrderRecord(Type.YIELD, number=10))
    answer = daemon.until(Type.MOVED)
    assert answer.flags == Flag.YIELDED
    assert answer.moved == 0
    assert answer.memory.room == room
    daemon.let_return(program)
