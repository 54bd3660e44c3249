# SPDX-License-Identifier: Apache-2.0
"""Bytes, times and names as text, short enough for a column."""

import pwd
from functools import cache
from typing import TYPE_CHECKING

from nvshared.units import GIB, MIB, MILLISECOND, SECOND

if TYPE_CHECKING:
    from nvshared.control.snapshot import ClientSnapshot

LONG_ID, SHORT_ID = 32, 12              # digits of a pod's or container's id; digits shown
_STEP = 1024.0
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size(count: float | None) -> str:
    """Bytes as 0, 512K, 1.5M, 97.3G; "-" when unknown."""
    if count is None:
        return "-"
    if count < _STEP:
        return f"{count:.0f}"
    for unit in "KMGT":
        count /= _STEP
        # 999.5 would be printed as 1000, which is a column too wide.
        if count < 999.5 or unit == "T":
            break
    return f"{count:.1f}{unit}" if count < 99.95 else f"{count:.0f}{unit}"


def of_whole(count: int | None, whole: int, between: str = "/") -> str:
    """`count` of `whole` bytes, as 97.3/139.7G or 40/256M; "-": `count` is unknown."""
    unit, letter, digits = (GIB, "G", 1) if whole >= GIB else (MIB, "M", 0)
    used = "-" if count is None else f"{count / unit:.{digits}f}"
    return f"{used}{between}{whole / unit:.{digits}f}{' ' if ' ' in between else ''}{letter}"


def duration(microseconds: int) -> str:
    """Time as 0s, 4.2s, 59s, 3m20s, 2h05m, 3d04h."""
    seconds = microseconds / SECOND
    whole = int(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s" if microseconds else "0s"
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def quantum(microseconds: int) -> str:
    """A quantum in the form that set-tq accepts: 30s, 250ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:g}ms" if rest else f"{seconds}s"


@cache
def user(uid: int) -> str:
    """A user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def short_tenant(name: str) -> str:
    """A tenant's name, with the id of a pod or container shortened."""
    before, mark, id = name.rpartition("/" if "/" in name else ":")
    long = len(id) >= LONG_ID and set(id) <= set("0123456789abcdef-")
    return f"{before}{mark}{id[:SHORT_ID] if long else id}"


def shortened(text: str, width: int) -> str:
    """Cuts `text` to `width` characters at its end. The name of a process keeps its [pid]."""
    if len(text) <= width:
        return text
    name, bracket, number = text.partition("[")
    kept = width - len(number) - 2
    if not bracket or not number.endswith("]") or kept < 1:
        return text[:max(0, width - 1)] + "…"
    return f"{name[:kept]}…[{number}"


def process(client: "ClientSnapshot") -> str:
    """A process as the journal writes it: python[4711]."""
    return f"{client.name}[{client.pid}]"


def command(client: "ClientSnapshot") -> str:
    """The command line without the folders of its program."""
    program, blank, rest = client.command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest
