# SPDX-License-Identifier: Apache-2.0
"""What was kept of the benchmarks can be read."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def test_results_can_be_read() -> None:
    files = sorted(RESULTS.iterdir())
    assert files
    for path in files:
        assert path.suffix == ".json"
        assert isinstance(json.loads(path.read_text()), (dict, list)), path
