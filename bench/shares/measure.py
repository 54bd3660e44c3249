# SPDX-License-Identifier: Apache-2.0
"""Measures what each program gets of a card that it shares: python -m bench.shares.measure.

Prints a table, or the same as JSON; what a real card gave is kept in bench/results/.
bench/README.md says what is measured and how. Exit status 1 if any program ended with data
that is not what it should be.
"""

import sys

from bench.handover.measure import main
from bench.shares.rows import ROWS

if __name__ == "__main__":
    sys.exit(main("shares", "Measures what programs get of a card; without --variant, all of it.",
                  ROWS))
