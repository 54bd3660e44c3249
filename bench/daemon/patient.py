# SPDX-License-Identifier: Apache-2.0
"""nvshared that keeps connections without HELLO, so that those of an attack stay open until the
attack ends: python -m bench.daemon.patient OPTIONS."""

import sys

from nvshared import daemon
from nvshared.hook import connection
from nvshared.units import SECOND

if __name__ == "__main__":
    connection.HELLO_WITHIN = 3600 * SECOND
    sys.exit(daemon.main())
