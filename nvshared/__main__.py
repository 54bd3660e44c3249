# SPDX-License-Identifier: Apache-2.0
"""python -m nvshared: the daemon."""

import sys

from nvshared.daemon import main

if __name__ == "__main__":
    sys.exit(main())
