# SPDX-License-Identifier: Apache-2.0
"""A rank of a program on several simulated cards with kernels that wait for each other.

    python -m tests.integration.gangs FILE CARDS RANKS STEPS SIZE [AHEAD]

FILE is mapped by all ranks; CARDS: this rank's cards, separated by commas; RANKS: the number of
cards of all ranks. Each step submits to each card a kernel that counts, and a kernel that ends when
that of all cards has begun. The host waits for the kernels every AHEAD steps, and at the end
compares all memory.
"""

import ctypes
import mmap
import os
import sys
from array import array
from ctypes import byref, c_uint64, c_void_p
from pathlib import Path

MIB = 1 << 20
COUNTED = MIB // 8                      # number of 64-bit words in which kernels are counted
FACTOR, OFFSET = 0x5851F42D4C957F2D, 0x14057B7EF767814F
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry nvshare_advance(.param .b64 p, .param .b64 count, .param .b64 rounds) { ret; }
.visible .entry nvshare_meet(.param .b64 p, .param .b64 value) { ret; }
.visible .entry nvshare_spin(.param .b64 microseconds) { ret; }
"""
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    wide = [c_uint64(a) if isinstance(a, int) else a for a in arguments]
    result = cuda[name](*wide)
    assert result == 0, f"{name}: {result}"


class Card:
    def __init__(self, number: int, size: int, words: object) -> None:
        self.context, self.stream, module = c_void_p(), c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self.context), number)
        self.enter()
        call("cuModuleLoadData", byref(module), PTX)
        self.kernels = {}
        for name in ("advance", "meet", "spin"):
            kernel = self.kernels[name] = c_void_p()
            call("cuModuleGetFunction", byref(kernel), module, b"nvshare_" + name.encode())
        self.data, self.counted, self.flag = c_uint64(), c_uint64(), c_uint64()
        call("cuMemAlloc_v2", byref(self.data), size)
        call("cuMemAlloc_v2", byref(self.counted), COUNTED * 8)
        call("cuMemHostGetDevicePointer_v2", byref(self.flag), words, 0)
        call("cuStreamCreate", byref(self.stream), 1)
        some = os.urandom(1_000_003)
        self.noise = (some * (size // len(some) + 1))[:size]
        call("cuMemcpyHtoD_v2", self.data.value, self.noise, size)
        call("cuMemsetD8_v2", self.counted.value, 0, COUNTED * 8)
        call("cuCtxSynchronize")

    def enter(self) -> None:
        call("cuCtxSetCurrent", self.context)

    def launch(self, name: str, *arguments: int) -> None:
        values = [c_uint64(one) for one in arguments]
        passed = (c_void_p * len(values))(*(ctypes.cast(byref(one), c_void_p) for one in values))
        call("cuLaunchKernel", self.kernels[name], *(1, 1, 1, 1, 1, 1, 0), self.stream, passed,
             None)

    def check(self, steps: int) -> None:
        self.enter()
        call("cuStreamSynchronize", self.stream)
        found = ctypes.create_string_buffer(len(self.noise))
        call("cuMemcpyDtoH_v2", found, self.data.value, len(self.noise))
        assert found.raw == self.noise, "what was in the memory is not there any more"
        word = 0
        for _ in range(steps):
            word = (word * FACTOR + OFFSET) % (1 << 64)
        counted = (c_uint64 * COUNTED)()
        call("cuMemcpyDtoH_v2", counted, self.counted.value, COUNTED * 8)
        assert array("Q", counted) == array("Q", [word]) * COUNTED, "kernels were lost"


def main() -> None:
    path, numbers, ranks, steps, size, *more = sys.argv[1:]
    ahead = int(more[0]) if more else 1
    with Path(path).open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 4096)
    words = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    call("cuInit", 0)
    first = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(first), int(numbers.split(",")[0]))
    call("cuCtxSetCurrent", first)
    call("cuMemHostRegister_v2", words, 4096, 3)    # flags: in all contexts, and mapped to the card
    cards = [Card(int(one), int(size), c_void_p(words)) for one in numbers.split(",")]
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(1, int(steps) + 1):
        for card in cards:
            card.enter()
            card.launch("spin", 2000)
            card.launch("advance", card.counted.value, COUNTED, 1)
            card.launch("meet", card.flag.value, step * int(ranks))
        if step % ahead == 0:
            for card in cards:
                card.enter()
                call("cuStreamSynchronize", card.stream)
    for card in cards:
        card.check(int(steps))
    print("right", flush=True)


if __name__ == "__main__":
    main()
