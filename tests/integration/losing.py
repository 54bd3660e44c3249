# SPDX-License-Identifier: Apache-2.0
"""nvshared with a driver that says, once there is a file NVSHARE_LOST, that its cards are lost.

If the file names cards by UUID, these alone are.
"""

import os
import sys
from pathlib import Path

from nvshared import daemon
from nvshared.errors import GPULost
from nvshared.machine.nvml import NVML, Sample


class Losing(NVML):
    """NVML, of cards that will be lost."""

    def sample(self, uuid: str) -> Sample:
        """As NVML.sample."""
        lost = Path(os.environ["NVSHARE_LOST"])
        if lost.exists() and uuid in (lost.read_text() or uuid):
            raise GPULost("GPU is lost")
        return super().sample(uuid)


if __name__ == "__main__":
    daemon.NVML = Losing                # type: ignore[attr-defined]
    sys.exit(daemon.main())
