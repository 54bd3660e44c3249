# SPDX-License-Identifier: Apache-2.0
"""Keeps the terms of single programs and their turn times across restarts, in programs.json.

The file is written once per WRITTEN_WITHIN at most, as users may change terms any number of times.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from nvshared.clock import Clock, Timer
from nvshared.errors import NotKept
from nvshared.kept import NOISE, VERSION, Complain, KeptFile, known
from nvshared.lanes import Run
from nvshared.machine import host
from nvshared.scheduler.events import Memory, Priority, Terms
from nvshared.settings.state import saved
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.gpu import GPU, Client, EarlierTimes
from nvshared.terms import CLIENT_TERMS
from nvshared.units import MILLISECOND

FILE_NAME = "programs.json"
WRITTEN_WITHIN = 100 * MILLISECOND

Read = TypeVar("Read")
Key = tuple[int, int, str]              # pid, start time in ticks since boot, UUID of the card


class RememberedTerms:
    def __init__(self, folder: Path, clock: Clock, timer: Timer, run: Run) -> None:
        self.file = KeptFile(folder / FILE_NAME)
        self._clock, self._timer, self._run = clock, timer, run
        self._due = False               # a timer is set to write
        self._next = clock()            # time of the next write at the earliest
        self._saved = saved()           # the last write that was due
        self._numbers = count(1)        # of writes
        self._stored = 0                # number of the last write that is in the file
        self._lock = Lock()             # of `_stored`: close() writes in another thread
        self._gpus: list[GPU] = []
        # Us held and waited under earlier daemons; the time since when it is idle, 0: it was not.
        self._times: dict[Key, tuple[int, int, int]] = {}
        # Terms from the file, if it was written since this boot. _read() also sets `_times`.
        found, again = self.file.load(self._read)
        self._kept = found or {}
        if again:
            self._write_soon()

    def saved(self) -> Future[None]:
        """Is done when the terms of now are in the file; raises NotKept if they cannot be."""
        if self._saved.done() and self._saved.exception() is not None:
            self._write_soon()          # they may be there since, by KeptFile.keep_again()
        return self._saved

    def follow(self, gpu: GPU) -> None:
        self._gpus.append(gpu)
        gpu.client_joins.connect(self._recall)
        gpu.terms_changed.connect(self._note)

    def unfollow(self, gpu: GPU) -> None:
        self._gpus.remove(gpu)

    def close(self) -> None:
        """Writes unwritten terms, and the times of all connected clients."""
        for client in (client for gpu in self._gpus for client in gpu.clients.values()):
            if key := _key(client):
                idle = client.idle
                since = int(self._clock()) - idle if idle else 0
                self._times[key] = (client.held, client.waited, since)
        if self._due or self._times:
            self._store(next(self._numbers), dict(self._kept), dict(self._times))

    def _recall(self, client: Client, _: Memory) -> None:
        key = _key(client)
        if key is None or (key not in self._kept and key not in self._times):
            return
        held, waited, since = self._times.pop(key, (0, 0, 0))
        idle = max(0, int(self._clock()) - since) if since else 0
        client.recall(EarlierTimes(held, waited, idle), self._kept.get(key))

    def _note(self, client: Client) -> None:
        key = _key(client)
        if key is None or self._kept.get(key, ClientTerms()) == client.terms:
            return
        self._kept[key] = client.terms
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._due:
            self._due, self._saved = True, Future()
            self._timer(max(self._clock(), self._next), self._write)

    def _write(self) -> None:
        self._due, self._next = False, self._clock() + WRITTEN_WITHIN
        write = partial(self._store, next(self._numbers), dict(self._kept), dict(self._times))
        self._run(FILE_NAME, write, partial(self._written, self._saved))

    def _written(self, write: Future[None], ended: tuple[set[Key], NotKept | None] | None) -> None:
        # None: the write raised something unexpected, which the lane has logged.
        dead, error = ended or (set[Key](), NotKept(
            "the change holds, but is forgotten if nvshared ends now: its write failed",
            "nvshared's log says why"))
        for key in dead:
            self._times.pop(key, None)
            self._kept.pop(key, None)
        if error is None:
            write.set_result(None)
        else:
            write.set_exception(error)

    def _store(
        self, number: int, kept: Mapping[Key, ClientTerms],
        times: Mapping[Key, tuple[int, int, int]],
    ) -> tuple[set[Key], NotKept | None]:
        """Writes the terms and times of living programs, unless a later write is done. Returns the
        keys of dead ones, and why the file could not be written."""
        dead = {key for key in (*kept, *times) if host.started(key[0]) != key[1]}

        def living(values: dict[Key, dict[str, Any]]) -> list[dict[str, Any]]:
            return [dict(zip(("pid", "started", "gpu"), key, strict=True)) | value
                    for key, value in values.items() if key not in dead]

        plain = {
            "version": VERSION, "boot": host.boot(),
            # With terms that were reset: a restored program must not get its saved ones then.
            "programs": living({key: asdict(one) for key, one in kept.items()}),
            "times": living({
                key: {"held": held, "waited": waited, "idle_since": since}
                for key, (held, waited, since) in times.items()})}
        with self._lock:
            if number > self._stored:
                try:
                    self.file.keep(plain)
                except NotKept as error:    # keep() has logged it
                    return dead, error
                self._stored = number
        return dead, None

    def _read(self, plain: dict[str, Any], wrong: Complain) -> dict[Key, ClientTerms]:
        known(plain, ("boot", "programs", "times"), wrong)
        if plain["boot"] != host.boot():
            return {}
        self._times = _each(plain.get("times", []), "times", lambda one: (
            _number(one, "held"), _number(one, "waited"), _number({"idle_since": 0} | one,
                                                                  "idle_since")), wrong)
        return _each(plain["programs"], "programs", client_terms, wrong)


def _each(
    given: Any, what: str, read: Callable[[dict[str, Any]], Read], wrong: Complain
) -> dict[Key, Read]:
    """Reads the entries of a list. A wrong entry costs no other entry."""
    found: dict[Key, Read] = {}
    if not isinstance(given, list):
        wrong(f"{what} cannot be {given!r:.99}")
        return found
    for one in given:
        try:
            if (key := _read_key(one)) in found:
                raise ValueError("a second one for the program")
            found[key] = read(one)
        except NOISE as error:
            wrong(f"{one!r:.99}: {error!r:.199}")
    return found


def _key(client: Client) -> Key | None:
    start = client.peer.started
    return None if start is None else (client.peer.pid, start, client.gpu.facts.uuid)


def _read_key(plain: dict[str, Any]) -> Key:
    return _number(plain, "pid"), _number(plain, "started"), str(plain["gpu"])


def _number(plain: dict[str, Any], name: str) -> int:
    # More would not fit the property of D-Bus, in which figures are added to it.
    if type(number := plain[name]) is not int or not 0 <= number < 1 << 62:
        raise ValueError(f"{name} cannot be {number!r:.99}")
    return number


def client_terms(plain: dict[str, Any]) -> ClientTerms:
    """Reads the terms of one program. Raises one of NOISE for invalid ones."""
    return ClientTerms(_terms(plain["administrator"]), _terms(plain["owner"]))


def _terms(plain: dict[str, Any]) -> Terms:
    """Reads the terms of one program. Raises ValueError or TypeError for invalid terms."""
    terms = Terms(**plain | {"priority": Priority(plain.get("priority", Priority.HIGH))})
    if all(term.admits(value := getattr(terms, term.field))
           and type(value) is type(getattr(Terms(), term.field)) for term in CLIENT_TERMS):
        return terms
    raise ValueError(f"{plain} cannot be set for a program")
