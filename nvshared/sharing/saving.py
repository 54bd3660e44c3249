# SPDX-License-Identifier: Apache-2.0
"""Saves programs on a disk and restores them, later or after a restart of the machine.

A parked program holds nothing of the GPU, so CRIU can dump it as any process (nvshared/saver.py).
Its library closes its connection for that, and comes back by itself with a HELLO that says that it
is parked: from the restored process, or from the old one if the dump has failed. A folder is
removed once its program has used the GPU again."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.kept import NOISE
from nvshared.machine import host, saving
from nvshared.machine.saving import NoAnswer, Saved
from nvshared.machine.tenant import Kind
from nvshared.scheduler.events import Terms
from nvshared.sharing.client_terms import ClientTerms
from nvshared.sharing.gpu import GPU, Client
from nvshared.sharing.moving import PARKED, Moving, Places, start_task
from nvshared.sharing.remembered import client_terms

BACK_WITHIN = 60.0                      # seconds from a restore, or a failed dump, to its HELLO
ASKED_EVERY = 0.2                       # seconds between questions about a killed nvshare-save
LISTED_EVERY = 2.0                      # seconds between lists while an earlier restore goes on
TRIES = 50                              # questions without answer until that is given up
AT_ONCE = 2                             # orders of an account that are carried out at once
ALL_AT_ONCE = 8                         # of all accounts; nvshare-save.socket allows 16

logger = logging.getLogger(__name__)

Done = TypeVar("Done")


class Saving:
    def __init__(
        self, gpus: list[GPU], moving: Moving,
        ask: Callable[..., Awaitable[dict[str, Any]]] = saving.ask,
        saved: Callable[[str], Awaitable[list[Saved]]] = saving.saved,
    ) -> None:
        self._gpus, self._moving = gpus, moving
        self._ask, self._list = ask, saved
        self._places, self._all = Places(AT_ONCE), asyncio.Semaphore(ALL_AT_ONCE)
        self._awaited: set[str] = set()         # folders of restored programs, not yet awake
        # By process and start time of programs that come back: the terms; None: they have them.
        self._terms: dict[tuple[int, int], ClientTerms | None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def follow(self, gpu: GPU) -> None:
        gpu.client_new.connect(self._give_terms)

    def _give_terms(self, client: Client) -> None:
        """Gives a program that comes back the terms that it had, unless it got them already.

        What was set since counts. An earlier daemon may have kept the owner's terms alone, if it
        ended before it could give the administrator's."""
        key = client.peer.pid, client.peer.started or 0
        if (terms := self._terms.get(key)) is None:
            return
        self._terms[key] = None
        were_reset = client.recalled and client.terms == ClientTerms()
        if client.terms.administrator == Terms() and not were_reset:
            owner = client.terms.owner if client.recalled else terms.owner
            client.set_terms(ClientTerms(terms.administrator, owner))

    async def save(self, client: Client, to: str = "") -> Saved:
        """Saves a program, which ends. On NvshareError it goes on. `to`: the folder of the saved
        program's folder; "": the usual one."""
        if why := refusal(client):
            raise NvshareError(f"{client} cannot be saved: {why}")
        note: dict[str, Any] = {"token": os.urandom(8).hex(), "gpu": client.gpu.facts.uuid}
        order = {"pid": client.peer.pid, "started": client.peer.started, "to": to, "note": note}
        try:
            await self._carry_out(client.peer.account, "check", **order)
        except NvshareError as error:
            raise NvshareError(f"{client} cannot be saved: {error.message}") from error
        folder = ""

        async def dump() -> None:
            nonlocal folder
            note["terms"] = asdict(client.terms)    # parking takes long: they may have changed
            folder = await self._dump(client.peer.account, order)

        try:
            await self._moving.save(client, dump)
        except NvshareError as error:
            if client.gpu.clients.get(client.id) is client:
                raise                   # it was not parked, or is woken
            key = client.peer.pid, client.peer.started or 0
            self._terms.pop(key, None)
            self._set_terms(key, client.terms)
            start_task(self._tasks, self._wake(client))
            raise NvshareError(f"{client} was not saved: {error.message}") from error
        logger.info("%s: %s of %s was saved: %s", client.gpu, client, client.user, folder)
        return await self.find(folder, client.peer.account)

    async def _in_place(self, account: str, work: Callable[[], Coroutine[Any, Any, Done]]) -> Done:
        """Does work in a place of an account. If the caller is cancelled, work that has begun goes
        on and keeps its place, as its nvshare-save does."""
        places = self._places.of(account)
        await places.acquire()
        task = start_task(self._tasks, work())
        task.add_done_callback(lambda _: places.release())
        return await asyncio.shield(task)

    async def _order(self, order: str, **words: Any) -> dict[str, Any]:
        async with self._all:
            return await self._ask(order, **words)

    async def _carry_out(self, account: str, order: str, **words: Any) -> dict[str, Any]:
        return await self._in_place(account, partial(self._order, order, **words))

    async def _dump(self, account: str, order: dict[str, Any]) -> str:
        """Returns the folder of the saved program. Raises NvshareError if its process runs on."""
        try:
            return str((await self._carry_out(account, "save", **order))["done"])
        except NoAnswer as error:       # nvshare-save was killed; CRIU may go on
            token, reason = order["note"]["token"], error.message
        tries = TRIES
        while tries:
            try:
                rows = await self._list(order["to"])
            except NoAnswer:
                tries -= 1
            else:
                row = next((row for row in rows if row.note.get("token") == token), None)
                if row is None:
                    break
                if row.state != "saving":
                    return row.folder
            await asyncio.sleep(ASKED_EVERY)
        raise NvshareError(reason)

    async def _wake(self, old: Client) -> None:
        """Wakes a program that was not saved, once its library is back."""
        client = await self._await_client(old.peer.pid, old.peer.started)
        if client is None:
            logger.error("%s was not saved, and has ended or does not come back", old)
            return
        self._moving.wake(client)

    async def _await_client(self, pid: int, started: int | None) -> Client | None:
        """Waits for a parked client of this process; None: it has ended, or does not come."""
        end = asyncio.get_running_loop().time() + BACK_WITHIN
        while host.started(pid) == started and asyncio.get_running_loop().time() < end:
            if (client := self._client(pid)) is not None and client.parking.state in ("", PARKED):
                return client
            await asyncio.sleep(ASKED_EVERY / 10)
        return None

    def _client(self, pid: int) -> Client | None:
        return next((one for gpu in self._gpus for one in gpu.clients.values()
                     if one.peer.pid == pid), None)

    async def saved(self, to: str = "", account: str = "") -> list[Saved]:
        """The saved programs in a folder, "" for the usual one. Raises NvshareError. `account`:
        of the caller."""
        async def listed() -> list[Saved]:
            async with self._all:
                return await self._list(to)

        return await self._in_place(account, listed)

    async def find(self, folder: str, account: str) -> Saved:
        """Raises NvshareError if there is no saved program in this folder. `account`: of the
        caller."""
        above = Path(folder).parent if saving.is_elsewhere(folder) else ""
        for one in await self.saved(str(above), account):
            if folder in (one.folder, one.name):
                return one
        raise InvalidArgs(f"there is no saved program {folder!r}",
                          "see them with: nvsharectl save --list")

    async def restore(self, saved: Saved) -> int:
        """Restores a saved program, and returns its process. Raises NvshareError.

        It is parked then, and wakes when it uses the GPU. Until it has, its folder stays."""
        return await self._in_place(f"user:{saved.uid}", partial(self._restore, saved))

    async def _restore(self, saved: Saved) -> int:
        done = await self._order("restore", folder=saved.folder)
        pid, started = int(done["pid"]), int(done["started"])
        self._read_terms(saved.folder, pid, started, done["note"])
        client = await self._await_client(pid, started)
        if client is None:
            raise NvshareError(f"process {pid} was restored from {saved.folder}, and has ended or "
                               "does not use the GPU")
        logger.info("%s: %s of %s was restored from %s", client.gpu, client, client.user,
                    saved.folder)
        self._await_answer(saved.folder, pid, started)
        return pid

    def _read_terms(self, folder: str, pid: int, started: int, note: dict[str, Any]) -> None:
        """Gives a restored program the terms with which it was saved."""
        try:
            terms = client_terms(note["terms"])
        except NOISE as error:          # another version of nvshared has saved it
            logger.warning("%s: the terms with which it was saved are not used: %r", folder, error)
            return
        self._set_terms((pid, started), terms)

    def _set_terms(self, process: tuple[int, int], terms: ClientTerms) -> None:
        """Gives a process terms once: now, or whenever its library comes back."""
        self._terms = {
            key: one for key, one in self._terms.items() if host.started(key[0]) == key[1]}
        if self._terms.setdefault(process, terms) and (client := self._client(process[0])):
            self._give_terms(client)

    async def remove(self, saved: Saved) -> None:
        """Removes a saved program. Raises NvshareError."""
        await self._carry_out(f"user:{saved.uid}", "remove", folder=saved.folder)
        logger.info("%s was removed", saved.folder)

    async def take_over(self) -> None:
        """Goes on with programs that an earlier daemon has restored, or is having restored."""
        tries = TRIES
        while saving.has_saved():
            try:
                found = await self.saved()
            except NvshareError as error:
                tries -= 1
                if tries and isinstance(error, NoAnswer):       # nvshare-save was killed
                    await asyncio.sleep(LISTED_EVERY)
                    continue
                logger.warning("restored programs of an earlier daemon: %s", error)
                return
            for one in found:
                if one.state == "restored" and one.folder not in self._awaited:
                    self._read_terms(one.folder, one.pid, one.started, one.note)
                    self._await_answer(one.folder, one.pid, one.started)
            if all(one.state != "restoring" for one in found):
                return
            await asyncio.sleep(LISTED_EVERY)

    def _await_answer(self, folder: str, pid: int, started: int) -> None:
        if folder not in self._awaited:
            self._awaited.add(folder)
            task = start_task(self._tasks, self._remove_answered(folder, pid, started))
            task.add_done_callback(lambda _: self._awaited.discard(folder))

    async def _remove_answered(self, folder: str, pid: int, started: int) -> None:
        """Removes the folder of a restored program once it has used the GPU."""
        while (client := await self._await_client(pid, started)) is not None:
            if not await self._moving.until_awake(client):
                continue
            for _ in range(TRIES):
                try:
                    await self._carry_out(client.peer.account, "remove", folder=folder)
                except NoAnswer:        # nvshare-save was killed
                    await asyncio.sleep(ASKED_EVERY)
                except NvshareError as error:
                    # It is gone if the last try removed it, or its program was saved again.
                    logger.debug("%s: %s", folder, error.message)
                    return
                else:
                    return
        logger.warning("the program that was restored from %s has ended before it used the GPU; "
                       "the folder stays", folder)


def refusal(client: Client) -> str:
    """Returns why a client cannot be saved, as far as the daemon knows; "": no reason known."""
    if client.peer.is_contained or client.peer.tenant.kind in (Kind.POD, Kind.CONTAINER):
        return "it runs in a container: save the container, see docs/saving.md"
    if client.peer.started is None:
        return "its process has ended"
    if client.link.has_file:
        return "some of its memory is or was on the disk (nvshared.conf, disk)"
    return ""
