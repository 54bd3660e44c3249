# SPDX-License-Identifier: Apache-2.0
"""Copies and fills beyond an allocation are refused as by the driver, which knows the bounds of its
own allocations only."""

import pytest

from tests.integration.conftest import Site
from tests.integration.programs import PRELUDE, Program, alike

SHAPES = '''
class Copy2D(ctypes.Structure):
    _fields_ = [field for side in ("src", "dst") for field in (
        (side + "X", c_size_t), (side + "Y", c_size_t), (side + "Type", c_int),
        (side + "Host", c_void_p), (side + "Device", c_uint64), (side + "Array", c_void_p),
        (side + "Pitch", c_size_t))] + [("width", c_size_t), ("height", c_size_t)]
class Copy3D(ctypes.Structure):          # or CUDA_MEMCPY3D_PEER
    _fields_ = [field for side in ("src", "dst") for field in (
        (side + "X", c_size_t), (side + "Y", c_size_t), (side + "Z", c_size_t),
        (side + "LOD", c_size_t), (side + "Type", c_int), (side + "Host", c_void_p),
        (side + "Device", c_uint64), (side + "Array", c_void_p), (side + "Context", c_void_p),
        (side + "Pitch", c_size_t), (side + "Height", c_size_t))
    ] + [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]
class Attributes(ctypes.Structure):
    _fields_ = [("order", c_int), ("hints", c_int * 4), ("flags", c_uint)]
'''

ANSWERS = PRELUDE + SHAPES + '''
buffer = ctypes.create_string_buffer(8 * MIB)
stream, scratch, array = new_stream(), allocate(8 * MIB), new_array(4 * MIB)
answers = []
def ask(name, *arguments):
    answers.append(cuda[name](*[c_uint64(a) if isinstance(a, int) else a for a in arguments]))
def pitched(address, pitch, width, height, depth=1, layer=0, into=False):
    "Copies in two and three dimensions, from `address` or into it; fills in two dimensions."
    here, there = ("dst", "src") if into else ("src", "dst")
    for shape, names in ((Copy2D(), ("2D_v2", "2DUnaligned_v2", "2DAsync_v2", "2D_v2_ptds")),
                         (Copy3D(), ("3D_v2", "3DAsync_v2", "3DPeer", "3DPeerAsync"))):
        if depth > 1 and isinstance(shape, Copy2D):
            continue
        for side, memory, row, rows in ((here, address, pitch, layer),
                                        (there, scratch, width, height)):
            setattr(shape, side + "Type", 2), setattr(shape, side + "Device", memory)
            setattr(shape, side + "Pitch", row)
            if isinstance(shape, Copy3D):
                setattr(shape, side + "Height", rows), setattr(shape, side + "Context", context)
                shape.depth = depth
        shape.width, shape.height = width, height
        for name in names:
            if isinstance(shape, Copy3D) and "Peer" not in name:
                shape.srcContext = shape.dstContext = None
            ask("cuMemcpy" + name, byref(shape), *[stream] * name.count("Async"))
    if into and depth == 1:
        ask("cuMemsetD2D8_v2", address, pitch, c_uint(1), width, height)
        ask("cuMemsetD2D8Async", address, pitch, c_uint(1), width, height, stream)
def batch(address, size):
    first, failed = c_size_t(0), c_size_t(99)
    ask("cuMemcpyBatchAsync", (c_uint64 * 2)(scratch, scratch),
        (c_uint64 * 2)(scratch + MIB, address), (c_size_t * 2)(16, size), 2, byref(Attributes(1)),
        byref(first), 1, byref(failed), stream)
    answers.append(failed.value)
def lines(address, size):
    ask("cuMemcpyHtoD_v2", address, buffer, size)
    ask("cuMemcpyHtoD_v2_ptds", address, buffer, size)
    ask("cuMemcpyHtoDAsync_v2", address, buffer, size, stream)
    ask("cuMemcpyDtoH_v2", buffer, address, size)
    ask("cuMemcpyDtoHAsync_v2_ptsz", buffer, address, size, stream)
    for to, source in ((scratch, address), (address, scratch)):
        ask("cuMemcpyDtoD_v2", to, source, size)
        ask("cuMemcpyDtoDAsync_v2", to, source, size, stream)
    ask("cuMemcpyDtoA_v2", array, 0, address, size)
    ask("cuMemcpyAtoD_v2", address, array, 0, size)
    ask("cuMemsetD8_v2", address, c_uint(1), size)
    ask("cuMemsetD8_v2_ptds", address, c_uint(1), size)
    ask("cuMemsetD8Async", address, c_uint(1), size, stream)
    pitched(address, size, size, 1)
def inside(address, size):
    "Calls that would take an address outside all memory for an address of the host."
    for to, source in ((scratch, address), (address, scratch)):
        ask("cuMemcpy", to, source, size)
        ask("cuMemcpyAsync", to, source, size, stream)
        ask("cuMemcpyPeer", to, context, source, context, size)
        ask("cuMemcpyPeerAsync", to, context, source, context, size, stream)
    batch(address, size)
def around(address, size):
    for offset, length in ((0, size), (0, size + 1), (size - 1, 1), (size - 1, 2),
                           (size // 2, size)):
        lines(address + offset, length)
        inside(address + offset, length)
    for length in 1, 0:
        if length == 0 or size != 12288:     # else it may be other memory of the host
            lines(address + size, length)
    for bits in 2, 4:
        for extra in 0, 1:
            for name in f"cuMemsetD{8 * bits}_v2", f"cuMemsetD{8 * bits}Async":
                ask(name, address, c_uint(1), size // bits + extra, *[stream] * name.count("Async"))
    start = address + size - 2 * 300 - 100           # three rows of 100 bytes end with the memory
    for into in False, True:
        pitched(start, 300, 100, 3, into=into)       # the padding of the last row lies outside
        pitched(start, 300, 101, 3, into=into)
        pitched(start, 300, 100, 4, into=into)
        pitched(start, 100, 100, 2, 2, 5, into=into)
        pitched(start, 100, 100, 2, 2, 6, into=into)
    ask("cuStreamWriteValue32_v2", stream, (address + size + 3) & ~3, c_uint(1), c_uint(0))
    ask("cuStreamSynchronize", stream)
'''

