# SPDX-License-Identifier: Apache-2.0
"""Names of containers, as Docker, Podman and nerdctl list them for the calling process.

Control groups have ids. The runtimes' commands are called instead of reading their sockets and
files, because the commands know contexts, rootless runtimes and all stores. nvshared lacks the
permission, so systemd starts this file as root (nvshare-names.socket): a program that prints the
list, reads nothing, and imports nothing of the other modules."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

KIND = "container"
TOOLS = ("docker", "podman", "nerdctl")
PATIENCE = 3.0                          # seconds for one command; a hung daemon answers never
ID = re.compile(r"[0-9a-f]{64}")
SHORT = re.compile(r"[0-9a-f]{12,}")     # as runtimes print ids
# With a slash or a wildcard, a name could mean another tenant in a rule; with 64 digits, an id.
NAME = re.compile(r"(?![0-9a-f]{64}$)[A-Za-z0-9][A-Za-z0-9_.-]{0,200}")
LISTED = ("ps", "--all", "--no-trunc", "--format", "{{.ID}}\t{{.Names}}")


SOCKET = Path("/run/nvshare-checkpoint/names.sock")
SOCKET_PATIENCE = 10.0                  # seconds; more than PATIENCE for each of TOOLS
LONGEST = 1 << 22                       # most bytes of a list
FRESH = 10.0                            # seconds until a name is asked for again: it may change


class Named(NamedTuple):
    id: str
    name: str


def listed() -> list[Named]:
    """The containers that the caller may see. A runtime that fails, or hangs, has none."""
    found = []
    for tool in filter(shutil.which, TOOLS):
        try:
            done = subprocess.run(
                [tool, *LISTED], capture_output=True, text=True, errors="replace", check=False,
                timeout=PATIENCE, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found += parsed(done.stdout)
    return found


def parsed(text: str) -> list[Named]:
    """The containers in lines of LISTED. A line that is something else is left out."""
    found = []
    for line in text.splitlines():
        id, _, names = line.partition("\t")
        name = names.partition(",")[0].strip()
        if ID.fullmatch(id) and NAME.fullmatch(name):
            found.append(Named(id, name))
    return found


class Names:
    """The names of the system's containers, for nvshared. Only `known` may be called while another
    thread calls one of the others."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, float]] = {}      # name and time by id; "": it has none

    def known(self, id: str) -> str | None:
        """The name if it was asked for lately; "": it has none."""
        name, asked = self._names.get(id, (None, 0.0))
        return name if time.monotonic() < asked + FRESH else None

    def of(self, id: str) -> str:
        """The name of a container; "": no runtime tells one. Blocks up to SOCKET_PATIENCE."""
        if (name := self.known(id)) is not None:
            return name
        listed_now, asked = _told(), time.monotonic()
        self._names = {id: ("", asked)} | {one.id: (one.name, asked) for one in listed_now}
        return self._names[id][0]


def _told() -> list[Named]:
    """The list of the program behind SOCKET; without that program, the list for this process."""
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(SOCKET_PATIENCE)
            asked.connect(str(SOCKET))
            with asked.makefile("rb") as file:
                return parsed(file.read(LONGEST).decode(errors="replace"))
    except TimeoutError:
        return []
    except OSError:                     # no systemd has made the socket
        return listed()


def id_of(tenant: str) -> str:
    """The id in a tenant's name, container:ID or container:USER/ID; "": it has none."""
    kind, _, name = tenant.partition(":")
    id = name.rpartition("/")[2]
    return id if kind == KIND and ID.fullmatch(id) else ""


def names_of(tenants: Iterable[str]) -> dict[str, str]:
    """The names of those tenants that are containers with a known name, by tenant."""
    wanted = {tenant: id for tenant in tenants if (id := id_of(tenant))}
    known = dict(listed()) if wanted else {}
    return {tenant: known[id] for tenant, id in wanted.items() if known.get(id)}


def resolved(text: str, tenants: Collection[str]) -> str:
    """The tenant for container:NAME, an id or the begin of one, as nvshared calls it: by name,
    or by id if it is a user's own. `text` if no runtime knows such a container.

    `tenants`: those that nvshared knows."""
    kind, _, wanted = text.partition(":")
    if kind != KIND or text in tenants:
        return text
    user, _, name = wanted.rpartition("/")
    found = [one for one in listed()
             if one.name == name or (SHORT.fullmatch(name) and one.id.startswith(name))]
    if not found:
        return text
    ids = [one.id for one in found]
    for tenant in tenants:
        if id_of(tenant) in ids and (not user or tenant.startswith(f"{KIND}:{user}/")):
            return tenant
    owner = user or (str(os.getuid()) if os.getuid() and not shutil.which("docker") else "")
    return f"{KIND}:{owner}/{found[0].id}" if owner else f"{KIND}:{found[0].name}"


if __name__ == "__main__":
    for each in listed():
        print(*each, sep="\t")
