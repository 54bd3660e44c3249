# SPDX-License-Identifier: Apache-2.0
"""Loads nvshare_caches, then the program's own sitecustomize, which this module shadows.

`nvsharectl run` puts this folder at the front of PYTHONPATH."""

import importlib
import sys

importlib.import_module("nvshare_caches")

folder = __file__.rpartition("/")[0]
if folder in sys.path:
    sys.path.remove(folder)             # so that the import below finds the program's sitecustomize
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)
