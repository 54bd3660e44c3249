# SPDX-License-Identifier: Apache-2.0
"""The frameworks' own test suites have the same outcomes with the library as without.

Each suite of suites/suite.py runs twice without the library, and once with the library beside a
rival, with hand-overs every 200 ms; suites/outcome.py compares the three runs. The error of this
test names each test with another outcome under the library.

A whole suite takes many minutes. Therefore each run has the same NVSHARE_SUITE_TESTS tests, evenly
spread over the suite; by default the number in COUNTS, for which three runs take about 100 s.
NVSHARE_RESULTS names a file for the figures; the folder of that file gets the outcomes of all runs.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from bench.harness import ROOT, Result, rival, run, sharing
from bench.trace import summary
from tests.gpu.suites.outcome import Comparison, Outcome, parsed
from tests.gpu.test_sharing import BUDGET, JAX, Record, check, competitor

COUNTS = {"operators": 250, "primitives": 150, "numba": 100}
NEEDS = {
    "operators": "torch",
    "primitives": "absl",               # JAX's test harnesses need absl, JAX does not
    "numba": "numba_cuda",
}
BALLAST, RIVAL = 6, 14                  # GiB; with any memory of the tests they exceed 20 GiB
# Results are equal in all runs with fixed workspaces, and with kernels that no autotuning chose.
SETTLED = {**JAX, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
LIMIT = 500.0                           # seconds for a run


def command(name: str, stain: int, output: Path) -> list[str]:
    """The command that runs a framework's test suite."""
    count = int(os.environ.get("NVSHARE_SUITE_TESTS", COUNTS[name]))
    return [
        sys.executable, str(ROOT / "tests" / "gpu" / "suites" / "suite.py"), name,
        "--count", str(count), "--stain", str(stain), "--ballast", str(BALLAST),
        "--output", str(output),
    ]


def lines(result: Result, output: Path) -> dict[str, Outcome]:
    """The outcomes of the tests that a run has written. Fails if the run ended early."""
    found = parsed(output.read_text(encoding="utf-8").splitlines(keepends=True))
    last = next(reversed(found), "none")
    assert result.code == 0, f"it ended after the test {last!r}\n{result.errors}"
    if kept := os.environ.get("NVSHARE_RESULTS"):
        Path(kept).with_name(output.name).write_bytes(output.read_bytes())
    return found


@pytest.mark.parametrize("name", COUNTS)
def test_framework_test_suite_has_the_same_outcomes_shared_as_alone(
    name: str, tmp_path: Path, record: Record
) -> None:
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"there is no {NEEDS[name]} here")
    outputs = [tmp_path / f"{name}-{run}.jsonl" for run in ("alone", "again", "shared")]
    commands = [command(name, stain, output) for stain, output in enumerate(outputs, 1)]
    alone = [
        lines(run([commands[number]], SETTLED, LIMIT)[0], outputs[number]) for number in (0, 1)
    ]
    with sharing("--tq", "200ms", "--capacity", "20GiB", *BUDGET, environment=SETTLED) as daemon:
        with rival(competitor(RIVAL, "--until-told"), daemon.environment) as other:
            together = run([commands[2]], daemon.environment, LIMIT)
        figures = summary(daemon.trace())
    found = Comparison.of(alone, lines(together[0], outputs[2]))
    record(f"suite {name}", {
        **figures, "compared": found.compared, "unsettled": list(found.unsettled),
        "differences": list(found.differences),
        "together_s": [one.seconds for one in (*together, *other)],
    })
    assert not found.differences, "\n".join(found.differences)
    passed = [one for one in alone[0].values() if one.outcome == "passed"]
    assert len(passed) > len(alone[0]) / 2, "hardly anything of it runs here"
    assert found.compared > len(alone[0]) / 2, f"hardly anything is settled: {found.unsettled}"
    check(other[0], RIVAL)
    assert figures["turns"] > 10, "they did not take turns"
