# SPDX-License-Identifier: Apache-2.0
"""Notices other daemons that manage the same cards: each would promise the whole card's memory.

For each card a daemon listens at an abstract socket with the card's UUID in its name. A second
daemon finds the name taken and connects instead, so that each knows of the other. Neither refuses:
any user may take such a name, and must not be able to keep the daemon from its cards.

Abstract names are of one network namespace. So processes called nvshared in other ones, such as
containers, are looked up in /proc, where this daemon sees them; the daemon in there may not."""

import errno
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from nvshared import caller
from nvshared.clock import Clock, repeat
from nvshared.lanes import Run, call
from nvshared.machine import peer
from nvshared.machine.nvml import Facts
from nvshared.sharing.gpu import GPU
from nvshared.sharing.manager import Manager
from nvshared.units import SECOND

EVERY = 2.0                             # seconds between two looks at the sockets
ELSEWHERE_EVERY = 30 * SECOND           # us between two looks at other network namespaces
RIVALS_MOST = 4                         # connections that a card's socket accepts, and most
                                        # daemons in other network namespaces: users can fake both
NAME = "nvshared"                       # the name of the daemon's process
PROC = Path("/proc")
PATIENCE = 10 * SECOND                  # us that a look into /proc may take


def _address(facts: Facts) -> str:
    return f"nvshare/{facts.uuid}/{facts.serial}"


class _Post:
    """A card's socket: this daemon's, or a connection to the one that was there first."""

    def __init__(self, facts: Facts) -> None:
        self._address = "\0" + _address(facts)
        self._own: socket.socket | None = None
        self._others: list[socket.socket] = []      # connections to or from other daemons

    def look(self) -> list[str]:
        """Names the processes of other daemons."""
        for one in [one for one in self._others if _has_ended(one)]:
            self._others.remove(one)
            one.close()
        full = False
        if self._own is not None:
            self._accept()
        elif not self._others:
            full = self._take()
        return ["a process that does not answer"] if full else [*map(_named, self._others)]

    def close(self) -> None:
        for one in filter(None, (self._own, *self._others)):
            one.close()

    def _accept(self) -> None:
        assert self._own is not None
        with suppress(OSError):
            # Any user may connect, faster than we accept: the rest waits for the next look.
            while len(self._others) < RIVALS_MOST:
                other, _ = self._own.accept()
                other.setblocking(False)
                self._others.append(other)

    def _take(self) -> bool:
        """Listens, or connects to the listener. True: that one's queue is full."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.setblocking(False)
        try:
            one.bind(self._address)
            one.listen(RIVALS_MOST)
            self._own = one
            return False
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                one.close()
                raise
        try:
            one.connect(self._address)
        except OSError as error:
            one.close()
            return error.errno == errno.EAGAIN      # else it has ended: the next look listens
        self._others.append(one)
        return False


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _named(connection: socket.socket) -> str:
    pid, uid = caller.credentials(connection)
    return f"{peer.shown(pid) if pid else 'a process that cannot be seen from here'} of uid {uid}"


class Rivals:
    def __init__(self, manager: Manager, clock: Clock, run: Run) -> None:
        self._manager, self._clock, self._run = manager, clock, run
        self._posts: dict[GPU, _Post] = {}
        self._elsewhere: dict[str, list[int]] = {}      # pids by _address()
        self._elsewhere_at = -ELSEWHERE_EVERY
        manager.gpu_removed.connect(self._removed)
        with suppress(OSError):         # the name only helps other daemons to find this one
            (PROC / "self/comm").write_text(NAME, encoding="ascii")

    def close(self) -> None:
        for post in self._posts.values():
            post.close()

    async def watch(self) -> None:
        """Looks for other daemons; never returns."""
        await self._look()
        await repeat(EVERY, self._look)

    async def _look(self) -> None:
        if self._clock() - self._elsewhere_at >= ELSEWHERE_EVERY:
            self._elsewhere_at = self._clock()
            addresses = [_address(gpu.facts) for gpu in self._manager.gpus]
            found = await call(self._run, self, partial(_find_elsewhere, addresses), PATIENCE)
            self._elsewhere = found or {}
        for gpu in self._manager.gpus:
            if gpu not in self._posts:
                self._posts[gpu] = _Post(gpu.facts)
            named = self._posts[gpu].look()
            named += [f"{peer.shown(pid)} in another network namespace"
                      for pid in self._elsewhere.get(_address(gpu.facts), ())]
            gpu.faults.set("gpu-contested", ", ".join(named))

    def _removed(self, gpu: GPU) -> None:
        if gpu in self._posts:
            self._posts.pop(gpu).close()


def _find_elsewhere(addresses: Iterable[str]) -> dict[str, list[int]]:
    """Pids of daemons in other network namespaces, by address. Blocks."""
    found: dict[str, list[int]] = {}
    ours = _namespace(PROC / "self")
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or folder.name == str(os.getpid()):
            continue
        with suppress(OSError):         # the process has ended, or is not visible
            if (folder / "comm").read_text(errors="replace").rstrip("\n") != NAME:
                continue
            there = _namespace(folder)
            if there == ours:
                continue
            taken = {line.rpartition(" ")[2] for line
                     in (folder / "net/unix").read_text(errors="replace").splitlines()}
            for address in addresses:
                pids = found.setdefault(address, [])
                if f"@{address}" in taken and len(pids) < RIVALS_MOST:
                    pids.append(int(folder.name))
    return found


def _namespace(process: Path) -> int:
    """Identifies a process's network namespace by its table of UNIX sockets."""
    return (process / "net/unix").stat().st_ino
