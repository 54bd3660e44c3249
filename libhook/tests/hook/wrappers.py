# SPDX-License-Identifier: Apache-2.0
"""The wrappers alone: linked with a gate that is always closed (core_double.c), and with the
recorded driver.

A test passes Python code, which runs after PRELUDE in a process of its own and calls wrappers.
Other functions of the library are missing: a call ends the process and prints the function's name.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from libhook.tests.doubles import FLAGS, HERE, LIBRARY, SOURCE

# Files besides api/ that the wrappers need and that core_double.c does not replace.
REAL = ["gate/contexts", "flight/capture", "flight/streams", "driver/log", "driver/newer",
        "driver/own_thread", "driver/real", "driver/setting", "driver/stub_code", "driver/stubs",
        "driver/symbols", "pool/driver_pools"]
OBJECTS = SOURCE.parent / "build" / "src"

PRELUDE = """
import ctypes, os, sys
driver = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
library = ctypes.CDLL(sys.argv[2], mode=os.RTLD_LAZY)

def entered():
    return ctypes.c_int.in_dll(library, "core_entered").value

def left():
    return entered() - library.core_inside()

def calls(name):
    return ctypes.c_uint.in_dll(driver, "calls_of_" + name).value

def call(name, *arguments):
    return library[name](*map(ctypes.c_uint64, arguments))
"""

Wrappers = Callable[[str], None]


def build(directory: Path) -> Path:
    library = directory / "libwrappers.so"
    api = (f"api/{path.stem}" for path in SOURCE.glob("api/*.c"))
    objects = [OBJECTS / f"{file}.o" for file in (*api, *REAL)]
    doubles = [HERE / "doubles.c", Path(__file__).with_name("core_double.c")]
    subprocess.run(["gcc", *FLAGS, *LIBRARY, *objects, *doubles, "-o", library], check=True)
    return library


def run(driver: Path, library: Path, body: str) -> None:
    """Runs `body`, which must succeed and print nothing."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body, str(driver), str(library)], capture_output=True,
        text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
