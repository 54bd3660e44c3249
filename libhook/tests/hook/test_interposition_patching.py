# SPDX-License-Identifier: Apache-2.0
"""Other libraries, such as UCX, patch the first instructions of functions that programs call."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from libhook.tests.hook import recorded_driver as recorded

PATCHED = {"x86_64": 12, "aarch64": 16}                # bytes of a jump to any address

FIRST_BYTES = """
import ctypes, json, sys
driver = ctypes.CDLL("libcuda.so.1")
def first(name):
    return ctypes.string_at(ctypes.cast(driver[name], ctypes.c_void_p), 32).hex()
print(json.dumps({name: first(name) for name in sys.argv[1:] if hasattr(driver, name)}))
"""


def patchable(code: bytes, machine: str) -> bool:
    """Whether UCX can copy the first instructions of `code` (its src/ucm/bistro), and put a jump in
    their place. Of what it can copy, only what the library uses is known here."""
    at = 0
    while at < PATCHED[machine]:
        word = int.from_bytes(code[at:at + 4], "little")
        if machine == "x86_64":
            known, size = code[at] & 0xf8 == 0xb8, 5        # mov $constant, %register
        else:
            known, size = (word & 0x7f800000 == 0x52800000  # movz
                           or word & 0x9f000000 == 0x90000000       # adrp
                           or word & 0xbfc00000 == 0xb9400000), 4   # ldr
        if not known:
            return False
        at += size
    return True


@pytest.mark.parametrize("kind", ["wrappers", "stubs"])
def test_function_that_a_program_finds_begins_with_instructions_that_ucx_can_copy(
    library: Path, driver: Path, kind: str
) -> None:
    hooked = set(recorded.hooks())
    names = hooked if kind == "wrappers" else set(recorded.entries()) - hooked
    done = subprocess.run(
        [sys.executable, "-c", FIRST_BYTES, *names],
        env=recorded.environment(library, driver), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) > 100
    assert {name for name, code in found.items()
            if not patchable(bytes.fromhex(code), platform.machine())} == set()
