# SPDX-License-Identifier: Apache-2.0
"""The daemon, killed after nvshare-checkpoint has carried out the command NVSHARE_TEST_CUT."""

import os
import signal
import sys
from typing import Any

from nvshared.machine import checkpoint
from nvshared.machine.checkpoint import Answer

whole = checkpoint.ask


async def ask(command: str, *words: Any, **named: Any) -> Answer:
    answer = await whole(command, *words, **named)
    if command == os.environ["NVSHARE_TEST_CUT"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


if __name__ == "__main__":
    checkpoint.ask = ask
    from nvshared import daemon

    sys.exit(daemon.main())
