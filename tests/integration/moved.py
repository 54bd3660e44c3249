# SPDX-License-Identifier: Apache-2.0
"""A program on a GPU: moved.py [MIB BYTE]. It fills MIB of memory with BYTE, evaluates each line of
its input, and prints the value or the error."""

import ctypes
import os
import select
import sys
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")
MEMORY = int((sys.argv[1:] or ["16"])[0]) << 20
BYTE = int((sys.argv[2:] or ["7"])[0])
PIECE = 16 << 20

def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


def distinct(address: ctypes.c_uint64) -> set[int]:
    """The values of the program's bytes at an address. Compares equal bytes without a loop."""
    there = ctypes.create_string_buffer(PIECE)
    found: set[int] = set()
    for at in range(0, MEMORY, PIECE):
        call("cuMemcpyDtoH_v2", there, ctypes.c_uint64(address.value + at), ctypes.c_size_t(PIECE))
        data = there.raw
        found |= set(data[:1] if data == data[:1] * PIECE else data)
    return found


def read() -> set[int]:
    return distinct(memory)


def fill(byte: int) -> None:
    call("cuMemsetD8_v2", memory, ctypes.c_ubyte(byte), ctypes.c_size_t(MEMORY))


def free() -> int:
    there, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(there), ctypes.byref(total))
    return there.value


class Handle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def export() -> bytes:
    handle = Handle()
    call("cuIpcGetMemHandle", ctypes.byref(handle), memory)
    return bytes(handle)


def import_(handle: bytes) -> set[int]:
    """The bytes of another process's memory, which stays open."""
    opened = ctypes.c_uint64()
    call("cuIpcOpenMemHandle_v2", ctypes.byref(opened), Handle.from_buffer_copy(handle), 1)
    return distinct(opened)


def in_thread(function: str) -> bool:
    done: list[object] = []

    def run() -> None:
        call("cuCtxSetCurrent", context)
        done.append(eval(function))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return bool(done)


def ask_in_child() -> int:
    """The driver's result for a call in a forked child."""
    child = os.fork()
    if child == 0:
        os._exit(cuda.cuCtxSynchronize())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def grow(mib: int) -> int:
    more = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(more), ctypes.c_size_t(mib << 20))
    call("cuMemsetD8_v2", more, ctypes.c_ubyte(5), ctypes.c_size_t(mib << 20))
    return mib


def work() -> set[int]:
    """Uses the GPU without a pause until the next line of the input."""
    while not select.select([sys.stdin], [], [], 0)[0]:
        call("cuMemsetD8_v2", memory, ctypes.c_ubyte(7), ctypes.c_size_t(MEMORY))
        call("cuCtxSynchronize")
    sys.stdin.readline()
    return read()


def use_second_card() -> int:
    """Fills memory of the second card; afterwards the first card's context is current again."""
    second = ctypes.c_void_p()
    call("cuCtxCreate_v2", ctypes.byref(second), 0, 1)
    grow(64)
    call("cuCtxSetCurrent", context)
    return 2


ended: list[bool] = []


def launch_host_function(seconds: float) -> bool:
    """Launches a host function. Returns whether the function has ended when the launch returns."""
    call("cuLaunchHostFunc", None, kept[0], ctypes.c_void_p(int(seconds * 1000)))
    return bool(ended)


def _host_function(milliseconds: int) -> None:
    time.sleep(milliseconds / 1000)
    ended.append(True)


kept = [ctypes.CFUNCTYPE(None, ctypes.c_size_t)(_host_function)]
threads: list[threading.Thread] = []
returned: list[str] = []


def call_all(names: list[str]) -> int:
    """Calls each driver function in a separate thread, with all arguments 0."""
    size = threading.stack_size(256 << 10)

    def run(name: str) -> None:
        getattr(cuda, name)(*[ctypes.c_uint64(0)] * 12)
        returned.append(name)

    for name in names:
        threads.append(threading.Thread(target=run, args=(name,)))
        threads[-1].start()
    threading.stack_size(size)
    return len(threads)


def join() -> int:
    for thread in threads:
        thread.join()
    return len(returned)


call("cuInit", 0)
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(MEMORY))
fill(BYTE)
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except AssertionError as failed:
        print(failed, flush=True)
