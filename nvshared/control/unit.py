# SPDX-License-Identifier: Apache-2.0
"""The state of nvshared's systemd units, by systemctl, and of the socket of the socket unit."""

import errno
import shutil
from collections.abc import Mapping
from pathlib import Path

from nvshared.errors import NvshareError

UNITS = ("nvshared.socket", "nvshared.service")
SYSTEMD = Path("/run/systemd/system")
SHOWN = "LoadState,ActiveState,SubState,UnitFileState,Result,StatusText"
PATIENCE = 5.0                          # seconds
# Results of a service or socket that was started too often; it cannot start for a while.
LIMITS = frozenset({"start-limit-hit", "service-start-limit-hit", "trigger-limit-hit"})
START = "systemctl start nvshared"
MASKS = {"masked": "systemctl unmask", "masked-runtime": "systemctl unmask --runtime"}


def runs_here() -> bool:
    return SYSTEMD.is_dir() and shutil.which("systemctl") is not None


def state(unit: str) -> Mapping[str, str]:
    """The unit's properties in SHOWN. Raises NvshareError if systemctl fails."""
    import subprocess

    try:
        done = subprocess.run(
            ["systemctl", "show", unit, "-p", SHOWN],
            capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise NvshareError(f"it said nothing for {PATIENCE:.0f} seconds") from None
    except OSError as error:
        raise NvshareError(error.strerror or str(error)) from None
    if done.returncode:
        raise NvshareError(done.stderr.strip() or "no reason")
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def failure(shown: Mapping[str, str]) -> str:
    """Why a unit cannot start, by its status or systemd's result; "": it can, or restarts."""
    if shown.get("LoadState") == "masked":
        return "it is masked, so systemd does not start it"
    result = shown.get("Result", "success")
    reason = (result == "exit-code" and shown.get("StatusText")) or result
    return "" if result == "success" else reason


def start_again(start: str = START) -> str:
    """`start` after the commands that it needs: to unmask units, to reset systemd's start limit."""
    states = {unit: state(unit) for unit in UNITS}
    commands = [unmask(states), start]
    # A start limit may show in either unit.
    if any(shown.get("Result") in LIMITS for shown in states.values()):
        commands.insert(1, f"systemctl reset-failed {' '.join(UNITS)}")
    return " && ".join(filter(None, commands))


def unmask(states: Mapping[str, Mapping[str, str]]) -> str:
    """The commands that unmask units, of their properties by name; "": none is masked."""
    commands = []
    for mask, command in MASKS.items():
        if units := [one for one, shown in states.items() if shown.get("UnitFileState") == mask]:
            commands.append(f"{command} {' '.join(units)}")
    return " && ".join(commands)


def unreachable(path: str) -> OSError | None:
    """Why programs cannot use the daemon's socket, or None. The probe starts no daemon."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(path)
    except OSError as error:
        return None if error.errno == errno.EPROTOTYPE else error
    return None
