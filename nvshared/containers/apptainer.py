# SPDX-License-Identifier: Apache-2.0
"""The environment with which Apptainer, or Singularity, lets a container share its GPU."""

from collections.abc import Mapping
from pathlib import Path

from nvshared import library
from nvshared.containers.cdi import LIBRARY, SOCKETS
from nvshared.names import DEFAULT_SOCKET, SOCKET_VARIABLE

PROGRAMS = ("apptainer", "singularity")
OURS = "NVSHARE_"                       # begin of variables that the container gets, also cleaned


def environment(command: str, given: Mapping[str, str]) -> dict[str, str]:
    """`given` with the variables that Apptainer and Singularity need; unchanged for other commands.

    Apptainer mounts the folders in APPTAINER_BIND, and passes APPTAINERENV_NAME on as NAME."""
    changed, name = dict(given), Path(command).name
    if name not in PROGRAMS:
        return changed
    prefix = name.upper()
    hook, socket = library.hook().resolve(), Path(given.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)
    inside = {one: value for one, value in given.items() if one.startswith(OURS)} | {
        SOCKET_VARIABLE: f"{SOCKETS}/{socket.name}",
        library.PRELOAD: ":".join(filter(None, (
            given.get(f"{prefix}ENV_{library.PRELOAD}"), f"{LIBRARY}/{library.HOOK}")))}
    binds = [f"{hook}:{LIBRARY}/{library.HOOK}:ro", f"{socket.parent}:{SOCKETS}:ro"]
    changed[f"{prefix}_BIND"] = ",".join(filter(None, (given.get(f"{prefix}_BIND"), *binds)))
    return changed | {f"{prefix}ENV_{one}": value for one, value in inside.items()}
