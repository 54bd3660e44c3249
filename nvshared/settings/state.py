# SPDX-License-Identifier: Apache-2.0
"""Settings that were changed at run time, and the files that keep them over a restart.

    /var/lib/nvshare/settings.json
    {"version": 1, "everywhere": {"tq": 20}, "gpus": {"GPU-…": {"anti-thrash": "on"}}}
    /var/lib/nvshare/tenants.json
    {"version": 1, "tenants": {"user:alice": {"memory-limit": 42949672960, "weight": 200},
                               "pod:UID": {"memory-limit": [4294967296, "annotation"]}}}

A new file replaces the old one by rename, so a reader never sees a part. If the disk is full, the
change is in force until the daemon ends but is not saved, and its caller gets an error. A file that
cannot be read counts as empty, and the journal says so.

The disk may be slow, so each file has a thread that writes its changes in order. The interpreter
waits for these threads before it ends.
"""

import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from nvshared.errors import NotKept
from nvshared.names import TERM_SOURCES
from nvshared.quantity import LONGEST_TQ
from nvshared.scheduler.settings import AntiThrash
from nvshared.settings.rules import TERMS, tenant
from nvshared.units import MILLISECOND, SECOND

logger = logging.getLogger(__name__)

FILE_NAME = "settings.json"
TENANTS_FILE = "tenants.json"
VERSION = 1
AUTO: Final = "auto"
Read = TypeVar("Read")
# By tenant, then by term: the value, and one of TERM_SOURCES or "" for a term set by hand.
KeptTerms = dict[str, dict[str, tuple[int, str]]]
# Everything that reading a file with arbitrary content may raise.
NOISE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True)
class Override:
    """Settings changed at run time, of all GPUs or of one; None: unchanged."""

    tq: int | Literal["auto"] | None = None     # microseconds
    anti_thrash: AntiThrash | None = None


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings changed at run time: for all GPUs, and for single GPUs by UUID."""

    everywhere: Override = Override()
    by_gpu: dict[str, Override] = field(default_factory=dict)


class StateFile:
    """Overrides in a folder that systemd (StateDirectory=) or the administrator gave us."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._writer = ThreadPoolExecutor(1, FILE_NAME)

    def load(self) -> Overrides:
        """What was saved."""
        return load(self.path, _overrides, "the configuration alone holds") or Overrides()

    def save(self, overrides: Overrides) -> Future[None]:
        """Writes the overrides in the thread.

        The future raises NotKept if they cannot be written, which the journal reports, too.
        """
        return self._writer.submit(keep, self.path, _plain(overrides))


class TenantsFile:
    """Terms of tenants that were set at run time, in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TENANTS_FILE
        self._writer = ThreadPoolExecutor(1, TENANTS_FILE)

    def load(self) -> KeptTerms:
        """What was saved."""
        return load(
            self.path, _kept, "the rules of the configuration alone hold for tenants") or {}

    def save(self, kept: KeptTerms) -> Future[None]:
        """Writes the terms in the thread. The future raises NotKept if they cannot be written."""
        return self._writer.submit(keep, self.path, {"version": VERSION, "tenants": {
            name: {term: given if given[1] else given[0] for term, given in terms.items()}
            for name, terms in kept.items()
        }})


def load(path: Path, read: Callable[[dict[str, Any]], Read], instead: str) -> Read | None:
    """Parses a file with `read`; None if it does not exist or cannot be used.

    `instead`: words for the journal that name the values in force then.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["version"] != VERSION:
            raise ValueError(f"it is of version {plain['version']}, and we know {VERSION}")
        return read(plain)
    except FileNotFoundError:
        return None
    except NOISE as error:
        logger.warning("%s is not used, %s: %s", path, instead, error)
        return None


def saved() -> Future[None]:
    """A finished future: the result of save() without a folder to write to."""
    done: Future[None] = Future()
    done.set_result(None)
    return done


def keep(path: Path, plain: dict[str, Any]) -> None:
    """Replaces a file with `plain` as JSON. Raises NotKept on failure, and logs it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps(plain, indent=1) + "\n")
    except OSError as error:
        failure = NotKept(
            "what was changed holds, but will be forgotten at the next start: "
            f"{path} cannot be written: {error.strerror}",
            "put that right and change it again",
        )
        logger.warning("%s", failure)
        raise failure from error


def _replace(path: Path, text: str) -> None:
    import tempfile

    descriptor, temporary = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _plain(overrides: Overrides) -> dict[str, Any]:
    return {
        "version": VERSION,
        "everywhere": _plain_one(overrides.everywhere),
        "gpus": {uuid: _plain_one(one) for uuid, one in overrides.by_gpu.items()},
    }


def _plain_one(override: Override) -> dict[str, Any]:
    tq, usec = override.tq, None
    if isinstance(tq, int):
        tq, usec = (None, tq) if tq % SECOND else (tq // SECOND, None)
    named = {"tq": tq, "tq-usec": usec, "anti-thrash": override.anti_thrash}
    return {name: value for name, value in named.items() if value is not None}


def _kept(plain: dict[str, Any]) -> KeptTerms:
    found: KeptTerms = {}
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


def _overrides(plain: dict[str, Any]) -> Overrides:
    return Overrides(
        _override(plain["everywhere"]),
        {uuid: _override(one) for uuid, one in plain["gpus"].items()},
    )


def _override(plain: dict[str, Any]) -> Override:
    name, unit = ("tq-usec", 1) if "tq-usec" in plain else ("tq", SECOND)
    tq = plain.get(name)
    if tq not in (None, AUTO):
        if type(tq) is not int or not MILLISECOND <= tq * unit <= LONGEST_TQ * SECOND:
            raise ValueError(f"{name} cannot be {tq!r}")
        tq *= unit
    mode = plain.get("anti-thrash")
    return Override(tq, None if mode is None else AntiThrash(mode))
