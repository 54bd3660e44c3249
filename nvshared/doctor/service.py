# SPDX-License-Identifier: Apache-2.0
"""Checks the daemon's systemd units, socket, bus name and version."""

import errno
import os
from collections.abc import Iterator

from nvshared import __version__
from nvshared.control import Daemon, unit
from nvshared.control.snapshot import Snapshot
from nvshared.doctor.finding import Finding, Grade, fault, note, ok, warning
from nvshared.errors import NotRunning, NvshareError
from nvshared.names import DEFAULT_SOCKET, SOCKET_VARIABLE

NO_BUS = "none"                         # as in nvshared --bus none


Answer = Snapshot | NvshareError | None             # None: the bus is `none`


def ask(bus: str) -> Answer:
    """A snapshot from nvshared, or the error of the call."""
    if bus == NO_BUS:
        return None
    try:
        with Daemon(bus) as daemon:
            return daemon.snapshot()
    except NvshareError as error:
        return error


def _start() -> str:
    """Advice how to start nvshared on this machine."""
    return f"start it with: {'systemctl enable --now ' * unit.runs_here()}nvshared"


def findings(bus: str, answer: Answer) -> Iterator[Finding]:
    """Findings about units, socket, bus, disk and version."""
    if unit.runs_here():
        yield from map(_unit, unit.UNITS)
    else:
        yield note("systemd", "systemd does not run here, so nvshared must be started by hand")
    path = os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
    found = _socket(path, heard=isinstance(answer, Snapshot))
    yield found
    if not isinstance(answer, Snapshot):
        yield _silent(bus, answer, served=found.grade is Grade.OK)
        return
    yield ok("bus", f"nvshared answers on {_named(bus)}")
    if answer.disk_fault:
        yield warning("disk", f"no memory goes to the disk: {answer.disk_fault}",
                      "after the repair nvshared uses the disk within a minute; or set disk = off")
    elif answer.disk:
        yield ok("disk", f"swapped memory may go on to {answer.disk}")
    if (version := answer.version) == __version__:
        yield ok("version", f"nvshared and this command have version {version}")
    else:
        yield warning(
            "version", f"nvshared has version {version}, this command has {__version__}",
            "restart nvshared, programs go on meanwhile: systemctl restart nvshared",
        )


def _named(bus: str) -> str:
    return f"the {bus} bus" if bus in ("system", "session") else f"the bus at {bus}"


def _silent(bus: str, error: NvshareError | None, *, served: bool) -> Finding:
    """The finding if nvshared does not answer. `served`: the socket works, so programs share."""
    if error is None:
        return note("bus", "none, so nvsharectl cannot reach nvshared; programs need no bus")
    words, advice = error.message, error.hint or "is dbus running? --bus chooses another"
    if isinstance(error, NotRunning):
        words = f"no process owns com.nvshare on {_named(bus)}"
        advice = error.hint if not served else (
            "nvshared may be on another bus, which --bus or NVSHARE_BUS chooses, or on none")
    if not served:
        return fault("bus", words, advice)
    return warning("bus", f"{words}; programs need no bus, but nvsharectl does", advice)


def _unit(name: str) -> Finding:
    try:
        state = unit.state(name)
    except NvshareError as error:
        return warning(
            name, f"systemd does not report its state ({error})", "see: systemctl status"
        )
    if state.get("LoadState") != "loaded":
        return note(
            name, f"systemd has no such unit ({state.get('LoadState', 'unknown')})",
            "the packages install it; nvshared can also be started by hand",
        )
    words = f"{state['ActiveState']} ({state['SubState']}), {state['UnitFileState']} at boot"
    if why := unit.failure(state):
        return fault(
            name, f"{words}: {why}",
            f"see more: journalctl -u {name} -n 20; after the repair: {unit.start_again()}",
        )
    if state["ActiveState"] not in ("active", "activating", "reloading"):
        return fault(name, words, _start())
    if state["UnitFileState"] == "disabled":
        return warning(name, words, "start it at boot, too: systemctl enable nvshared")
    return ok(name, words)


def _socket(path: str, *, heard: bool) -> Finding:
    """The finding about the daemon's socket. `heard`: nvshared answers on the bus, so it runs."""
    if (error := unit.unreachable(path)) is None:
        return ok("socket", f"programs find nvshared at {path}")
    unshared = "programs would use the GPU unshared"
    advice = _start() if not heard else (
        f"nvshared runs, but listens elsewhere: set {SOCKET_VARIABLE} to its socket")
    match error.errno:
        case errno.ENOENT:
            return fault("socket", f"there is no {path}, so {unshared}", advice)
        case errno.ECONNREFUSED:
            return fault("socket", f"no process listens on {path}, so {unshared}", advice)
        case errno.EACCES:
            return fault(
                "socket", f"{path} may not be used by uid {os.geteuid()}, so {unshared}",
                f"give all users access: chmod a+rw {path}, and a+x for the folders above it",
            )
        case _:
            return fault(
                "socket", f"{path} cannot be reached: {error.strerror or error}", advice
            )
