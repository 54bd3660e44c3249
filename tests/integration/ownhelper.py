# SPDX-License-Identifier: Apache-2.0
"""The daemon with the file NVSHARE_TEST_HELPER as its nvshare-checkpoint."""

import os
import sys
from pathlib import Path

from nvshared import daemon, library

if __name__ == "__main__":
    library.checkpoint = lambda: Path(os.environ["NVSHARE_TEST_HELPER"])
    sys.exit(daemon.main())
