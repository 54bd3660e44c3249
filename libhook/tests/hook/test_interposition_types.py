# SPDX-License-Identifier: Apache-2.0
"""Our types of the driver say what NVIDIA's cuda.h says: every name, value, size and offset."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from libhook.tests.simulator.test_simulator_types import members

SOURCE = Path(__file__).parents[2] / "src"
INCLUDE = SOURCE.with_name("include")
TYPES = (SOURCE / "driver" / "driver_types.h", INCLUDE / "nvshare" / "cuda_copies.h")
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"

needs_cuda_h = pytest.mark.skipif(
    not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME to compare with it"
)


def expressions() -> list[str]:
    """Everything that they define and that has a number, as C expressions."""
    text = "".join(file.read_text() for file in TYPES)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    numbers = re.findall(r"^    (CU\w+) = ", text, re.MULTILINE)
    numbers += re.findall(r"^#define (CU\w+) ", text, re.MULTILINE)
    sizes = re.findall(r"^typedef (?!struct|union|enum).* (\w+);", text, re.MULTILINE)
    sizes += re.findall(r"^typedef \w+ \w+ \*(\w+);", text, re.MULTILINE)
    sizes += re.findall(r"^} (\w+);", text, re.MULTILINE)
    offsets = []
    for body, name in re.findall(r"^typedef struct \w+ \{\n(.*?)^} (\w+);", text, re.M | re.S):
        for member in members(body):
            offsets.append(f"offsetof({name}, {member})")
            offsets.append(f"sizeof((({name} *)0)->{member})")
    return [
        *numbers,
        *(f"sizeof({name})" for name in sizes),
        *(f"({name})-1 < ({name})0" for name in sizes if name in ("CUdevice", "CUdeviceptr")),
        *offsets,
    ]


def values(directory: Path, *flags: str) -> dict[str, int]:
    """What the compiler makes of `expressions()` with driver.h and `flags`."""
    lines = "".join(f'    printf("%lld\\n", (long long)({e}));\n' for e in expressions())
    program = directory / "values"
    subprocess.run(
        ["gcc", "-x", "c", "-", f"-I{SOURCE}", f"-I{INCLUDE}", *flags, "-o", program],
        input=f'#include <stdio.h>\n#include "driver/driver.h"\nint main(void)\n{{\n{lines}}}\n',
        text=True,
        check=True,
    )
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return dict(zip(expressions(), map(int, output.split()), strict=True))


def test_list_of_types_has_the_important_types() -> None:
    found = set(expressions())
    assert len(found) > 200
    assert {
        "CUDA_ERROR_OUT_OF_MEMORY",
        "sizeof(CUdeviceptr)",
        "sizeof(CUcontext)",
        "CU_STREAM_LEGACY",
        "offsetof(CUmemAllocationProp, allocFlags)",
        "offsetof(CUlaunchConfig, hStream)",
        "offsetof(CUDA_MEMCPY3D, Depth)",
        "offsetof(CUipcMemHandle, reserved)",
    } <= found


@needs_cuda_h
def test_types_and_constants_are_those_of_cuda_h(tmp_path: Path) -> None:
    ours = values(tmp_path)
    theirs = values(tmp_path, "-DNVSHARE_CHECK_CUDA_H", f"-I{CUDA}")
    assert ours == theirs
