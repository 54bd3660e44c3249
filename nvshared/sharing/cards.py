# SPDX-License-Identifier: Apache-2.0
"""Which cards there are, while the daemon runs and over its restarts.

cards.json in the state folder has each known card, and errors that the driver reported of it since
this boot:

    {"version": 1, "cards": {"GPU-…": {"index": 0, "name": "NVIDIA H200", "memory": 150754820096,
        "pci": "00000000:17:00.0", "boot": "…", "unreliable": "Xid 48"}}}

A card that the driver does not find is listed as lost until it is found, until another card has its
PCI address, or until ForgetGPU. A card that is found, added or repaired, is managed."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from nvshared.clock import Clock, repeat
from nvshared.errors import GPULost, NoGPU, NotKept, NvshareError
from nvshared.kept import VERSION, Complain, KeptFile, each, known
from nvshared.lanes import Post, Run, call
from nvshared.machine import host
from nvshared.machine.nvml import NVML, UUID, Facts, Sample
from nvshared.machine.peer import printable
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND

FILE_NAME = "cards.json"
EVERY = 2.0                             # seconds between two looks at lost cards
LOST_AGAIN = 5 * SECOND                 # us between two questions whether a lost card answers
# us from one search for all cards to the next, while a card is lost or silent. A search initialises
# NVML anew, at which the driver may try a broken card for seconds, so the time doubles.
SEARCH_FIRST = 5 * SECOND
SEARCH_LAST = 600 * SECOND
PATIENCE = 30 * SECOND                  # us that a search may take
SAVED_WITHIN = 10 * SECOND              # us for which the daemon's end waits for a write
ERRORS_NAMED = 5                        # most errors that the fault gpu-unreliable names

logger = logging.getLogger(__name__)


class KnownCards:
    """The file cards.json."""

    def __init__(self, folder: Path) -> None:
        self.file = KeptFile(folder / FILE_NAME)
        self.unreliable: dict[str, str] = {}    # errors of cards since this boot, by UUID

    def load(self) -> dict[str, Facts]:
        """The known cards by UUID."""
        cards, _ = self.file.load(self._read)
        return cards or {}

    def _read(self, plain: dict[str, Any], complain: Complain) -> dict[str, Facts]:
        def read(uuid: str, one: dict[str, Any]) -> Facts:
            facts = _facts(uuid, one)
            known(one, ("index", "name", "memory", "pci", "boot", "unreliable"), complain)
            if one.get("boot") == host.boot() and one.get("unreliable"):
                self.unreliable[uuid] = printable(str(one["unreliable"]))
            return facts

        known(plain, ("cards",), complain)
        return each(plain["cards"], "the GPU", read, complain)

    def plain(self, gpus: Iterable[GPU]) -> dict[str, Any]:
        """The file's contents for these cards."""
        return {"version": VERSION, "cards": {
            gpu.facts.uuid: {
                "index": gpu.facts.index, "name": gpu.facts.name, "pci": gpu.facts.pci_bus_id,
                "memory": gpu.facts.memory_total,
                **({"boot": host.boot(), "unreliable": error}
                   if (error := gpu.faults.detail("gpu-unreliable")) else {})}
            for gpu in gpus}}

    def write(self, plain: dict[str, Any]) -> None:
        """Replaces the contents. Blocks."""
        with suppress(NotKept):         # KeptFile has logged the failure
            self.file.keep(plain)


def _facts(uuid: str, plain: Mapping[str, Any]) -> Facts:
    """Reads one entry of the file. Raises an exception of kept.NOISE."""
    index, memory = plain["index"], plain["memory"]
    name, pci = plain["name"], plain["pci"]
    if not UUID.fullmatch(uuid) or type(index) is not int or not 0 <= index < 1 << 16 or (
            type(memory) is not int or not 0 < memory < 1 << 56) or not (
                isinstance(name, str) and isinstance(pci, str)):
        raise ValueError(f"{plain} describes no GPU")
    return Facts(index, uuid, printable(name), printable(pci), memory)


