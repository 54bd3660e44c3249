# SPDX-License-Identifier: Apache-2.0
"""Settings that were changed at run time, and the files that keep them over a restart.

    {"version": 1, "everywhere": {"tq": 20}, "gpus": {"GPU-…": {"anti-thrash": "on"}}}
    {"version": 1, "tenants": {"user:1000": {"memory-limit": 42949672960, "weight": 200},
                               "pod:UID": {"memory-limit": [4294967296, "annotation"]}},
     "users": {"user:alice": 1000}}

"users" has the last known numbers of users whom terms and rules name, for a time in which the
directory that knows them is away. A tenant without a known number stands under its name.

Each file has a thread that replaces it by rename. A file is read entry by entry. If it has anything
that this version does not understand, it is put aside under another name first.
"""

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from nvshared.errors import NotKept
from nvshared.machine.tenant import Kind
from nvshared.machine.users import LAST
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
ASIDES = 9                              # most files that are put aside
SAID = 5                                # most entries that one message names
Read = TypeVar("Read")
Complain = Callable[[str], None]
# Changed `tq` and `anti_thrash` of the scheduler's Settings, by the GPU's UUID ("": all GPUs).
Overrides = dict[str, dict[str, Any]]
# By tenant, then by term: the value, and one of TERM_SOURCES or "" for a term set by hand.
KeptTerms = dict[str, dict[str, tuple[int, str]]]
# Everything that reading a file with arbitrary content may raise.
NOISE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


class KeptFile:
    """A file of JSON. Nothing in it is overwritten that was neither understood nor put aside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Content and errors of a file that must not be overwritten, as it could not be put aside.
        self._guarded: tuple[str, list[str]] | None = None

    def load(self, read: Callable[[dict[str, Any], Complain], Read]) -> tuple[Read | None, bool]:
        """Returns what `read` makes of the file, None if the whole file is of no use, and whether
        what is of use must be written without the rest, which has been put aside.

        `read` calls its second argument for each entry that it does not understand."""
        wrong: list[str] = []
        found: Read | None = None
        text = ""
        try:
            text = self.path.read_text(encoding="utf-8")
            plain = json.loads(text)
            if plain["version"] != VERSION:
                raise ValueError(f"it is of version {plain['version']}, and we know {VERSION}")
            found = read(plain, wrong.append)
        except FileNotFoundError:
            return None, False
        except NOISE as error:
            wrong, found = [f"it cannot be read: {error!r}"], None
        if wrong:
            self._put_aside(text if found is not None else "", wrong)
        return found, bool(wrong and self._guarded is None and found is not None)

    def keep(self, plain: dict[str, Any]) -> None:
        """Replaces the file with `plain`. Raises NotKept on failure, and logs it."""
        if self._guarded is not None:
            self._put_aside(*self._guarded)
        reason = "it has what is not understood, and cannot be put aside"
        if self._guarded is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _replace(self.path, json.dumps(plain, indent=1) + "\n")
                return
            except OSError as error:
                reason = error.strerror or str(error)
        failure = NotKept("what was changed holds, but will be forgotten at the next start: "
                          f"{self.path} cannot be written: {reason}",
                          "put that right and change it again")
        logger.warning("%s", failure)
        raise failure

    def _put_aside(self, text: str, wrong: list[str]) -> None:
        """Keeps the file under another name. `text`: its content; "": rename the file itself."""
        numbers = range(1, ASIDES + 1)
        names = (self.path.with_name(f"{self.path.name}.aside-{number}") for number in numbers)
        aside = next((name for name in names if not os.path.lexists(name)), None)
        words = "; ".join(wrong[:SAID]) + ("; …" if len(wrong) > SAID else "")
        try:
            if aside is None:
                raise OSError(f"{ASIDES} have been put aside already, take some away")
            if text:
                _replace(aside, text)
            else:
                self.path.rename(aside)
        except OSError as error:
            self._guarded = text, wrong
            logger.warning("%s is left as it is until it can be put aside: %s. Not used: %s",
                           self.path, error.strerror or error, words)
        else:
            self._guarded = None
            logger.warning("%s is put aside as %s, and goes on with what is understood. Not used: "
                           "%s", self.path, aside.name, words)


class StateFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._file = KeptFile(self.path)
        self._writer = ThreadPoolExecutor(1, FILE_NAME)

    def load(self) -> Overrides:
        found, again = self._file.load(_overrides)
        if again:
            self.save(found or {})      # KeptFile logs a failure
        return found or {}

    def save(self, overrides: Overrides) -> Future[None]:
        """Writes the overrides in the file's thread. The future raises NotKept if that fails."""
        plain = {uuid: _plain_one(**changed) for uuid, changed in overrides.items()}
        return self._writer.submit(self._file.keep, {
            "version": VERSION, "everywhere": plain.pop("", {}), "gpus": plain})


class TenantsFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / TENANTS_FILE
        self.users: dict[str, int] = {}     # numbers by name; written with the terms
        self._file = KeptFile(self.path)
        self._writer = ThreadPoolExecutor(1, TENANTS_FILE)

    def load(self) -> KeptTerms:
        """Returns the terms, and sets `users`."""
        found, again = self._file.load(self._read)
        if again:
            self.save(found or {})      # KeptFile logs a failure
        return found or {}

    def save(self, kept: KeptTerms) -> Future[None]:
        """Like StateFile.save()."""
        return self._writer.submit(self._file.keep, {
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
        found = each(plain["tenants"], "the tenant", read, wrong)
        return {name: terms for name, terms in found.items() if terms}


def each(given: object, what: str, read: Callable[[Any, Any], Read], wrong: Complain,
         ) -> dict[str, Read]:
    """Reads the entries of an object. What `read` raises for one entry costs no other."""
    found: dict[str, Read] = {}
    if not isinstance(given, Mapping):
        wrong(f"{what} cannot be {given!r:.99}")
        return found
    for name, value in given.items():
        try:
            found[name] = read(name, value)
        except NOISE as error:
            wrong(f"{what} {name!r}: {error}")
    return found


def known(plain: Mapping[str, Any], names: Collection[str], wrong: Complain) -> None:
    for name in plain.keys() - {"version", *names}:
        wrong(f"{name!r} is unknown")


def saved() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


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


def _user(name: str, uid: object) -> tuple[str, int]:
    kind, _, user = tenant(name).partition(":")
    if kind != Kind.USER or type(uid) is not int or not 0 <= uid <= LAST:
        raise ValueError(f"it cannot be {uid!r:.99}")
    return user, uid


def _term(term: str, given: object) -> tuple[int, str]:
    value, source = given if isinstance(given, list) else (given, "")
    if term not in TERMS:
        raise ValueError(f"was removed: {REMOVED[term]}" if term in REMOVED else "it is unknown")
    if type(value) is not int or not 1 <= value <= TERMS[term].most or (
            source not in ("", *TERM_SOURCES)):
        raise ValueError(f"it cannot be {given!r:.99}")
    return value, source


def _overrides(plain: dict[str, Any], wrong: Complain) -> Overrides:
    known(plain, ("everywhere", "gpus"), wrong)
    of_gpus = each(plain["gpus"], "the GPU", lambda uuid, changed: _override(
        changed, f"of {uuid}", wrong), wrong)
    found = {"": _override(plain["everywhere"], "of all GPUs", wrong), **of_gpus}
    return {uuid: changed for uuid, changed in found.items() if changed}


def _override(plain: object, of_what: str, wrong: Complain) -> dict[str, Any]:
    return dict(each(plain, f"{of_what}, the setting", _setting, wrong).values())


def _setting(name: str, value: Any) -> tuple[str, Any]:
    """The name and value of a setting in the scheduler's Settings."""
    if name == "anti-thrash":
        return "anti_thrash", AntiThrash(value)
    unit = {"tq": SECOND, "tq-usec": 1}.get(name)
    if unit is None:
        raise ValueError("it is unknown")
    if value == AUTO and name == "tq":
        return "tq", None
    if type(value) is not int or not MILLISECOND <= value * unit <= LONGEST_TQ * SECOND:
        raise ValueError(f"it cannot be {value!r:.99}")
    return "tq", value * unit
