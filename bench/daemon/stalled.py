# SPDX-License-Identifier: Apache-2.0
"""nvshared with NVML calls that take STALL seconds, as with a faulty card:
python -m bench.daemon.stalled OPTIONS. A waiting call does not hold the interpreter's lock.
"""

import ctypes
import sys
import threading

from nvshared import daemon
from nvshared.machine.nvml import NVML, Sample

STALL = 2                               # seconds that each call takes


class Stalled(NVML):
    def sample(self, uuid: str) -> Sample:
        if threading.current_thread() is not threading.main_thread():
            ctypes.CDLL(None).sleep(STALL)
        return super().sample(uuid)


if __name__ == "__main__":
    daemon.NVML = Stalled               # type: ignore[attr-defined]
    sys.exit(daemon.main())
