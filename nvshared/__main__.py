# SPDX-License-Identifier: Apache-2.0
"""Runs the daemon: python3 -m nvshared."""

import sys

# The daemon uses neither TLS nor compression, and writes short XML only. Without these modules, the
# imported ones, which use them if they are there, take 5 MiB less and load faster.
UNUSED = [one for one in ("ssl", "bz2", "lzma", "zlib", "_elementtree") if one not in sys.modules]
sys.modules.update(dict.fromkeys(UNUSED))           # type: ignore[arg-type]
import asyncio  # noqa: E402, F401
import shutil  # noqa: E402, F401
import xml.etree.ElementTree  # noqa: E402, F401

for name in UNUSED:
    del sys.modules[name]               # later imports of them must still work
from nvshared.daemon import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
