# SPDX-License-Identifier: Apache-2.0
"""Numbers for tests of random runs: a few each time, many in the long runs."""

import pytest


def seeds(few: int, many: int) -> list[object]:
    """All below `many`; those from `few` on are for `make test-long`."""
    return [*range(few), *(pytest.param(one, marks=pytest.mark.long) for one in range(few, many))]
