# SPDX-License-Identifier: Apache-2.0
"""Orders to nvshare-save (nvshared/saver.py), which has CRIU save processes and restore them.

systemd offers the program on a socket, as root, or the daemon starts it. One process carries out
one order, also if the daemon ends meanwhile."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from nvshared import caller
from nvshared.errors import NvshareError
from nvshared.machine.checkpoint import start
from nvshared.machine.peer import printable
from nvshared.saved import BASE, MADE

# Not imported: it would take 4 MiB, most of them for digests.
PROGRAM = str(Path(caller.__file__).with_name("saver.py"))
SOCKET = Path("/run/nvshare-checkpoint/save.sock")
PATIENCE = 3600.0                       # most seconds of an order; 1 TiB at 0.3 GB/s takes as long
LONGEST = 1 << 24                       # most bytes of an answer: a list of saved programs


class NoAnswer(NvshareError):
    """nvshare-save has ended without an answer; CRIU may go on."""


class Saved(NamedTuple):
    """A saved program, or one that is being saved."""

    folder: str
    state: str                          # saving, saved, restoring, restored, ended
    size: int                           # bytes written so far
    why: str                            # of the last restore that failed; "": none did
    started: int                        # of the restored process, in ticks since boot; 0: none
    pid: int
    uid: int
    name: str
    bytes: int                          # to be written, estimated while it is being saved
    saved: int                          # seconds since the epoch
    note: dict[str, Any]                # see sharing/saving.py


async def ask(order: str, **words: Any) -> dict[str, Any]:
    """Sends an order, returns its answer. Raises NvshareError with the reason of a refusal;
    NoAnswer if none came."""
    try:
        reader, writer, process = await start(
            SOCKET, sys.executable, "-I", PROGRAM, longest=LONGEST)
        writer.write(json.dumps({"order": order, **words}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            line = await reader.readline()
        writer.close()
        if process is not None:
            await process.ended.wait()
        answer = json.loads(line) if line.endswith(b"\n") else None
    except TimeoutError as error:
        raise NoAnswer(f"nvshare-save has not answered for {PATIENCE:.0f} s") from error
    except (OSError, ValueError) as error:
        raise NoAnswer(f"nvshare-save cannot be used: {error}") from error
    if not isinstance(answer, dict):
        raise NoAnswer("nvshare-save has ended without an answer")
    if "error" in answer:
        raise NvshareError(printable(str(answer["error"])))
    return answer


async def saved(to: str = "") -> list[Saved]:
    """The saved programs in a folder, "" for the usual one. Raises NvshareError."""
    found = (await ask("list", to=to))["entries"]
    with contextlib.suppress(TypeError, KeyError):
        return [Saved(**{**one, "why": printable(one["why"])}) for one in found]
    raise NvshareError("nvshare-save is of another version than nvshared")


def is_elsewhere(folder: str) -> bool:
    """Whether the folder of a saved program is not in the usual folder."""
    return "/" in folder and Path(folder).parent != BASE


def has_saved() -> bool:
    """Whether there may be saved programs in the usual folder."""
    try:
        return any(MADE.fullmatch(one.name) for one in BASE.iterdir())
    except OSError:
        return False
