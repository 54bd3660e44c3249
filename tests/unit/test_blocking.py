# SPDX-License-Identifier: Apache-2.0
"""Calls that may block the daemon's event loop, each with the reason why the wait is bounded.

docs/security.md names the bounds. A function passed to nvshared/lanes.py runs in a worker thread,
so the line that passes the function is no call and is not listed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "nvshared"
IN_THE_LOOP = ("hook", "sharing", "report", "bus", "history", "settings/state.py", "daemon.py")

# Calls that wait for a program, control groups, the user database or a disk.
BLOCKING = {
    "peer.identify", "peer.whole_name", "subordinate.owner", "tenant.user", "tenant.groups",
    "kernel.user", "kernel.groups", "host.started", "host.process", "host.private",
    "host.safe_budget", "host.total", "host.free", "host.kernel_text", "cgroup.chain",
    "cgroup.owner", "cgroup.slurm_job", "disk.written", "group.limit", "keep", "self._file.write",
    "host.has_ended", "os.fsync",
}
ALLOWED = {
    ("sharing/control_groups.py", "__init__"): "of the daemon itself, at its start",
    ("sharing/control_groups.py", "_read"): "in a lane",
    ("sharing/disk.py", "_measure"): "in a lane",
    ("sharing/manager.py", "__init__"): "at the start",
    ("sharing/unshared.py", "_identify"): "in a lane",
    ("sharing/unshared.py", "_open"): "in a lane",
    ("sharing/moving.py", "free_host_memory"): "in a lane",
    ("sharing/remembered.py", "_store"): "in a lane, but for the end",
    ("settings/state.py", "_replace"): "in the thread of its file",
    ("report/trace.py", "_put"): "in a thread",
}


def calls() -> Iterator[tuple[str, str]]:
    for call_site in IN_THE_LOOP:
        path = PACKAGE / call_site
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            name = str(file.relative_to(PACKAGE))
            for function in ast.walk(ast.parse(file.read_text())):
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) in BLOCKING:
                        yield name, function.name


def test_blocking_calls_run_in_worker_threads_or_are_listed_with_a_reason() -> None:
    assert set(calls()) == ALLOWED.keys()
