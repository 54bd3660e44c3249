# SPDX-License-Identifier: Apache-2.0
# /etc/ipython/ipython_config.py: %nvshare in each notebook of the machine. See docs/lab-server.md.
import sys
from pathlib import Path

FOLDER = "/usr/lib/nvshared/nvshared/program"
if Path(FOLDER).is_dir():              # nvshared is installed
    sys.path.append(FOLDER)
    c = get_config()  # noqa: F821
    c.InteractiveShellApp.extensions = ["nvshare"]
