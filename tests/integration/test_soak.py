# SPDX-License-Identifier: Apache-2.0
"""The soak with kills, for a few of them: python -m bench.soak.measure --kills N."""

import json
import subprocess
import sys

from tests.integration.conftest import ROOT
from tests.integration.test_random_handovers import built

KILLS = 8


def test_soak_with_kills_ends_with_every_byte_right() -> None:
    with built(""):
        done = subprocess.run(
            [sys.executable, "-m", "bench.soak.measure", "--simulate", "--kills", str(KILLS)],
            cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["killed_programs"] + found["killed_daemons"] >= KILLS
    assert found["ended_whole"] > 0
    assert found["compared_bytes"] > 0
    assert found["hand_overs"] > 0
