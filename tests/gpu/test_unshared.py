# SPDX-License-Identifier: Apache-2.0
"""Programs without the library take turns by the driver's checkpoints."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import ROOT, rival, run, sharing
from bench.trace import summary
from tests.gpu.running import python
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests

NOBODY = 65534                          # RULE applies to programs of this user only
RULE = "[gpu]\ntq = 1s\ncapacity = 20GiB\n[tenant user:nobody]\nunshared = checkpoint\n"
RIVAL = 14                              # GiB: with the training's 8 GiB they exceed the capacity


@pytest.fixture(autouse=True)
def cgroup_file_system(tmp_path: Path) -> Iterator[None]:
    """Mounts cgroup2, which can freeze the threads of a program."""
    if os.geteuid():
        pytest.skip("only root may checkpoint programs of other users")
    if " - cgroup2 " in Path("/proc/self/mountinfo").read_text():
        yield
        return
    subprocess.run(["mount", "-t", "cgroup2", "none", str(tmp_path)], check=True)
    yield
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_training_without_the_library_computes_the_same_results_beside_a_client(
    tmp_path: Path, record: Record
) -> None:
    text = (ROOT / "tests/gpu/programs/torch_train.py").read_text()
    training = [[*python(text), "--gib", "8", "--steps", "250"]]
    alone = run(training, user=NOBODY)
    (tmp_path / "nvshared.conf").write_text(RULE)
    with sharing("--config", str(tmp_path / "nvshared.conf"), *BUDGET) as daemon:
        with rival(competitor(RIVAL, "--until-told"), daemon.environment) as other:
            together = run(training, user=NOBODY)
        trace = daemon.trace()
    record("a training without the library", {
        **summary(trace), "alone_s": alone[0].seconds, "together_s": together[0].seconds,
    })
    assert digests(together) == digests(alone)
    check(other[0], RIVAL)
    assert sum(line.get("event") == "evicted" and line["bytes"] > 8 << 30 for line in trace) > 3
