# SPDX-License-Identifier: Apache-2.0
"""The wrappers alone: linked with a double of the core (core_double.c), before the recorded driver.

A test's body is Python that runs in a process of its own after PRELUDE, sets what the driver
answers, calls wrappers and looks at what they asked of the core.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
# Beside api/, what the wrappers need that is no double.
REAL = ["gate/contexts.c", "gate/unknown_entry.c", "flight/capture_list.c", "flight/streams.c",
        "driver/log.c", "driver/newer.c", "driver/others.c", "driver/process_start.c",
        "driver/real.c", "driver/setting.c", "driver/stub_code.S", "driver/stubs.c",
        "driver/symbols.c", "pool/driver_pools.c"]

PRELUDE = """
import ctypes, sys, threading
driver, library = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1"), ctypes.CDLL(sys.argv[2])
NO_STREAM, PER_THREAD = 2**64 - 1, 2
OURS, GIB, MIB = 0x100000000, 1 << 30, 1 << 20

class Core:
    TYPES = {"stream": ctypes.c_uint64, "wished": ctypes.c_uint64, "pinned": ctypes.c_uint64,
             "remembered": ctypes.c_uint64, "context_ended": ctypes.c_uint64,
             "contexts_ended": ctypes.c_uint64, "contexts_attached": ctypes.c_uint64,
             "kept": ctypes.c_uint64, "prefetched": ctypes.c_uint64, "copied": ctypes.c_uint64}
    TYPES |= {"pool_" + name: ctypes.c_uint64
              for name in ("stream", "added", "most", "kept", "threshold")}
    def variable(self, name):
        return self.TYPES.get(name, ctypes.c_int).in_dll(library, "core_" + name)
    def __getattr__(self, name):
        return self.variable(name).value
    @property
    def left(self):
        return self.entered - library.core_inside()
    def __setattr__(self, name, value):
        self.variable(name).value = value
core = Core()

def answers(name, result=0, **outputs):
    "Lets the driver's `name` return `result`, and store where argument a0, a1 ... points."
    ctypes.c_int.in_dll(driver, "result_of_" + name).value = result
    for argument, value in outputs.items():
        width, i = (32, argument[1:]) if argument[0] == "i" else (64, argument[1:])
        kind = "narrow_stores_of_" if width == 32 else "stores_of_"
        ctypes.c_uint.in_dll(driver, kind + name).value |= 1 << int(i)
        (ctypes.c_uint64 * 12).in_dll(driver, "outputs_of_" + name)[int(i)] = value

def calls(name):
    return ctypes.c_uint.in_dll(driver, "calls_of_" + name).value

def arguments(name, count):
    return list((ctypes.c_uint64 * 12).in_dll(driver, "arguments_of_" + name))[:count]

def u64(value=0):
    return ctypes.c_uint64(value)

def call(name, *arguments):
    return library[name](*[a if not isinstance(a, int) else u64(a) for a in arguments])

answers("cuCtxGetDevice", i0=0)
answers("cuStreamIsCapturing", i1=0)
answers("cuThreadExchangeStreamCaptureMode")
core.attached = 1
"""

Wrappers = Callable[[str], None]


def build(directory: Path) -> Path:
    """The library of the wrappers, in `directory`."""
    library = directory / "libwrappers.so"
    sources = [*SOURCE.glob("api/*.c"), *(SOURCE / file for file in REAL)]
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    flags += ["-fvisibility=hidden", "-Wl,-z,defs", f"-I{SOURCE}", f"-I{SOURCE.parent}/include"]
    command = ["gcc", *flags, *sources, *Path(__file__).parent.glob("*_double.c"), "-o", library]
    subprocess.run(list(map(str, command)), check=True)
    return library


def run(driver: Path, library: Path, body: str) -> None:
    """Runs `body`, which must succeed and say nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body, str(driver), str(library)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
