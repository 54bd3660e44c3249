# SPDX-License-Identifier: Apache-2.0
"""The simulator's prototypes equal those of NVIDIA's cuda.h."""

import os
import subprocess
from pathlib import Path

import pytest

from libhook.tests.simulator.conftest import LIBHOOK

SOURCES = LIBHOOK / "simulator"
INCLUDE = LIBHOOK / "include"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
CHECKED = ("-DNVSHARE_CHECK_CUDA_H", f"-I{CUDA}")

pytestmark = pytest.mark.skipif(
    not (CUDA / "cuda.h").exists(), reason=f"no cuda.h in {CUDA}; set CUDA_HOME to compare with it")


PROTOTYPES = sorted(set(SOURCES.glob("*/*.c")) - set(SOURCES.glob("nvml/*.c")))


def test_simulator_prototypes_are_those_of_cuda_h() -> None:
    for source in PROTOTYPES:
        subprocess.run(
            ["gcc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
             "-Wno-deprecated-declarations", f"-I{SOURCES}", f"-I{INCLUDE}", *CHECKED, source],
            check=True)  # fmt: skip
