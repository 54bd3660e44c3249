# SPDX-License-Identifier: Apache-2.0
"""Events of one card, and added cards, are noticed when NVML fails for another card."""

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


SEES = '''
import sys, threading, time
from pathlib import Path
from nvshared.machine import nvml as module
module.FAULT_PAUSE = 0.01
nvml = module.NVML()
uuids = [facts.uuid for facts in nvml.find()]
library = nvml._nvml
def fail(*_):
    raise library.NVMLError(library.NVML_ERROR_NOT_SUPPORTED)
library.nvmlEventSetWait_v2 = fail
threading.Thread(target=nvml.watch_faults, args=(uuids, print), daemon=True).start()
while nvml.seen is None:
    time.sleep(0.01)
before = nvml.seen
Path(sys.argv[1]).unlink()
while nvml.seen == before:
    time.sleep(0.01)
'''


def test_xid_error_of_a_card_is_reported_after_another_card_was_lost(tmp_path: Path) -> None:
    environment, _ = simulate(tmp_path)
    (tmp_path / "xid").write_text("1 79")
    done = subprocess.run(
        [sys.executable, "-c", WATCHES], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE, check=True)
    assert done.stdout == "1 Xid 79\n", done.stderr


def test_added_card_is_seen_although_nvml_does_not_wait_for_events(tmp_path: Path) -> None:
    environment, _ = simulate(tmp_path)
    cards = tmp_path / "cards"
    cards.write_text("0 absent\n")
    subprocess.run([sys.executable, "-c", SEES, str(cards)], env=environment, cwd=ROOT,
                   timeout=PATIENCE, check=True)
