#!/usr/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
"""The command nvsharectl, as a package manager installs it.

-I: whatever PYTHONPATH or PYTHONHOME the user has for their own programs, and
whatever they have installed for themselves, is nothing to this one.
"""

import sys

sys.path[:0] = ["/usr/lib/nvshared", "/usr/lib/nvshared/vendor"]

from nvshared.cli.main import main  # noqa: E402

sys.exit(main())
