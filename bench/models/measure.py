# SPDX-License-Identifier: Apache-2.0
"""Measures how long requests to many models on one card take: python -m bench.models.measure.

Prints a table and a drawing of where the time goes, or JSON; what a real card gave is kept in
bench/results/. bench/README.md says what is measured and how. Exit status 1 if any weights were not
what they should be.
"""

import sys

from bench.handover.measure import main
from bench.models.rows import ROWS

if __name__ == "__main__":
    sys.exit(main(
        "models", "Measures requests to many models; without --variant, all of it.", ROWS))
