# SPDX-License-Identifier: Apache-2.0
"""The simulator's own tests in C, plain and under the sanitizers."""

import subprocess

import pytest

from libhook.tests.simulator.conftest import LIBHOOK


@pytest.mark.parametrize("sanitizer", [
    "", *(pytest.param(one, marks=pytest.mark.long) for one in ("thread", "address")),
])
def test_make_test_simulator_succeeds(sanitizer: str) -> None:
    result = subprocess.run(
        ["make", "-C", LIBHOOK, "-s", "test-simulator", f"SANITIZE={sanitizer}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    said = [line for line in result.stdout.splitlines() if line.endswith(": right")]
    assert len(said) == 1
    assert "WARNING: ThreadSanitizer" not in result.stderr
