# SPDX-License-Identifier: Apache-2.0
"""Bytes, times and processes in a few characters."""

from typing import TYPE_CHECKING

from nvshared.units import GIB, MIB, MILLISECOND, SECOND

if TYPE_CHECKING:
    from nvshared.control.snapshot import ClientSnapshot, GPUSnapshot

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
    """Bytes of so many in all, as 97.3/139.7G or 40/256M; "-" for what is unknown."""
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
    """A quantum as it is set: 30s, 250ms."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{microseconds / MILLISECOND:g}ms" if rest else f"{seconds}s"


def quantum_of(gpu: "GPUSnapshot") -> str:
    """A card's: 30s, 250ms, auto, and while turns are taken auto (1.2s)."""
    if not gpu.tq_auto:
        return quantum(gpu.tq_usec)
    if gpu.state not in ("turns", "busy"):
        return "auto"
    now = gpu.tq_usec
    return f"auto ({now // MILLISECOND}ms)" if now < 995_000 else f"auto ({duration(now)})"


def process(client: "ClientSnapshot") -> str:
    """A process as the journal writes it: python[4711]."""
    return f"{client.name}[{client.pid}]"


def command(client: "ClientSnapshot") -> str:
    """The command line without the folders of its program."""
    program, blank, rest = client.command.partition(" ")
    return (program.rpartition("/")[2] or program) + blank + rest
