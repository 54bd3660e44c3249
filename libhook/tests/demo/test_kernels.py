# SPDX-License-Identifier: Apache-2.0
"""The assembler accepts the kernels' PTX for the oldest and the newest GPUs that it supports."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "demo" / "kernels.ptx"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
PTXAS = shutil.which("ptxas", path=f"{CUDA / 'bin'}:{os.environ.get('PATH', '')}")

needs_ptxas = pytest.mark.skipif(
    PTXAS is None, reason=f"no ptxas in {CUDA / 'bin'} or PATH; set CUDA_HOME to have PTX assembled"
)


def test_demo_kernels_are_written_in_ptx_6_0_for_pascal_cards() -> None:
    text = KERNELS.read_text()
    assert ".version 6.0\n.target sm_60\n.address_size 64\n" in text


@needs_ptxas
@pytest.mark.parametrize("card", ["sm_75", "sm_80", "sm_90"])
def test_demo_kernels_are_accepted_by_the_ptx_assembler(card: str, tmp_path: Path) -> None:
    assert PTXAS is not None
    done = subprocess.run(
        [PTXAS, f"--gpu-name={card}", "--warning-as-error", KERNELS, "-o", tmp_path / "kernels"],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernels").stat().st_size > 0