MEMORY = {
    "small": "memory, size = [allocate(3368) for _ in range(3)][1], 3368",
    "one_page": "memory, size = allocate(1 * MIB), 1 * MIB",
    "large": "memory, size = allocate(3 * MIB + 5), 3 * MIB + 5",
    "pool": '''
size, memory = 5000, c_uint64()
call("cuMemAllocAsync", byref(memory), size, stream)
call("cuStreamSynchronize", stream)
memory = memory.value
''',
    "reused": "memory, size = allocate(40000), 39000; call('cuMemFree_v2', memory); "
              "memory = allocate(size)",
    "mapped": '''
size, memory = 2 * GRAIN, reserve(3 * GRAIN)
for index in range(2):
    map_at(memory + index * GRAIN, create(GRAIN), GRAIN)
''',
    "pinned": '''
size, memory = 12288, c_void_p()
call("cuMemAllocHost_v2", byref(memory), size)
memory = memory.value
''',
    "managed": '''
size, memory = 10000, c_uint64()
call("cuMemAllocManaged", byref(memory), size, c_uint(1))
memory = memory.value
''',
}


@pytest.mark.parametrize("kind", MEMORY)
def test_copies_and_fills_around_the_end_of_memory_return_what_the_driver_returns(
    site: Site, kind: str,
) -> None:
    alike(site, ANSWERS + MEMORY[kind] + "\naround(memory, size)\nsay(answers)\n")


def test_copies_and_fills_of_freed_memory_return_what_the_driver_returns(site: Site) -> None:
    alike(site, ANSWERS + '''
kept, freed = allocate(40000), allocate(40000)
call("cuMemFree_v2", freed)
lines(freed, 16)
say(answers)
''')


def test_copies_and_fills_in_graphs_around_the_end_of_memory_return_what_the_driver_returns(
    site: Site,
) -> None:
    alike(site, ANSWERS + '''
class Fill(ctypes.Structure):
    _fields_ = [("to", c_uint64), ("pitch", c_size_t), ("value", c_uint), ("element", c_uint),
                ("width", c_size_t), ("height", c_size_t)]
memory, graph, made, node, other = allocate(3368), c_void_p(), c_void_p(), c_void_p(), c_void_p()
for size in 3368, 3369:
    for name in "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async":
        call("cuStreamBeginCapture_v2", stream, c_int(2))
        ask(name, memory, *([c_uint(1)] if "set" in name else [scratch]), size, stream)
        ask("cuStreamEndCapture", stream, byref(graph))
        ask("cuGraphInstantiateWithFlags", byref(made), graph, 0)
        ask("cuGraphInstantiate_v2", byref(made), graph, None, None, 0)
        parameters = (c_uint64 * 4)()
        ask("cuGraphInstantiateWithParams", byref(made), graph, parameters)
        answers.append(parameters[3])
    call("cuGraphCreate", byref(graph), c_uint(0))
    fine, fill_, copy = Fill(memory, 0, 1, 1, 16, 1), Fill(memory, 0, 1, 1, size, 1), Copy3D()
    copy.srcType = copy.dstType = 2
    copy.srcDevice, copy.dstDevice = memory, scratch
    copy.width, copy.height, copy.depth = size, 1, 1
    ask("cuGraphAddMemcpyNode", byref(node), graph, None, 0, byref(copy), context)
    ask("cuGraphAddMemsetNode", byref(node), graph, None, 0, byref(fill_), context)
    call("cuGraphAddMemsetNode", byref(node), graph, None, 0, byref(fine), context)
    copy.width = 16
    call("cuGraphAddMemcpyNode", byref(other), graph, None, 0, byref(copy), context)
    call("cuGraphInstantiateWithFlags", byref(made), graph, 0)
    copy.width = size
    ask("cuGraphExecMemsetNodeSetParams", made, node, byref(fill_), context)
    ask("cuGraphExecMemcpyNodeSetParams", made, other, byref(copy), context)
    ask("cuGraphMemsetNodeSetParams", node, byref(fill_))
    ask("cuGraphMemcpyNodeSetParams", other, byref(copy))
say(answers)
''')


def test_copy_beyond_an_allocation_without_context_returns_what_the_driver_returns(
    site: Site,
) -> None:
    alike(site, ANSWERS + '''
memory = allocate(3368)
ask("cuMemcpyDtoDAsync_v2", memory, scratch, 3369, c_void_p(64))
call("cuCtxSetCurrent", None)
ask("cuMemcpyDtoH_v2", buffer, memory, 3369)
ask("cuMemsetD8_v2", memory, c_uint(1), 3369)
say(answers)
''')


def test_refused_fill_of_swapped_memory_does_not_wait_for_a_turn(site: Site) -> None:
    site.start("--tq", "1")
    program = Program(site, '''
memory, neighbour = allocate(3368), allocate(3368)
fill(neighbour, 7, 3368)
away()
call("cuMemsetD8_v2", memory, c_uint(1), 4096, result=INVALID)
say("refused")
assert get(neighbour, 3368) == bytes([7]) * 3368
''')
    hook = program.lose_card()
    assert program.hears() == "refused"
    hook.close()
    program.ends_well()
