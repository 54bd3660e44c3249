# SPDX-License-Identifier: Apache-2.0
"""How a daemon of ours ends: its exit status, and what went wrong on stderr and in systemd."""

import os
from collections.abc import Callable

from nvshared.errors import ExitCode, NvshareError
from nvshared.report import log, systemd


def run(name: str, act: Callable[[], None]) -> int:
    """Runs it. Returns its exit status."""
    try:
        act()
    except NvshareError as error:
        for line in str(error).splitlines():
            log.tell(f"{name}: {line}")
        systemd.say_why(os.environ, str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.OK              # before there was a loop to catch it
    return ExitCode.OK
