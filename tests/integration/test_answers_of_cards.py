# SPDX-License-Identifier: Apache-2.0
"""Events of one card are reported when another card is lost."""

import subprocess
import sys
from pathlib import Path

from tests.integration.conftest import ROOT, simulate
from tests.integration.fakehook import PATIENCE

WATCHES = '''
import sys
from nvshared.machine import nvml as module
module.FAULT_PAUSE = 0
nvml = module.NVML()
uuids = [facts.uuid for facts in nvml.find()]
library, failures = nvml._nvml, [nvml._nvml.NVML_ERROR_GPU_IS_LOST]
wait = library.nvmlEventSetWait_v2
def lost_once(*given):
    if failures:
        raise library.NVMLError(failures.pop())
    return wait(*given)
library.nvmlEventSetWait_v2 = lost_once
def tell(uuid, words):
    print(uuids.index(uuid), words, flush=True)
    raise SystemExit
nvml.watch_faults(uuids, tell)
'''


def test_xid_error_of_a_card_is_reported_after_another_card_was_lost(tmp_path: Path) -> None:
    environment, _ = simulate(tmp_path)
    (tmp_path / "xid").write_text("1 79")
    done = subprocess.run(
        [sys.executable, "-c", WATCHES], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE, check=True)
    assert done.stdout == "1 Xid 79\n", done.stderr
