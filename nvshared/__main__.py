# SPDX-License-Identifier: Apache-2.0
"""Runs the daemon: python3 -m nvshared."""

import sys

# The daemon does not use TLS. Without the ssl module, asyncio takes 4 MiB less and loads faster.
sys.modules["ssl"] = None               # type: ignore[assignment]
import asyncio  # noqa: E402, F401

del sys.modules["ssl"]                  # later imports of ssl must still work
from nvshared.daemon import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
