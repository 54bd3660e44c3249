# SPDX-License-Identifier: Apache-2.0
"""A thread in place of systemd: listens, receives notifications and keeps descriptors."""

import array
import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from tests.integration.conftest import ROOT, Site
from tests.integration.fakehook import PATIENCE

# Move the descriptors to the numbers that a service expects, and execute the service.
SPAWN = """
import fcntl, os, sys
names, *rest = sys.argv[1:]
count = len(names.split(":"))
away = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 200) for number in rest[:count]]
for number in rest[:count]:
    os.close(int(number))
for place, number in enumerate(away):
    os.dup2(number, 3 + place)
    os.close(number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES=names)
os.execv(rest[count], rest[count:])
"""


class ServiceManager:
    """A unit with a socket. `notifications` has all messages except those about descriptors."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.kept: dict[str, int] = {}
        self.stored = 0                 # number of descriptors stored so far
        self.doubled: list[str] = []    # names that systemd would have of two descriptors
        self.notifications: list[str] = []
        self._changed = threading.Condition()
        site.socket.parent.mkdir()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(site.socket))
        self._listening.listen(64)
        self._address = site.folder / "manager"
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(self._address))
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def start(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        daemon = self.begin(*options, **environment)
        self.wait(lambda: "READY=1" in self.notifications)
        return daemon

    def begin(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        """Starts the daemon without waiting until it is ready."""
        with self._changed:
            self.notifications.clear()
            names = ["nvshared.socket", *self.kept]
            numbers = [self._listening.fileno(), *self.kept.values()]
            command = [
                sys.executable, "-c", SPAWN, ":".join(names), *map(str, numbers),
                *self.site.command(*options),
            ]
            with self.site.log.open("a") as log:
                daemon = subprocess.Popen(
                    command, cwd=ROOT, stderr=log, text=True, pass_fds=numbers,
                    env={
                        **self.site.environment, "NOTIFY_SOCKET": str(self._address), **environment
                    })
        self.site.started.append(daemon)
        return daemon

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), (self.notifications, self.kept)

    def close(self) -> None:
        """Closes all descriptors, as systemd does when the unit is stopped."""
        os.write(self._end, b"x")
        self._thread.join()
        for number in (*self.kept.values(), self._ended, self._end):
            os.close(number)
        self._listening.close()
        self._notified.close()
        assert not self.doubled         # the next daemon could not tell them apart

    def _hear(self) -> None:
        while True:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            poll.register(self._notified, select.POLLIN)
            for number in self.kept.values():
                poll.register(number, 0)        # reports only hang-ups, like systemd's FDPOLL=1
            ready = dict(poll.poll(PATIENCE * 1000))
            if self._ended in ready:
                return
            with self._changed:
                if self._notified.fileno() in ready:
                    self._take()
                for name in [name for name, number in self.kept.items() if number in ready]:
                    os.close(self.kept.pop(name))
                self._changed.notify_all()

    def _take(self) -> None:
        message, passed, _, _ = self._notified.recvmsg(4096, socket.CMSG_SPACE(64))
        numbers = array.array("i")
        for level, kind, data in passed:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(data)
        words = dict(line.split("=", 1) for line in message.decode().splitlines())
        if "FDSTORE" in words:
            if words["FDNAME"] in self.kept:
                self.doubled.append(words["FDNAME"])
            (self.kept[words["FDNAME"]],) = numbers
            self.stored += 1
        elif "FDSTOREREMOVE" in words:
            with contextlib.suppress(KeyError):
                os.close(self.kept.pop(words["FDNAME"]))
        else:
            self.notifications.append(message.decode())
