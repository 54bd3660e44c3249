# SPDX-License-Identifier: Apache-2.0
"""cuda_types.h agrees with NVIDIA's cuda.h: every name, value, size and offset."""

import os
import re
import subprocess
from pathlib import Path

import pytest

INCLUDE = Path(__file__).parents[2] / "include"
TYPES = INCLUDE / "nvshare" / "cuda_types.h"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"

needs_cuda_h = pytest.mark.skipif(
    not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME to compare with it")


def members(body: str) -> list[str]:
    """The members of a structure, without the members of nested structures and unions."""
    while (flat := re.sub(r"\{[^{}]*\}", "", body)) != body:
        body = flat
    names = re.findall(r"(\w+)\s*(?:\[[^\]]*\])?\s*[,;]", flat)
    return [name for name in names if name not in ("union", "struct")]


def expressions() -> list[str]:
    """All names with a value in the headers, as C expressions."""
    text = re.sub(r"/\*.*?\*/", "", TYPES.read_text(), flags=re.DOTALL)
    text = text[text.index("#else") : text.index("#endif")]
    numbers = re.findall(r"\b(CU[A-Z0-9]*_\w+) = ", text)
    numbers += re.findall(r"^#define (CU\w+) ", text, re.MULTILINE)
    sizes = re.findall(r"^typedef (?!struct|union|enum)[^(\n]* (\w+);", text, re.MULTILINE)
    sizes += re.findall(r"^typedef \w+ \w+ \*(\w+);", text, re.MULTILINE)
    sizes += re.findall(r"^} (\w+);", text, re.MULTILINE)
    offsets = []
    for body, name in re.findall(
        r"^typedef (?:struct|union) \w+ \{\n(.*?)^} (\w+);", text, re.M | re.S):
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
    """The compiler's values of `expressions()` with cuda_types.h and `flags`."""
    lines = "".join(f'    printf("%lld\\n", (long long)({e}));\n' for e in expressions())
    program = directory / "values"
    subprocess.run(
        ["gcc", "-x", "c", "-", f"-I{INCLUDE}", *flags, "-o", program],
        input='#include <stdio.h>\n#include "nvshare/cuda_types.h"\n'
              f'int main(void)\n{{\n{lines}}}\n',
        text=True,
        check=True)
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return dict(zip(expressions(), map(int, output.split()), strict=True))


@needs_cuda_h
def test_recorded_types_and_constants_equal_those_of_cuda_h(tmp_path: Path) -> None:
    ours = values(tmp_path)
    assert len(ours) > 700
    theirs = values(tmp_path, "-DNVSHARE_CHECK_CUDA_H", f"-I{CUDA}")
    assert ours == theirs
