# SPDX-License-Identifier: Apache-2.0
"""nvsharectl as a program: python -m tests.integration.command."""

import sys

from nvshared.cli.main import main

sys.exit(main())
