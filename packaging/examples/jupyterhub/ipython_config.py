# SPDX-License-Identifier: Apache-2.0
# /etc/ipython/ipython_config.py: %nvshare in each notebook of the machine. See docs/lab-server.md.
import sys

sys.path.append("/usr/lib/nvshared/nvshared/program")
c = get_config()  # noqa: F821
c.InteractiveShellApp.extensions = ["nvshare"]
