# SPDX-License-Identifier: Apache-2.0
"""The file in which what is set for tenants outlives the daemon.

    /var/lib/nvshare/tenants.json
    {"version": 1, "tenants": {"user:alice": {"memory": 42949672960, "weight": 200}}}
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvshared.settings.rules import TERMS, tenant
from nvshared.settings.state import NOISE, keep

logger = logging.getLogger(__name__)

FILE_NAME = "tenants.json"
VERSION = 1

Kept = dict[str, dict[str, int]]        # by tenant, then by term


class TenantsFile:
    """In a folder that systemd (StateDirectory=) or the administrator gave us."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def load(self) -> Kept:
        """What was saved. A file that cannot be read counts as empty, and the journal says so."""
        try:
            return _kept(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except NOISE as error:
            logger.warning(
                "%s is not used, the rules of the configuration alone hold for tenants: %s",
                self.path, error,
            )
            return {}

    def save(self, kept: Mapping[str, Mapping[str, int]]) -> None:
        """Remembers. Raises NotKept."""
        keep(self.path, {"version": VERSION, "tenants": kept})


def _kept(plain: dict[str, Any]) -> Kept:
    if plain["version"] != VERSION:
        raise ValueError(f"it is of version {plain['version']}, and we know {VERSION}")
    for name, terms in plain["tenants"].items():
        if tenant(name) != name or not terms:
            raise ValueError(f"{name!r} is no tenant")
        for term, value in terms.items():
            if type(value) is not int or not 1 <= value <= TERMS[term].most:
                raise ValueError(f"the {term} of {name} cannot be {value!r}")
    found: Kept = plain["tenants"]
    return found
