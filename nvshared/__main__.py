# SPDX-License-Identifier: Apache-2.0
"""The daemon as a command."""

import sys

# Nothing here speaks TLS. Without it, asyncio takes 4 MiB less, and less time to load.
sys.modules["ssl"] = None               # type: ignore[assignment]
import asyncio  # noqa: E402, F401

del sys.modules["ssl"]                  # others may still want it
from nvshared.daemon import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
