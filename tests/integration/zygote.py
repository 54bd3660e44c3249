# SPDX-License-Identifier: Apache-2.0
"""A process that has imported nvshared or nvshare-kubelet and forks such daemons. A daemon in a new
interpreter takes several times the processor time until it is ready.

As a program it serves the requests that arrive on the socket of descriptor FD:
python -m tests.integration.zygote FD MODULE
"""

import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT, STDERR = 5, 14             # arguments of Popen._execute_child() after the first
# Modules that a daemon imports after its start, by the module of the daemon's main().
IMPORTED_LATER = {
    "nvshared.daemon": ("nvshared.__main__", "nvshared.bus", "nvshared.history",
                        "nvshared.report.metrics"),
    "nvshared.kubelet.main": ("nvshared.kubelet.leaving", "nvshared.kubelet.plugin",
                              "nvshared.kubelet.runtime", "nvshared.kubelet.slices"),
}


class Zygote:
    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.zygote", str(theirs.fileno()), module],
                cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
        self._lock = threading.Lock()

    def ask(self, request: Any, descriptors: Sequence[int] = ()) -> list[int]:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer: list[int] = json.loads(self._socket.recv(4096))
            return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Daemon(subprocess.Popen[str]):
    """A daemon that a zygote forks. The zygote reaps it, as it is no child of this process."""

    def __init__(self, zygote: Zygote, options: Sequence[str], **others: Any) -> None:
        self._zygote, self._waits = zygote, threading.Lock()
        super().__init__(options, text=True, **others)

    def _execute_child(self, options: Sequence[str], *others: Any) -> None:
        (self.pid,) = self._zygote.ask([options, others[ENVIRONMENT]], [others[STDERR]])
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True

    def wait(self, timeout: float | None = None) -> int:
        with self._waits:
            if self.returncode is None:
                if not select.select([self._ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                os.close(self._ended)
                _, status = self._zygote.ask(self.pid)
                self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None


def replace_constants() -> None:
    """Replaces whole-number constants by NVSHARE_TEST_CONSTANTS: "MODULE:NAME=VALUE ..."."""
    for one in os.environ.get("NVSHARE_TEST_CONSTANTS", "").split():
        place, _, value = one.partition("=")
        module, _, name = place.partition(":")
        owner = importlib.import_module(module)
        assert hasattr(owner, name), one
        setattr(owner, name, int(value))


def main() -> None:
    module = importlib.import_module(sys.argv[2])
    for name in IMPORTED_LATER[sys.argv[2]]:
        importlib.import_module(name)
    gc.freeze()
    server = socket.socket(fileno=int(sys.argv[1]))
    while True:
        packet, descriptors, _, _ = socket.recv_fds(server, 1 << 16, 1)
        if not packet:
            return
        request = json.loads(packet)
        if isinstance(request, int):
            answer = [*os.waitpid(request, 0)]
        elif pid := os.fork():
            answer = [pid]
        else:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        server.send(json.dumps(answer).encode())
    server.close()
    os.dup2(descriptors[0], 2)
    os.close(descriptors[0])
    options, environment = request
    os.environ.clear()
    os.environ.update(environment)
    if folder := os.environ.get("NVSHARE_SAVED"):       # read when the module was imported
        vars(importlib.import_module("nvshared.machine.saving"))["BASE"] = Path(folder)
    replace_constants()
    sys.exit(module.main(options))


if __name__ == "__main__":
    main()
