# SPDX-License-Identifier: Apache-2.0
"""Frameworks and libraries compute what they compute alone, handed over every 200 ms."""

import pytest

from bench.harness import program
from tests.gpu.test_sharing import Record, compare


@pytest.mark.parametrize("kind", ["amp", "triton", "numba", "libraries"])
def test_framework_computes_the_same_beside_a_rival(kind: str, record: Record) -> None:
    compare(record, f"framework {kind}", program("framework", kind), 14)
