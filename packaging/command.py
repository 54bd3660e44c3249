#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""The command nvsharectl, as a package manager installs it.

-I: whatever PYTHONPATH or PYTHONHOME the user has for their own programs, and
whatever they have installed for themselves, is nothing to this one.
"""

import signal
import sys

# Ctrl-C ends the command at once, without a traceback, until main() of nvsharectl handles it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.path[:0] = ["/usr/lib/nvshared", "/usr/lib/nvshared/vendor"]

from nvshared.cli.main import main  # noqa: E402

sys.exit(main())
