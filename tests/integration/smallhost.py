# SPDX-License-Identifier: Apache-2.0
"""nvshared on a host with little memory: python -m tests.integration.smallhost MEMINFO ... OPTIONS.

MEMINFO is a file like /proc/meminfo that says how much there is. What stands between it and
the options is the command as it would be.
"""

import sys
from pathlib import Path

from nvshared import daemon
from nvshared.machine import host

if __name__ == "__main__":
    host.MEMINFO = Path(sys.argv[1])
    sys.exit(daemon.main(sys.argv[sys.argv.index("nvshared") + 1:]))
