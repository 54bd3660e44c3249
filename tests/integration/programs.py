# SPDX-License-Identifier: Apache-2.0
"""Python programs that call the driver under the library and pause for a test.

A program is PRELUDE and a body. During its pauses other clients take the card.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from nvshared.units import MIB
from tests.integration.conftest import ROOT, Process, Site
from tests.integration.fakehook import PATIENCE, Hook

FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]    # the number of the system call

PRELUDE = '''
import ctypes, json, os, sys
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
MIB, GRAIN = 1 << 20, 2 << 20
INVALID, NOT_SUPPORTED = 1, 801

class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]
class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p),
                ("flags", ctypes.c_ubyte * 8)]
class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
cuda.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, Handle, c_uint]

def call(name, *arguments, result=0):
    wide = [c_uint64(a) if isinstance(a, int) else a for a in arguments]
    got = cuda[name](*wide)
    assert got == result, f"{name}: {got}, must be {result}"
def allocate(size, result=0):
    address = c_uint64()
    call("cuMemAlloc_v2", byref(address), size, result=result)
    return address.value
def reserve(size):
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
    return address.value
def create(size, handles=0):
    handle = c_uint64()
    properties = Properties(1, handles, Location(1, 0))
    call("cuMemCreate", byref(handle), size, byref(properties), 0)
    return handle.value
def allow(address, size, flags=3):
    call("cuMemSetAccess", address, size, byref(Access(Location(1, 0), flags)), 1)
def map_at(address, handle, size):
    call("cuMemMap", address, size, 0, handle, 0)
    allow(address, size)
def map_memory(size, handles=0):
    "Address and handle of memory that the program creates and maps by cuMemMap."
    address, handle = reserve(size), create(size, handles)
    map_at(address, handle, size)
    return address, handle
def noise(size):
    "Random bytes, repeated after a prime number of bytes: all blocks have different bytes."
    some = os.urandom(1_000_003)
    return (some * (size // len(some) + 1))[:size]
def put(address, data):
    call("cuMemcpyHtoD_v2", address, data, len(data))
def get(address, size):
    data = bytearray(size)
    call("cuMemcpyDtoH_v2", (ctypes.c_char * size).from_buffer(data), address, size)
    return data
def attribute(which, address, kind=c_uint64):
    value = kind()
    call("cuPointerGetAttribute", byref(value), c_int(which), address)
    return value.value
def say(what):
    print(json.dumps(what), flush=True)
def pause(what):
    "Waits until the test sends a line."
    say(what)
    sys.stdin.readline()
def away():
    "Waits; meanwhile the test lets another client take the card."
    pause("away")
def left_and_used():
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value - free.value
def left():
    "Bytes of the card that the program may still allocate."
    return left_and_used()[0]
def used():
    "Bytes of the card that the library counts."
    return left_and_used()[1]
def new_stream(flags=1):
    stream = c_uint64()
    call("cuStreamCreate", byref(stream), flags)
    return stream
def new_context():
    context = c_void_p()
    call("cuCtxCreate_v2", byref(context), c_uint(0), c_int(0))
    return context
def new_array(size):
    "A pinned array of size bytes, a multiple of 64 KiB."
    array = c_uint64()
    call("cuArrayCreate_v2", byref(array), (c_uint64 * 3)(4096, size >> 16, 4 << 32 | 0x20))
    return array
def fill(address, value, size):
    call("cuMemsetD8_v2", address, c_uint(value), size)
def kernel(name):
    "A kernel of libhook/demo/kernels.ptx."
    module, found = c_void_p(), c_void_p()
    with open("libhook/demo/kernels.ptx", "rb") as file:
        call("cuModuleLoadData", byref(module), file.read())
    call("cuModuleGetFunction", byref(found), module, b"nvshare_" + name.encode())
    return found
def launch(kernel, stream, *arguments, blocks=1, threads=1, result=0):
    values = [c_uint64(argument) for argument in arguments]
    passed = (c_void_p * len(values))(*(ctypes.cast(byref(v), c_void_p) for v in values))
    call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, stream, passed, None,
         result=result)

call("cuInit", 0)
context = c_void_p()
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)
'''


class Program(Process):
    """A program under the library that can be evicted between two lines of output. The code
    `before` runs before the program uses the card."""

    def __init__(self, site: Site, body: str, within: Sequence[str] = (), before: str = "",
                 **options: Any) -> None:
        """`options`: of Popen."""
        super().__init__(site.program(
            [*within, sys.executable, "-c", before + PRELUDE + body], stderr=subprocess.PIPE,
            **options))
        self.site = site

    def hears(self) -> Any:
        """The program's next line of output, parsed."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            assert self.popen.stderr is not None
            raise AssertionError(f"the program ended: {self.popen.stderr.read()}")
        return json.loads(line)

    def go_on(self) -> None:
        self.tell()

    def finish(self) -> None:
        self.go_on()
        self.ends_well()

    def lose_card(self, much: int = 1000 * MIB) -> Hook:
        """At the program's next pause another client takes the card; then the program continues."""
        assert self.hears() == "away"
        hook = self.site.holding(much)
        self.go_on()
        return hook

    def evict(self, much: int = 1000 * MIB) -> None:
        self.lose_card(much).close()

    def ends_well(self) -> None:
        _, errors = self.popen.communicate(timeout=PATIENCE)
        assert self.popen.returncode == 0, errors


def evict_and_load(site: Site, body: str, times: int = 1, much: int = 1000 * MIB) -> None:
    """Another client takes the card at each of the program's pauses; the program ends well."""
    site.start("--tq", "1")
    program = Program(site, body)
    for _ in range(times):
        program.evict(much)
    program.ends_well()


def ends_well(site: Site, body: str) -> None:
    site.start()
    Program(site, body).ends_well()


def alone(site: Site, body: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", body], env=site.environment, cwd=ROOT, capture_output=True,
        text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def under(site: Site, body: str) -> Any:
    program = Program(site, body.removeprefix(PRELUDE))
    said = program.hears()
    program.ends_well()
    return said


def alike(site: Site, body: str) -> None:
    site.start()
    assert under(site, body) == alone(site, body)
