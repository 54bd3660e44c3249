# SPDX-License-Identifier: Apache-2.0
"""Programs without the library take turns by the driver's checkpoints."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness import program, rival, run, sharing
from bench.trace import summary
from tests.gpu.test_sharing import BUDGET, Record, check, competitor, digests

NOBODY = 65534                          # the rule applies to programs of this user only
RULE = "[gpu]\ntq = 1s\ncapacity = 20GiB\n[tenant user:nobody]\nunshared = checkpoint\n"
RIVAL = 14                              # GiB, which do not fit beside the training's 8


@pytest.fixture(autouse=True)
def cgroup_file_system(tmp_path: Path) -> Iterator[None]:
    """Control groups of version 2. Their freezer stops the threads."""
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
    _, script, *options = program("torch_train", "--gib", "8", "--steps", "250")
    training = [[sys.executable, "-c", Path(script).read_text(), *options]]
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
