# SPDX-License-Identifier: Apache-2.0
"""A program with a different content in each block of memory: python bench/tiers/program.py MIB.

It prints "ready" before it allocates, and when it has filled its memory. For each line of its input
it compares every byte, fills the memory anew and prints the number of wrong pieces. It imports only
modules of Python's standard library, so that its host memory is small.
"""

import ctypes
import os
import sys
from ctypes import byref, c_size_t, c_uint64, c_void_p

PIECE = 32 << 20

cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    result = cuda[name](*arguments)
    if result != 0:
        raise SystemExit(f"{name}: {result}")


def stamped(data: bytearray, turn: int, index: int) -> bytearray:
    for at in range(0, PIECE, PIECE // 8):
        data[at:at + 16] = turn.to_bytes(8, "little") + index.to_bytes(8, "little")
    return data


def main(size: int) -> None:
    context, address = c_void_p(), c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", byref(address), c_size_t(PIECE))
    data, got = bytearray(os.urandom(PIECE)), bytearray(PIECE)
    memory = (ctypes.c_char * PIECE).from_buffer(data), (ctypes.c_char * PIECE).from_buffer(got)
    call("cuMemcpyHtoD_v2", address, memory[0], c_size_t(PIECE))
    call("cuMemFree_v2", address)
    print("ready", flush=True)
    sys.stdin.readline()
    call("cuMemAlloc_v2", byref(address), c_size_t(size))

    def at(index: int) -> c_uint64:
        return c_uint64(address.value + index * PIECE)

    def fill(turn: int) -> None:
        for index in range(size // PIECE):
            stamped(data, turn, index)
            call("cuMemcpyHtoD_v2", at(index), memory[0], c_size_t(PIECE))

    def wrong(turn: int) -> int:
        found = 0
        for index in range(size // PIECE):
            call("cuMemcpyDtoH_v2", memory[1], at(index), c_size_t(PIECE))
            found += got != stamped(data, turn, index)
        return found

    fill(0)
    print("ready", flush=True)
    for turn, _ in enumerate(sys.stdin):
        found = wrong(turn)
        fill(turn + 1)
        print(found, flush=True)


main(int(sys.argv[1]) << 20)
