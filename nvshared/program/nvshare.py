# SPDX-License-Identifier: Apache-2.0
"""The line magic %nvshare: prints this notebook's memory and time on the GPUs, and their holders.

`%load_ext nvshare`, with this folder in sys.path, registers it; each call runs nvsharectl. The
module works in Python 3.8 or later and has no dependencies."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

STATUS = ("nvsharectl", "status", "--json")
SECOND = 1e6                            # microseconds, the unit of times in STATUS


def nvshare(_line: str = "") -> None:
    """Prints this notebook's memory and time on each shared GPU, and the GPU's holder."""
    try:
        done = subprocess.run(STATUS, capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"nvsharectl cannot be run: {error.strerror}")
        return
    print(_failure(done.stderr) if done.returncode
          else report(json.loads(done.stdout), os.getpid()))


def _failure(said: str) -> str:
    """The error of `nvsharectl --json`, as nvsharectl words it without --json."""
    try:
        error = json.loads(said)
        return f"nvsharectl: {error['error']}; {error['hint']}".rstrip("; ")
    except (ValueError, LookupError, TypeError):
        return said.strip()


def report(status: dict[str, Any], pid: int) -> str:
    """The output of `nvsharectl status --json` as text, for the process `pid`."""
    lines = []
    for gpu in status["gpus"]:
        there = [one for one in status["clients"] if one["gpu"] == gpu["index"]]
        holders = ["you" if one["pid"] == pid else f"{one['tenant']} ({one['command'][:30]})"
                   for one in there if one["id"] in gpu["holders"]]
        lines.append(f"gpu{gpu['index']}: held by {', '.join(holders) or 'no program'}, "
                     f"{gpu['queue_length']} waiting")
        lines += [_own(one) for one in there if one["pid"] == pid]
    if not any(one["pid"] == pid for one in status["clients"]):
        lines.append("This notebook has no memory on a GPU that it shares.")
    return "\n".join(lines)


def _own(client: dict[str, Any]) -> str:
    on_card = client["resident"] + client["pinned"]
    return (f"      yours: {_size(on_card)} on the GPU, {_size(client['swapped'])} swapped; "
            f"held for {client['held_usec'] / SECOND:.0f} s, "
            f"waited for {client['waited_usec'] / SECOND:.0f} s")


def _size(number: int) -> str:
    return f"{number / (1 << 30):.1f} GiB" if number >= 1 << 30 else f"{number >> 20} MiB"


def load_ipython_extension(ipython: Any) -> None:
    """Registers the magic; IPython calls this for %load_ext."""
    ipython.register_magic_function(nvshare)
