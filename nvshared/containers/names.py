# SPDX-License-Identifier: Apache-2.0
"""Names of containers, as Docker, Podman and nerdctl tell them to whoever calls this.

nvshared knows containers by the ids in their control groups, and may not ask their runtimes. The
commands are asked, not sockets and files: they know contexts, rootless runtimes and all stores."""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable
from typing import NamedTuple

KIND = "container"
TOOLS = ("docker", "podman", "nerdctl")
PATIENCE = 3.0                          # seconds for one command; a hung daemon answers never
ID = re.compile(r"[0-9a-f]{64}")
SHORT = re.compile(r"[0-9a-f]{12,}")     # as runtimes print ids
LISTED = ("ps", "--all", "--no-trunc", "--format", "{{.ID}}\t{{.Names}}")


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
        for line in done.stdout.splitlines():
            id, _, names = line.partition("\t")
            if ID.fullmatch(id) and names.isprintable():
                found.append(Named(id, names.partition(",")[0].strip()))
    return found


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
    """The tenant for container:NAME, or the begin of an id, if a runtime knows such a container;
    else `text`.

    `tenants`: those that nvshared knows, of which one may be the container in its user's name."""
    kind, _, wanted = text.partition(":")
    if kind != KIND or id_of(text) or text in tenants:
        return text
    user, _, name = wanted.rpartition("/")
    ids = [one.id for one in listed()
           if one.name == name or (SHORT.fullmatch(name) and one.id.startswith(name))]
    if not ids:
        return text
    for tenant in tenants:
        if id_of(tenant) in ids and (not user or tenant.startswith(f"{KIND}:{user}/")):
            return tenant
    owner = user or (str(os.getuid()) if os.getuid() and not shutil.which("docker") else "")
    return f"{KIND}:{owner}/{ids[0]}" if owner else f"{KIND}:{ids[0]}"
