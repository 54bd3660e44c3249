# SPDX-License-Identifier: Apache-2.0
"""Stands for the models of engines.py: memory on the GPU, and arithmetic that changes all of it.

The words of 32 bits in a chunk of memory are all equal, at first to the chunk's number. Nothing
here is about sharing the GPU."""

from __future__ import annotations

import ctypes

try:
    import torch
    PYTORCH = torch.cuda.is_available()
except ImportError:
    PYTORCH = False

CHUNK = 16 << 20                        # bytes


def word_of(content: bytes) -> int:
    return int.from_bytes(content[:4], "little")


class PyTorch:
    def __init__(self, part: float) -> None:
        self.chunks = int(part * torch.cuda.mem_get_info()[1]) // CHUNK
        self.words = torch.empty((self.chunks, CHUNK // 4), dtype=torch.int32, device="cuda")
        self.words.copy_(torch.arange(self.chunks, dtype=torch.int32, device="cuda")[:, None])

    def add(self, number: int) -> None:
        """Multiplies each word by 3, and adds a number."""
        self.words.mul_(3).add_(number)

    def read(self, chunk: int) -> bytes:
        row = self.words[chunk].cpu()
        return ctypes.string_at(row.data_ptr(), CHUNK)

    def write(self, chunk: int, content: bytes) -> None:
        self.words[chunk].copy_(torch.frombuffer(bytearray(content), dtype=torch.int32))

    def holds(self, chunk: int, word: int) -> bool:
        signed = word - (1 << 32) if word >> 31 else word
        return bool((self.words[chunk] == signed).all())


class Driver:
    """The same without PyTorch: CUDA's driver sets the words, which the processor computes."""

    def __init__(self, part: float) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise RuntimeError("there is no GPU: NVIDIA's driver (libcuda.so.1) is missing; "
                               "nvsharectl trial simulates both") from None
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.chunks = int(part * total.value) // CHUNK
        self.call("cuMemAlloc_v2", ctypes.byref(address), self.chunks * CHUNK)
        self.address = address.value
        for chunk in range(self.chunks):
            self.fill(chunk, chunk)

    def call(self, name: str, *arguments: object) -> None:
        wide = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in arguments]
        result = self.cuda[name](*wide)
        if result != 0:
            known = {2: ": out of memory", 100: ": there is no GPU"}.get(result, "")
            raise RuntimeError(f"{name} failed with CUDA's error {result}{known}")

    def fill(self, chunk: int, word: int) -> None:
        self.call("cuMemsetD32_v2", self.address + chunk * CHUNK, word, CHUNK // 4)

    def add(self, number: int) -> None:
        for chunk in range(self.chunks):
            self.fill(chunk, (3 * word_of(self.read(chunk, 4)) + number) % (1 << 32))

    def read(self, chunk: int, size: int = CHUNK) -> bytes:
        content = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", content, self.address + chunk * CHUNK, size)
        return content.raw

    def write(self, chunk: int, content: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", self.address + chunk * CHUNK, content, len(content))

    def holds(self, chunk: int, word: int) -> bool:
        return self.read(chunk) == word.to_bytes(4, "little") * (CHUNK // 4)


def open_memory(part: float) -> PyTorch | Driver:
    """Allocates this part of the GPU, from 0 to 1."""
    return PyTorch(part) if PYTORCH else Driver(part)
