# SPDX-License-Identifier: Apache-2.0
"""Further memory of a suite's process, so that the process never fits beside a rival.

The driver allocates the memory in the primary context that frameworks use, too. A test of a suite
may reset that context and so free the memory, which is no error.
"""

import ctypes
import hashlib
from dataclasses import dataclass

WORD = 0x5AFE1E55
CHUNK = 64 << 20                        # bytes that are compared at a time


@dataclass(frozen=True, slots=True)
class Ballast:
    """Memory on the card, `size` bytes that are all written."""

    context: ctypes.c_void_p
    address: int
    size: int

    @staticmethod
    def take(size: int) -> "Ballast":
        """Allocates on the first card. Raises RuntimeError if the driver refuses."""
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        _call("cuInit", 0)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        _call("cuCtxPushCurrent_v2", context)
        _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        _call("cuMemsetD32_v2", address, WORD, ctypes.c_size_t(size // 4))
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return Ballast(context, address.value, size)

    def digest(self) -> str | None:
        """A digest of all bytes; None if the context was reset or has failed."""
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuCtxPushCurrent_v2(self.context) != 0:
            return None
        seen, buffer = hashlib.sha256(), ctypes.create_string_buffer(CHUNK)
        read = 0
        while read < self.size:
            part = min(CHUNK, self.size - read)
            if driver.cuMemcpyDtoH_v2(
                buffer, ctypes.c_uint64(self.address + read), ctypes.c_size_t(part)
            ) != 0:
                break
            seen.update(memoryview(buffer)[:part])
            read += part
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return seen.hexdigest() if read == self.size else None


def _call(name: str, *arguments: object) -> None:
    result = ctypes.CDLL("libcuda.so.1")[name](*arguments)
    if result != 0:
        raise RuntimeError(f"{name} failed with error {result}")
