# SPDX-License-Identifier: Apache-2.0
"""nvshared where all programs are in one container: python -m tests.integration.limitedbox ROOT ...

ROOT looks like /sys/fs/cgroup, and all programs are in its group `box`. What stands between it
and the options is the command as it would be.
"""

import sys
from pathlib import Path

from nvshared import daemon
from nvshared.machine import cgroup, host

process = host.process


def in_the_box(pid: int, name: str) -> str:
    """Files of a process, as they are but for its groups."""
    return "0::/pod/box\n" if name == "cgroup" else process(pid, name)


if __name__ == "__main__":
    cgroup.ROOT = Path(sys.argv[1])
    host.process = in_the_box
    sys.exit(daemon.main(sys.argv[sys.argv.index("nvshared") + 1:]))
