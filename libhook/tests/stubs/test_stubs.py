# SPDX-License-Identifier: Apache-2.0
"""A call through a closed stub waits, and keeps all its arguments (driver/stubs.c)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from libhook.tests.doubles import FLAGS, SOURCE

ARM = "aarch64-linux-gnu"
PROGRAM = Path(__file__).with_name("stubs.c")
SOURCES = [SOURCE / "driver" / name for name in ("leave.c", "stubs.c", "symbols.c", "stub_code.S")]
EMULATED = pytest.mark.skipif(
    shutil.which(f"{ARM}-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="no cross compiler and emulator for aarch64 (gcc-aarch64-linux-gnu, qemu-user)")


@pytest.mark.parametrize(("compiler", "emulator"), [
    ("gcc", []),
    pytest.param(f"{ARM}-gcc", ["qemu-aarch64", "-L", f"/usr/{ARM}"], marks=EMULATED),
])
def test_stub_called_while_closed_passes_the_arguments_once_the_stub_opens(
    compiler: str, emulator: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "stubs"
    subprocess.run([compiler, *FLAGS, "-rdynamic", PROGRAM, *SOURCES, "-ldl", "-o", program],
                   check=True)
    done = subprocess.run([*emulator, program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "well\n"), done
