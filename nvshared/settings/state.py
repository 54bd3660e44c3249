# SPDX-License-Identifier: Apache-2.0
"""Settings that were changed at run time, and the files that keep them over a restart.

    {"version": 1, "everywhere": {"tq": 20}, "gpus": {"GPU-…": {"anti-thrash": "on"}}}
    {"version": 1, "tenants": {"user:1000": {"memory-limit": 42949672960, "weight": 200},
                               "pod:UID": {"memory-limit": [4294967296, "annotation"]}},
     "users": {"user:alice": 1000}}

"users" has the last known numbers of users in terms and rules, for a time in which the directory
that knows them is away. A tenant without a known number stands under its name.

Each file has a thread that replaces it by rename.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nvshared.kept import VERSION, Complain, KeptFile, each, known
from nvshared.machine.tenant import Kind
from nvshared.machine.users import LAST
from nvshared.names import AUTO, POLICIES, TERM_SOURCES
from nvshared.quantity import LONGEST_TQ
from nvshared.scheduler.events import AntiThrash
from nvshared.settings.rules import tenant
from nvshared.terms import TERMS
from nvshared.units import MILLISECOND, SECOND

FILE_NAME = "settings.json"
TENANTS_FILE = "tenants.json"
# Changed `tq`, `anti_thrash` and `policy` of Settings, by the GPU's UUID ("": all GPUs).
Overrides = dict[str, dict[str, Any]]
# By tenant, then by term: the value, and one of TERM_SOURCES or "" for a term set by hand.
KeptTerms = dict[str, dict[str, tuple[int, str]]]


class StateFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self.file = KeptFile(self.path)
        self._writer = ThreadPoolExecutor(1, FILE_NAME)

    def load(self) -> Overrides:
        found, again = self.file.load(_overrides)
        if again:
            self.save(found or {})      # KeptFile logs a failure
        return found or {}

    def save(self, overrides: Overrides) -> Future[None]:
        """Writes the overrides in the file's thread. The future raises NotKept if that fails."""
        plain = {uuid: _plain_one(**changed) for uuid, changed in overrides.items()}
        return self._writer.submit(self.file.keep, {
            "version": VERSION, "everywhere": plain.pop("", {}), "gpus": plain})


class TenantsFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / TENANTS_FILE
        self.users: dict[str, int] = {}     # numbers by name; written with the terms
        self.file = KeptFile(self.path)
        self._writer = ThreadPoolExecutor(1, TENANTS_FILE)

    def load(self) -> KeptTerms:
        """Returns the terms, and sets `users`."""
        found, again = self.file.load(self._read)
        if again:
            self.save(found or {})      # KeptFile logs a failure
        return found or {}

    def save(self, kept: KeptTerms) -> Future[None]:
        """Like StateFile.save()."""
        return self._writer.submit(self.file.keep, {
            "version": VERSION,
            "tenants": {
                name: {term: given if given[1] else given[0] for term, given in terms.items()}
                for name, terms in kept.items()},
            "users": {f"{Kind.USER}:{name}": number for name, number in self.users.items()}})

    def _read(self, plain: dict[str, Any], wrong: Complain) -> KeptTerms:
        known(plain, ("tenants", "users"), wrong)

        def read(name: str, terms: object) -> dict[str, tuple[int, str]]:
            if tenant(name) != name:
                raise ValueError(f"it is {tenant(name)}")
            return each(terms, f"of {name}, the term", _term, wrong)

        users = each(plain.get("users", {}), "the user", _user, wrong)
        self.users = dict(users.values())
        found = each(plain.get("tenants", {}), "the tenant", read, wrong)
        return {name: terms for name, terms in found.items() if terms}


def saved() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _plain_one(
    *, tq: int | None = 0, anti_thrash: AntiThrash | None = None, policy: str | None = None
) -> dict[str, Any]:
    """The changed settings of one GPU as in the file; `tq` 0, others None: unchanged."""
    changed = {"anti-thrash": anti_thrash, "policy": policy}
    plain: dict[str, Any] = {name: value for name, value in changed.items() if value is not None}
    if tq is None:
        return plain | {"tq": AUTO}     # in Settings: None
    name, unit = ("tq-usec", 1) if tq % SECOND else ("tq", SECOND)
    return plain | {name: tq // unit} if tq else plain


def _user(name: str, uid: object) -> tuple[str, int]:
    kind, _, user = tenant(name).partition(":")
    if kind != Kind.USER or type(uid) is not int or not 0 <= uid <= LAST:
        raise ValueError(f"it cannot be {uid!r:.99}")
    return user, uid


def _term(term: str, given: object) -> tuple[int, str]:
    value, source = given if isinstance(given, list) else (given, "")
    if term not in TERMS:
        raise ValueError("it is unknown")
    if type(value) is not int or not 1 <= value <= TERMS[term].unit.most or (
            source not in ("", *TERM_SOURCES)):
        raise ValueError(f"it cannot be {given!r:.99}")
    return value, source


def _overrides(plain: dict[str, Any], wrong: Complain) -> Overrides:
    known(plain, ("everywhere", "gpus"), wrong)
    of_gpus = each(plain.get("gpus", {}), "the GPU", lambda uuid, changed: _override(
        changed, f"of {uuid}", wrong), wrong)
    found = {"": _override(plain.get("everywhere", {}), "of all GPUs", wrong), **of_gpus}
    return {uuid: changed for uuid, changed in found.items() if changed}


def _override(plain: object, of_what: str, wrong: Complain) -> dict[str, Any]:
    return dict(each(plain, f"{of_what}, the setting", _setting, wrong).values())


def _setting(name: str, value: Any) -> tuple[str, Any]:
    """The name and value of a setting in the scheduler's Settings."""
    if name == "anti-thrash":
        return "anti_thrash", AntiThrash(value)
    if name == "policy" and value in POLICIES:
        return name, value
    unit = {"tq": SECOND, "tq-usec": 1}.get(name)
    if unit is None:
        raise ValueError("it is unknown")
    if value == AUTO and name == "tq":
        return "tq", None
    if type(value) is not int or not MILLISECOND <= value * unit <= LONGEST_TQ * SECOND:
        raise ValueError(f"it cannot be {value!r:.99}")
    return "tq", value * unit
