# SPDX-License-Identifier: Apache-2.0
"""The simulator's types and prototypes are those of NVIDIA's cuda.h."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from libhook.tests.simulator.conftest import LIBHOOK

SOURCES = LIBHOOK / "simulator"
INCLUDE = LIBHOOK / "include"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
CHECKED = ("-DNVSHARE_CHECK_CUDA_H", f"-I{CUDA}")

pytestmark = pytest.mark.skipif(
    not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME to compare with it"
)


def members(body: str) -> list[str]:
    """The members of a structure, without those of what it holds in braces."""
    flat = body
    while re.search(r"\{[^{}]*\}", flat):
        flat = re.sub(r"\{[^{}]*\}", "", flat)
    found = []
    for declaration in flat.split(";"):
        for part in declaration.split(","):
            name = re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*$", part)
            if name is not None and name[1] not in ("union", "struct"):
                found.append(name[1])
    return found


def expressions() -> list[str]:
    """Every enumerator, macro, size and offset of abi*.h, as C expressions."""
    headers = [*sorted(SOURCES.glob("driver/abi*.h")), INCLUDE / "nvshare" / "cuda_copies.h"]
    text = "".join(path.read_text() for path in headers)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = re.findall(r"\b(CU[A-Z0-9]*_\w+) = ", text)
    found += re.findall(r"^#define (CU\w+) ", text, re.MULTILINE)
    for body, name in re.findall(
        r"^typedef (?:struct|union) \w+ \{\n(.*?)^\} (\w+);", text, re.MULTILINE | re.DOTALL
    ):
        found.append(f"sizeof({name})")
        found += [f"offsetof({name}, {member})" for member in members(body)]
    return found


def values(directory: Path, *flags: str) -> dict[str, int]:
    """What the compiler makes of `expressions()`."""
    lines = "".join(f'    printf("%lld\\n", (long long)({e}));\n' for e in expressions())
    program = directory / "values"
    subprocess.run(
        ["gcc", "-x", "c", "-", f"-I{SOURCES}", f"-I{INCLUDE}", *flags, "-o", program],
        input=f'#include <stdio.h>\n#include "driver/abi.h"\nint main(void)\n{{\n{lines}}}\n',
        text=True,
        check=True,
    )
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return dict(zip(expressions(), map(int, output.split()), strict=True))


def test_simulator_types_are_those_of_cuda_h(tmp_path: Path) -> None:
    ours = values(tmp_path)
    assert len(ours) > 500
    assert "offsetof(CUmemAllocationProp, allocFlags)" in ours
    assert ours == values(tmp_path, *CHECKED)


PROTOTYPES = sorted(set(SOURCES.glob("*/*.c")) - set(SOURCES.glob("nvml/*.c")))


def test_simulator_prototypes_are_those_of_cuda_h() -> None:
    for source in PROTOTYPES:
        subprocess.run(
            ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-Wno-deprecated-declarations", f"-I{SOURCES}", *CHECKED, source],
            check=True,
        )  # fmt: skip
