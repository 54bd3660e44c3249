# SPDX-License-Identifier: Apache-2.0
"""Programs that close or reuse stderr and descriptors, change the environment or limit threads, on
a card that a rival wants, too. The program is tests/integration/resources.c."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from bench.harness import ROOT, rival, sharing
from tests.gpu.running import python
from tests.gpu.test_dependent_work import RIVAL
from tests.integration.test_life import LINKED, SOURCE, compiled
from tests.integration.test_resources import LINE, is_urgent_allowed

PAUSES_S = 3
WHAT = ["plain", "sandbox", "closed-streams", "takes-descriptors", "threads", "no-thread",
        "takes-stderr", "redirects-stderr"]


def ended(program: Path, what: str, folder: Path, **environment: str) -> tuple[int, str]:
    """The program goes on after its pause, in which it is evicted if another client waits."""
    with subprocess.Popen(
        [program, what], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as popen:
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(PAUSES_S)
        try:
            said, _ = popen.communicate("\n", timeout=60)
        finally:
            popen.kill()
    return popen.returncode, said


@pytest.mark.parametrize("what", WHAT)
def test_program_with_unusual_resources_computes_right_results_beside_another_client(
    tmp_path: Path, what: str
) -> None:
    if what == "threads" and not is_urgent_allowed():
        pytest.skip("real-time scheduling is not allowed here")
    program = compiled(tmp_path, *LINKED, source=SOURCE.with_name("resources.c"))
    if what == "no-thread" and ended(program, what, tmp_path)[0] != 0:
        pytest.skip("the driver itself needs threads")
    # The case "threads" exports memory, which is therefore pinned.
    capacity = "1GiB" if what == "threads" else "930MiB"
    with sharing("--tq", "500ms", "--capacity", capacity) as daemon, \
            rival(python(RIVAL), daemon.environment) as other:
        # Two cases look for the library's line about LINE.
        code, said = ended(program, what, tmp_path, **LINE, **daemon.environment)
    assert other[0].code == 0, other[0].errors
    assert code == 0, said
