# SPDX-License-Identifier: Apache-2.0
"""The library parks a program only when no thread of the program can be in the driver."""

import os
import signal
from dataclasses import replace
from pathlib import Path

from nvshared.hook.protocol import Flag, OrderRecord, Park, ReportRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import Program

# A thread starts a child that shares the process's memory, and sleeps uninterruptibly (state D)
# until the child ends, as threads do while a file system reads or writes.
UNINTERRUPTIBLE = '''
import threading
CLONE_VM, CLONE_VFORK, SIGCHLD, STACK = 0x100, 0x4000, 17, 1 << 16
libc = ctypes.CDLL(None)
stack = ctypes.create_string_buffer(STACK)
top = c_void_p(ctypes.addressof(stack) + STACK - 4096 & ~15)
def sleeps():
    libc.clone(ctypes.cast(libc.pause, c_void_p), top, CLONE_VM | CLONE_VFORK | SIGCHLD, None)
address = allocate(16 * MIB)
thread = threading.Thread(target=sleeps)
thread.start()
away()
thread.join()
'''


def park(daemon: FakeDaemon) -> Park:
    daemon.number += 1
    daemon.send(OrderRecord(Type.PARK, number=daemon.number))
    return Park(daemon.until(Type.PARKED, number=daemon.number).park)


def children(program: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{program}/task").iterdir()
            for child in (task / "children").read_text().split()]


def test_park_is_refused_while_a_thread_sleeps_uninterruptibly(site: Site) -> None:
    daemon, program = begin(site, UNINTERRUPTIBLE, allocated=16 * MIB)
    wait_until(lambda: len(children(program.popen.pid)) == 1)
    daemon.stop()
    daemon.move(Type.EVICT)
    assert park(daemon) is Park.BUSY
    (child,) = children(program.popen.pid)
    os.kill(child, signal.SIGKILL)
    while park(daemon) is Park.BUSY:           # until the thread has ended
        continue
    daemon.send(OrderRecord(Type.UNPARK))
    daemon.let_return(program)


class SilentDaemon(FakeDaemon):
    """Answers no COMMIT while `silent`, as a daemon that has just started."""

    silent = False

    def answer(self, request: ReportRecord) -> OrderRecord:
        # Limits with the number 0 answer no COMMIT.
        return replace(super().answer(request), number=0 if self.silent else request.number)


ALLOCATES = '''
address = allocate(16 * MIB)
away()
address = allocate(48 * MIB)
away()
'''


def test_allocation_that_waits_in_a_parked_program_is_asked_of_the_daemon_that_wakes_it(
    site: Site
) -> None:
    daemon = SilentDaemon(site, room=32 * MIB, total=512 * MIB)
    program = Program(site, ALLOCATES)
    daemon.accept()
    daemon.until_allocated(16 * MIB)
    assert program.hears() == "away"
    daemon.stop()
    daemon.move(Type.EVICT)
    daemon.silent = True
    program.go_on()
    daemon.until(Type.COMMIT)
    while park(daemon) is Park.BUSY:
        continue
    assert daemon.said[-1].has(Flag.WANTS)
    daemon.listen()
    daemon.connection.close()
    daemon.connect()
    assert daemon.said[-1].has(Flag.IS_PARKED)
    assert daemon.said[-1].has(Flag.WANTS)
    daemon.silent, daemon.room = False, 128 * MIB
    daemon.limits = replace(daemon.limits, commit=daemon.room, most=daemon.room)
    daemon.send(OrderRecord(Type.UNPARK, gpu=site.uuids[0]))
    daemon.until(Type.COMMIT)
    daemon.send(daemon.limits)
    daemon.move(Type.LOAD, daemon.room)
    daemon.run()
    assert program.hears() == "away"
    daemon.let_finish(program)
