# SPDX-License-Identifier: Apache-2.0
"""The file in which what is set for tenants outlives the daemon.

    /var/lib/nvshare/tenants.json
    {"version": 1, "tenants": {"user:alice": {"memory": 42949672960, "weight": 200},
                               "pod:UID": {"memory": [4294967296, "annotation"]}}}
"""

import json
import logging
from pathlib import Path
from typing import Any

from nvshared.names import TERM_SOURCES
from nvshared.settings.rules import TERMS, tenant
from nvshared.settings.state import NOISE, keep

logger = logging.getLogger(__name__)

FILE_NAME = "tenants.json"
VERSION = 1

# By tenant, then by term: the value, and one of TERM_SOURCES or "" for a term set by hand.
Kept = dict[str, dict[str, tuple[int, str]]]


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

    def save(self, kept: Kept) -> None:
        """Remembers. Raises NotKept."""
        keep(self.path, {"version": VERSION, "tenants": {
            name: {term: given if given[1] else given[0] for term, given in terms.items()}
            for name, terms in kept.items()
        }})


def _kept(plain: dict[str, Any]) -> Kept:
    if plain["version"] != VERSION:
        raise ValueError(f"it is of version {plain['version']}, and we know {VERSION}")
    found: Kept = {}
    for name, terms in plain["tenants"].items():
        if tenant(name) != name or not terms:
            raise ValueError(f"{name!r} is no tenant")
        for term, given in terms.items():
            value, source = given if isinstance(given, list) else (given, "")
            if type(value) is not int or not 1 <= value <= TERMS[term].most or (
                    source not in ("", *TERM_SOURCES)):
                raise ValueError(f"the {term} of {name} cannot be {given!r}")
            found.setdefault(name, {})[term] = value, source
    return found
