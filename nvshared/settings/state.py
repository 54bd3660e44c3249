# SPDX-License-Identifier: Apache-2.0
"""Settings that were changed at run time, and the files that keep them over a restart.

    {"version": 1, "everywhere": {"tq": 20}, "gpus": {"GPU-…": {"anti-thrash": "on"}}}
    {"version": 1, "tenants": {"user:alice": {"memory-limit": 42949672960, "weight": 200},
                               "pod:UID": {"memory-limit": [4294967296, "annotation"]}}}

Each file has a thread that replaces it by rename. An unreadable file counts as empty.
"""

import json
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from nvshared.errors import NotKept
from nvshared.names import TERM_SOURCES
from nvshared.quantity import LONGEST_TQ
from nvshared.scheduler.events import AntiThrash
from nvshared.settings.rules import REMOVED, TERMS, tenant
from nvshared.units import MILLISECOND, SECOND

logger = logging.getLogger(__name__)

FILE_NAME = "settings.json"
TENANTS_FILE = "tenants.json"
VERSION = 1
AUTO = "auto"                           # in the file: an automatic quantum, in Settings tq = None
Read = TypeVar("Read")
# Changed `tq` and `anti_thrash` of the scheduler's Settings, by the GPU's UUID ("": all GPUs).
Overrides = dict[str, dict[str, Any]]
# By tenant, then by term: the value, and one of TERM_SOURCES or "" for a term set by hand.
KeptTerms = dict[str, dict[str, tuple[int, str]]]
# Everything that reading a file with arbitrary content may raise.
NOISE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


class StateFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._writer = ThreadPoolExecutor(1, FILE_NAME)

    def load(self) -> Overrides:
        return load(self.path, _overrides, "the configuration alone holds") or {}

    def save(self, overrides: Overrides) -> Future[None]:
        """Writes the overrides in the file's thread. The future raises NotKept if that fails."""
        plain = {uuid: _plain_one(**changed) for uuid, changed in overrides.items()}
        return self._writer.submit(keep, self.path, {
            "version": VERSION, "everywhere": plain.pop("", {}), "gpus": plain})


class TenantsFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / TENANTS_FILE
        self._writer = ThreadPoolExecutor(1, TENANTS_FILE)

    def load(self) -> KeptTerms:
        return load(self.path, _kept, "the rules of the configuration alone hold for tenants") or {}

    def save(self, kept: KeptTerms) -> Future[None]:
        return self._writer.submit(keep, self.path, {"version": VERSION, "tenants": {
            name: {term: given if given[1] else given[0] for term, given in terms.items()}
            for name, terms in kept.items()}})


def load(path: Path, read: Callable[[dict[str, Any]], Read], instead: str) -> Read | None:
    """Parses a file; None if it is missing, or unusable: logged with `instead`, what then holds."""
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
    done: Future[None] = Future()
    done.set_result(None)
    return done


def keep(path: Path, plain: dict[str, Any]) -> None:
    """Replaces a file with `plain` as JSON. Raises NotKept on failure, and logs it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps(plain, indent=1) + "\n")
    except OSError as error:
        failure = NotKept("what was changed holds, but will be forgotten at the next start: "
                          f"{path} cannot be written: {error.strerror}",
                          "put that right and change it again")
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


def _plain_one(*, tq: int | None = 0, anti_thrash: AntiThrash | None = None) -> dict[str, Any]:
    """The changed settings of one GPU as in the file; `tq` 0 and `anti_thrash` None: unchanged."""
    plain: dict[str, Any] = {} if anti_thrash is None else {"anti-thrash": anti_thrash}
    if tq is None:
        return plain | {"tq": AUTO}
    name, unit = ("tq-usec", 1) if tq % SECOND else ("tq", SECOND)
    return plain | {name: tq // unit} if tq else plain


def _kept(plain: dict[str, Any]) -> KeptTerms:
    found: KeptTerms = {}
    for name, terms in plain["tenants"].items():
        if tenant(name) != name or not terms:
            raise ValueError(f"{name!r} is no tenant")
        for term, given in terms.items():
            if term in REMOVED:
                logger.warning("the term %s of %s was removed and is forgotten: %s", term, name,
                               REMOVED[term])
                continue
            value, source = given if isinstance(given, list) else (given, "")
            if type(value) is not int or not 1 <= value <= TERMS[term].most or (
                    source not in ("", *TERM_SOURCES)):
                raise ValueError(f"the {term} of {name} cannot be {given!r}")
            found.setdefault(name, {})[term] = value, source
    return found


def _overrides(plain: dict[str, Any]) -> Overrides:
    by_gpu = {"": plain["everywhere"], **plain["gpus"]}
    return {uuid: _override(changed) for uuid, changed in by_gpu.items()}


def _override(plain: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    name, unit = ("tq-usec", 1) if "tq-usec" in plain else ("tq", SECOND)
    if (tq := plain.get(name)) == AUTO:
        changed["tq"] = None
    elif tq is not None:
        if type(tq) is not int or not MILLISECOND <= tq * unit <= LONGEST_TQ * SECOND:
            raise ValueError(f"{name} cannot be {tq!r}")
        changed["tq"] = tq * unit
    if (mode := plain.get("anti-thrash")) is not None:
        changed["anti_thrash"] = AntiThrash(mode)
    return changed