def with_lost(found: Iterable[Facts], known: Mapping[str, Facts]) -> list[Facts]:
    """The found cards, and the known cards that were not found, under free indices."""
    cards = list(found)
    there = {facts.uuid for facts in cards}
    taken = {facts.pci_bus_id: facts for facts in cards}
    used = {facts.index for facts in cards}
    for uuid, facts in sorted(known.items(), key=lambda one: one[1].index):
        if uuid in there:
            continue
        if other := taken.get(facts.pci_bus_id):
            logger.info("%s (%s) was replaced by %s", uuid, facts.name, other.uuid)
            continue
        index = _free(used, facts.index)
        used.add(index)
        cards.append(replace(facts, index=index))
    return cards


def _free(used: Iterable[int], wanted: int) -> int:
    """The index that a card wants, or else the lowest free one above all others."""
    used = set(used)
    return wanted if wanted not in used else max(used) + 1


class Cards:
    """Adds cards to the manager, and looks for cards while the daemon runs."""

    def __init__(
        self, nvml: NVML, manager: Manager, clock: Clock, run: Run, queries: Run, post: Post,
        file: KnownCards | None,
    ) -> None:
        """`run`: Lanes.run for files; `queries`: Lanes.run for NVML; `file`: None: nothing is kept.
        """
        self._nvml, self._manager = nvml, manager
        self._clock, self._run, self._queries, self._post = clock, run, queries, post
        self._file = file
        self._saved: dict[str, Any] = {}        # what the file was told to hold
        self._fingerprint: tuple[object, ...] | None = None
        self._search_at, self._pause = 0, SEARCH_FIRST
        self._missing: frozenset[str] = frozenset()     # UUIDs of lost and silent cards
        self._asked_at: dict[str, int] = {}     # when a lost card was asked last, by UUID
        self._watched: list[str] = []           # UUIDs of cards whose errors are watched
        self._watcher: Thread | None = None
        manager.reloaded.connect(self._search_soon)
        manager.gpu_removed.connect(lambda _: self._save())

    def add(self, samples: Mapping[Facts, Sample | GPULost], *, gather: bool) -> None:
        """Adds the cards of first_samples(). `gather`: an earlier daemon may have had clients."""
        for facts, sample in samples.items():
            if isinstance(sample, GPULost):
                self._manager.add(facts, Sample(), gather=False).lose(sample.message)
            else:
                self._manager.add(facts, sample, gather=gather or bool(sample.processes))
        for uuid, error in self._file.unreliable.items() if self._file is not None else ():
            self._mark(uuid, error)
        self._fingerprint = self._nvml.fingerprint()
        self._save()
        self._watch_errors()

    async def watch(self) -> None:
        """Looks for lost and for added cards; never returns."""
        await repeat(EVERY, self._look)

    async def _look(self) -> None:
        self._save()
        for gpu in [one for one in self._manager.gpus if one.lost]:
            await self._ask(gpu)
        missing = frozenset(gpu.facts.uuid for gpu in self._manager.gpus
                            if gpu.lost or gpu.faults.detail("gpu-silent"))
        if missing != self._missing:
            self._missing = missing
            self._search_soon()
        fingerprint = self._nvml.seen
        if self._watcher is None or not self._watcher.is_alive():
            fingerprint = await call(self._queries, self, self._nvml.fingerprint, PATIENCE)
        is_changed = fingerprint not in (None, self._fingerprint)
        if is_changed or (missing and self._clock() >= self._search_at):
            self._fingerprint = fingerprint
            await self._search()

    def _search_soon(self) -> None:
        self._pause = SEARCH_FIRST
        self._search_at = self._clock() + (self._pause if self._missing else 0)

    async def _search(self) -> None:
        """Initialises NVML anew, and manages the cards that it finds."""
        found = await call(self._queries, self, self._find, PATIENCE) or ()
        self._search_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, SEARCH_LAST)
        known = {gpu.facts.uuid: gpu for gpu in self._manager.gpus}
        for facts, sample in found:
            gpu = known.get(facts.uuid)
            if gpu is None:
                self._found(facts, sample)
            elif gpu.lost:
                self._found_again(gpu, facts, sample)
            else:
                self._manager.link(gpu, facts)
        self._watch_errors()

    def _find(self) -> list[tuple[Facts, Sample]]:
        """All cards that answer; called in a thread."""
        self._nvml.renew()
        found = []
        with suppress(NvshareError):    # there is no card, or no driver at present
            for facts in self._nvml.find():
                with suppress(NvshareError):
                    found.append((facts, self._nvml.sample(facts.uuid)))
        return found

    async def _ask(self, gpu: GPU) -> None:
        """Manages a lost card anew if it answers."""
        uuid = gpu.facts.uuid
        if self._clock() - self._asked_at.get(uuid, -LOST_AGAIN) < LOST_AGAIN:
            return
        self._asked_at[uuid] = self._clock()
        sample = await call(self._queries, uuid, partial(self._sample, uuid), PATIENCE)
        if sample is not None and gpu in self._manager.gpus:
            self._found_again(gpu, gpu.facts, sample)

    def _sample(self, uuid: str) -> Sample | None:
        try:
            return self._nvml.sample(uuid)
        except NvshareError:
            return None

    def _found(self, facts: Facts, sample: Sample) -> None:
        for gpu in self._manager.gpus:
            if gpu.lost and gpu.facts.pci_bus_id == facts.pci_bus_id:
                logger.info("%s (%s) was replaced", gpu, gpu.facts.uuid)
                self._manager.remove(gpu)
                break
        facts = replace(facts, index=_free(
            {gpu.facts.index for gpu in self._manager.gpus}, facts.index))
        logger.info("GPU %d (%s) was added", facts.index, facts.name)
        self._manager.add(facts, sample, gather=bool(sample.processes))
        self._save()

    def _found_again(self, gpu: GPU, facts: Facts, sample: Sample) -> None:
        logger.info("%s (%s) is found again", gpu, gpu.facts.name)
        self._manager.replace(gpu, replace(facts, index=gpu.facts.index), sample)
        self._save()                    # replace() has removed the card meanwhile
        self._watch_errors()

    def _save(self) -> None:
        if self._file is None:
            return
        plain = self._file.plain(self._manager.gpus)
        if plain != self._saved:
            self._saved = plain
            self._run(FILE_NAME, partial(self._file.write, plain), lambda _: None)

    async def saved(self) -> None:
        """Waits until the file is written, if that does not take too long."""
        if self._file is not None:
            await call(self._run, FILE_NAME, int, SAVED_WITHIN)

    def report(self, uuid: str, error: str) -> None:
        """Marks a card as faulty, after a driver's error that no program can have caused."""
        self._mark(uuid, error)
        self._save()

    def _mark(self, uuid: str, error: str) -> None:
        for gpu in [one for one in self._manager.gpus if one.facts.uuid == uuid]:
            before = gpu.faults.detail("gpu-unreliable")
            if error not in before.split(", ") and before.count(",") < ERRORS_NAMED:
                gpu.faults.set("gpu-unreliable", f"{before}, {error}" if before else error)

    def _watch_errors(self) -> None:
        """Has a thread report errors of the cards that there are."""
        self._watched[:] = [gpu.facts.uuid for gpu in self._manager.gpus if not gpu.lost]
        if self._watched and (self._watcher is None or not self._watcher.is_alive()):
            self._watcher = Thread(
                target=self._nvml.watch_faults, name="nvml faults", daemon=True,
                args=(self._watched,
                      lambda uuid, error: self._post(partial(self.report, uuid, error))))
            self._watcher.start()


def first_samples(nvml: NVML, file: KnownCards | None) -> dict[Facts, Sample | GPULost]:
    """Samples all cards that there are or were, at the start. Blocks.

    Raises NoGPU if there has never been one, NoDriver."""
    known = {} if file is None else file.load()
    try:
        found: tuple[Facts, ...] = nvml.find()
    except NoGPU:
        if not known:
            raise
        found = ()
    samples: dict[Facts, Sample | GPULost] = {}
    for facts in with_lost(found, known):
        try:
            samples[facts] = nvml.sample(facts.uuid)
        except GPULost as error:
            samples[facts] = error
        except NvshareError as error:
            logger.warning("GPU %d (%s): %s", facts.index, facts.name, error)
            samples[facts] = Sample()
    return samples
