# SPDX-License-Identifier: Apache-2.0
"""The folders of saved programs: nvshare-save (saver.py) makes them, and the daemon looks there."""

import os
import re
from pathlib import Path

BASE = Path(os.environ.get("NVSHARE_SAVED", "/var/lib/nvshare-saved"))
# Names of folders that nvshare-save makes. No other folder is looked at, completed or removed.
MADE = re.compile(r"(new-)?\w{1,15}-[0-9]+-[0-9]{8}T[0-9]{6}(\.partial)?", re.ASCII)
