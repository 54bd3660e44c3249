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
    """Why a unit has failed, by its status or systemd's result; "": it has not, or restarts."""
    result = shown.get("Result", "success")
    reason = (result == "exit-code" and shown.get("StatusText")) or result
    return "" if result == "success" else reason


def start_again() -> str:
    """The command to start the daemon after a failure; a start limit may show in either unit."""
    if any(state(unit).get("Result") in LIMITS for unit in UNITS):
        return f"systemctl reset-failed {' '.join(UNITS)} && {START}"
    return START


def unreachable(path: str) -> OSError | None:
    """Why programs cannot use the daemon's socket, or None. The probe starts no daemon."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(path)
    except OSError as error:
        return None if error.errno == errno.EPROTOTYPE else error
    return None
