# SPDX-License-Identifier: Apache-2.0
"""A program without the library, which asks the driver without pause: bare.py MIB.

It prints what each line comes to.
"""

import ctypes
import sys
import threading

cuda = ctypes.CDLL("libcuda.so.1")
SIZE = int(sys.argv[1]) << 20
PIECE = 16 << 20
asked, ended = 0, False


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


def poll() -> None:
    """Polls by cuStreamQuery and cuEventQuery, neither of which takes the driver's lock."""
    global asked
    call("cuCtxSetCurrent", context)
    while not ended:
        assert cuda.cuStreamQuery(None) in (0, 600)
        assert cuda.cuEventQuery(event) in (0, 600)
        asked += 1


def read() -> set[int]:
    there = ctypes.create_string_buffer(PIECE)
    found = set()
    for at in range(0, SIZE, PIECE):
        call("cuMemcpyDtoH_v2", there, ctypes.c_uint64(memory.value + at), ctypes.c_size_t(PIECE))
        found |= set(there.raw[::4096])
    return found


def fill(byte: int) -> None:
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(byte), ctypes.c_size_t(SIZE))


context, memory, event = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuEventCreate", ctypes.byref(event), 0)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(SIZE))
fill(5)
poller = threading.Thread(target=poll)
poller.start()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except AssertionError as failed:
        print(failed, flush=True)
ended = True
poller.join()
