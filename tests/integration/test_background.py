# SPDX-License-Identifier: Apache-2.0
"""A program of the lowest priority submits no work while a resident program of another user has
work in flight, also when that program or the daemon stops, restarts or dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Site, kill, wait_until
from tests.integration.programs import Program
from tests.integration.test_doctor import PROGRAM

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="it runs programs of two users, which needs root")

NOBODY_UID = 65534                        # a user that every system has

# The urgent program changes its user, because programs of a single user are a single tenant. It
# first reads the files that the other user may not read.
OTHER_USER = f'''
import ctypes, json, os, sys, threading
ctypes.CDLL("libcuda.so.1")
ptx = open("libhook/demo/kernels.ptx", "rb").read()
os.setgroups([]); os.setgid({NOBODY_UID}); os.setuid({NOBODY_UID})
'''
SAME_USER = 'import threading\nptx = open("libhook/demo/kernels.ptx", "rb").read()\n'
KERNEL = '''
def kernel(name):
    module, found = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), ptx)
    call("cuModuleGetFunction", byref(found), module, b"nvshare_" + name.encode())
    return found
spin = kernel("spin")
'''
# Runs short kernels without end, and prints the number of finished kernels for each line of input.
BACKGROUND = KERNEL + '''
count = 0
def work():
    global count
    call("cuCtxSetCurrent", context)
    while True:
        launch(spin, None, 100)
        call("cuCtxSynchronize")
        count += 1
threading.Thread(target=work, daemon=True).start()
print(0, flush=True)
for _ in sys.stdin:
    print(count, flush=True)
'''
# Keeps a kernel in flight from the line "begin" to the line "end"; "more" submits a short kernel.
URGENT = KERNEL + '''
wait_flag = kernel("wait_flag")
host, flag = c_void_p(), c_uint64()
call("cuMemHostAlloc", byref(host), 4, 2)
call("cuMemHostGetDevicePointer_v2", byref(flag), host, 0)
value = ctypes.cast(host, POINTER(c_uint))
print(0, flush=True)
for line in sys.stdin:
    if line == "begin\\n":
        value[0] = 0
        launch(wait_flag, None, flag.value, 1)
    elif line == "more\\n":
        launch(spin, None, 1)
    else:
        value[0] = 1
        call("cuCtxSynchronize")
    print(0, flush=True)
'''


class Pair:
    def __init__(self, site: Site, bus: str, state: Path) -> None:
        self.site, self.bus = site, bus
        self.options = ("--bus", bus, "--state-dir", str(state))
        self.daemon = site.start(*self.options)
        self.ours = Program(site, BACKGROUND, before=SAME_USER)
        self.ours.hears()
        self.other = Program(site, URGENT, before=OTHER_USER)
        self.other.hears()

    def rank(self, priority: str) -> None:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, "priority", "user:root", priority, "--bus",
             self.bus], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)

    @property
    def count(self) -> int:
        self.ours.go_on()
        found = self.ours.hears()
        assert isinstance(found, int)
        return found

    def tell(self, command: str) -> None:
        self.other.tell(command)
        self.other.hears()

    def goes_on(self) -> None:
        before = self.count
        wait_until(lambda: self.count >= before + 5)

    def rests(self) -> None:
        """Waits until the background program finishes no more kernels."""
        seen = [-3, -2, -1]

        def unchanged() -> bool:
            self.tell("more")           # the urgent program can submit work meanwhile
            seen.append(self.count)
            return len(set(seen[-4:])) == 1

        wait_until(unchanged)


@pytest.fixture
def pair(public_site: Site, tmp_path: Path, bus: str) -> Pair:
    return Pair(public_site, bus, tmp_path)


def test_background_client_launches_no_work_while_another_client_has_work(pair: Pair) -> None:
    pair.goes_on()
    pair.tell("begin")
    pair.goes_on()                      # both programs have the same priority
    pair.rank("background")
    pair.rests()
    pair.rank("none")
    pair.goes_on()
    pair.rank("background")
    pair.rests()
    pair.tell("end")
    pair.goes_on()                      # the urgent program has no work in flight any more
    pair.tell("begin")
    pair.rests()
    pair.site.started.remove(pair.daemon)
    kill(pair.daemon)
    pair.goes_on()                      # without a daemon no program is urgent
    pair.daemon = pair.site.start(*pair.options)
    pair.rests()
    pair.other.popen.send_signal(signal.SIGSTOP)
    pair.goes_on()                      # a stopped urgent program delays others for bounded time
    pair.other.popen.send_signal(signal.SIGCONT)
    pair.tell("end")
    pair.tell("begin")
    pair.rests()
    kill(pair.other.popen)
    pair.goes_on()
