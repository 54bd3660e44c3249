# SPDX-License-Identifier: Apache-2.0
"""Memory that the library stores in a file is loaded unchanged, or its use fails."""

import errno
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Park, ReportRecord, Type
from nvshared.machine.disk import open_file
from nvshared.units import MIB
from tests.integration.conftest import BUILD, CARD, Site, compile_faulty_disk, wait_until
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.programs import Program

SIZE = 96 * MIB                         # three blocks
KEEPS = '''
size = 96 * MIB
address = allocate(size)
data = bytearray(noise(size))
put(address, bytes(data))
def changes():
    "Changes one byte of the second block and one byte of the last block."
    for at in (40 * MIB + 7, size - 1):
        data[at] ^= 1
        put(address + at, bytes(data[at:at + 1]))
away()
'''


UNCHANGED = "assert get(address, size) == data"


def start(site: Site, body: str, within: Sequence[str] = ()) -> tuple[FakeDaemon, Program]:
    return begin(site, KEEPS + body, allocated=SIZE, within=within, room=CARD, host_slab=64 * MIB)


def swap(daemon: FakeDaemon) -> None:
    daemon.stop()
    assert daemon.move(Type.EVICT).memory.resident == 0


def swap_and_store(site: Site, daemon: FakeDaemon) -> None:
    swap(daemon)
    file = open_file(site.folder)
    daemon.store(file=file)
    os.close(file)
    daemon.until_true(lambda: daemon.stored.moved == SIZE and daemon.memory.host == 0)


def test_memory_stored_on_disk_uses_no_host_memory_and_is_evicted_again_without_a_copy(
    site: Site
) -> None:
    daemon, program = start(site, '''
assert get(address, size) == data
away()
changes()
away()
assert get(address, size) == data
call("cuMemFree_v2", address)
away()
''')
    swap_and_store(site, daemon)
    assert daemon.host_most >= SIZE
    assert daemon.stored.error == 0
    daemon.run()
    program.go_on()
    assert program.hears() == "away"
    daemon.store(SIZE)                 # resident blocks keep their copies in the file
    daemon.stop()
    assert daemon.move(Type.EVICT).moved == 0
    # Host memory is released once nothing is in flight, which the answer may precede.
    daemon.until_true(lambda: (daemon.stored.moved, daemon.memory.host) == (SIZE, 0))
    daemon.run()
    program.go_on()
    assert program.hears() == "away"    # two of the three blocks have changed
    daemon.stop()
    assert daemon.move(Type.EVICT).moved == 64 * MIB
    daemon.until_true(lambda: daemon.stored.moved == SIZE and daemon.memory.host == 0)
    daemon.run()
    program.go_on()
    assert program.hears() == "away"
    daemon.run()
    assert daemon.stored.moved == 0     # a report: freed blocks have no copies in the file
    program.finish()


def test_disk_file_with_used_blocks_grows_and_shrinks_to_the_limit_of_each_store_order(
    site: Site
) -> None:
    daemon, program = start(site, UNCHANGED)
    swap(daemon)
    file = open_file(site.folder)

    def has(stored: int, size: int) -> None:
        daemon.until_true(lambda: daemon.stored.moved == stored)
        wait_until(lambda: os.fstat(file).st_size == size)

    daemon.store(64 * MIB, file=file)
    has(stored=64 * MIB, size=64 * MIB)
    daemon.store()
    daemon.until_true(lambda: daemon.stored.moved == SIZE)
    daemon.store(0)                     # the file has the only copies
    has(stored=SIZE, size=SIZE)
    daemon.move(Type.LOAD, CARD)
    daemon.store(64 * MIB)              # drops copies of resident blocks
    has(stored=64 * MIB, size=64 * MIB)
    daemon.store(0)
    has(stored=0, size=0)
    daemon.move(Type.EVICT)
    daemon.store(40 * MIB)
    daemon.until_true(lambda: daemon.stored.moved == 32 * MIB)
    assert os.fstat(file).st_size <= 40 * MIB
    os.close(file)
    daemon.let_return(program)


def test_disk_file_descriptor_is_not_visible_in_the_program_or_its_children(site: Site) -> None:
    daemon, program = start(site, '''
import subprocess
def deleted():
    run = subprocess.run(["ls", "-l", f"/proc/{os.getpid()}/fd"], capture_output=True, text=True)
    return "(deleted)" in run.stdout
assert not deleted()
child = os.fork()
if child == 0:
    os._exit(deleted())
assert os.waitpid(child, 0)[1] == 0
os.closerange(3, 4096)                  # closes all descriptors, the library's connection included
assert get(address, size) == data
''')
    swap_and_store(site, daemon)
    threads = [
        task for task in Path(f"/proc/{program.popen.pid}/task").iterdir()
        if (task / "comm").read_text().strip() in ("nvshare-read", "nvshare-write")
    ]
    assert threads
    for thread in threads:
        assert len(list((thread / "fd").iterdir())) == 1, thread
    daemon.run()
    program.finish()


def test_client_reports_its_stored_bytes_to_a_restarted_daemon_also_while_parked(
    site: Site
) -> None:
    daemon, program = start(site, UNCHANGED)
    swap_and_store(site, daemon)

    def restart() -> None:
        daemon.stored = ReportRecord(Type.STORED)
        daemon.listen()
        daemon.connection.close()
        daemon.connect()
        assert daemon.stored.moved == SIZE

    restart()
    assert daemon.stored.number == 0    # STORED came before any STORE order
    daemon.send(daemon.limits, OrderRecord(Type.PARK))
    while (answer := daemon.until(Type.PARKED).park) == Park.BUSY:      # on a busy machine
        daemon.send(OrderRecord(Type.PARK))
    assert answer == Park.DONE
    restart()
    daemon.send(OrderRecord(Type.UNPARK, gpu=site.uuids[0]), OrderRecord(Type.INTRODUCE, number=1))
    daemon.until(Type.HELLO)
    daemon.send(daemon.limits)
    daemon.let_return(program)


@pytest.mark.parametrize(("error", "most"), [(errno.ENOSPC, 0), (errno.EFBIG, 64 * MIB)])
def test_disk_write_error_is_reported_and_the_program_continues_with_right_bytes(
    site: Site, error: int, most: int
) -> None:
    daemon, program = start(site, UNCHANGED)
    swap(daemon)
    host = daemon.memory.host
    if error == errno.ENOSPC:
        file = os.open("/dev/full", os.O_RDWR)
    else:
        resource.prlimit(program.popen.pid, resource.RLIMIT_FSIZE, (70 * MIB, 70 * MIB))
        file = open_file(site.folder)
    daemon.store(file=file)
    os.close(file)
    daemon.until_true(lambda: daemon.stored.error != 0)
    assert daemon.stored.error == error
    assert daemon.stored.moved <= most
    assert daemon.memory.host + daemon.stored.moved >= host
    daemon.let_return(program)


READS_LOST = '''
def reads_nothing_wrong():
    part, lost = 4 * MIB, 0
    for at in range(0, size, part):
        got = bytearray(part)
        result = cuda.cuMemcpyDtoH_v2((ctypes.c_char * part).from_buffer(got),
                                      c_uint64(address + at), c_size_t(part))
        assert result != 0 or got == data[at:at + part], f"wrong bytes at {at}"
        lost += result != 0
    say(lost)
reads_nothing_wrong()
sys.stdin.readline()
'''


def test_read_of_bytes_lost_by_the_disk_returns_an_error_and_no_wrong_data(site: Site) -> None:
    daemon, program = start(site, READS_LOST)
    swap(daemon)
    file = open_file(site.folder, direct=False)
    daemon.store(file=file)
    daemon.until_true(lambda: daemon.stored.moved == SIZE)
    os.pwrite(file, bytes(byte ^ 1 for byte in os.pread(file, 1, 45 * MIB)), 45 * MIB)
    os.ftruncate(file, SIZE - 30 * MIB - 1)
    loaded = daemon.move(Type.LOAD, CARD)
    assert not loaded.flags & Flag.DRIVER_ERROR
    assert daemon.memory.allocated == daemon.memory.resident == SIZE - 64 * MIB
    daemon.run()
    program.go_on()
    assert program.hears() > 0
    program.popen.kill()
    _, errors = program.popen.communicate()
    assert "are lost, as they cannot be read back from disk" in errors


def faulty_disk(site: Site) -> Sequence[str]:
    """A command that runs a program with disk.c; files in the site's folder set its faults."""
    preloaded = f"LD_PRELOAD={compile_faulty_disk(site.folder)}:{BUILD / 'libnvshare.so'}"
    return "env", preloaded, f"NVSHARE_TEST_DISK={site.folder}"


@pytest.mark.long
def test_disk_write_that_hangs_for_long_is_reported_to_the_daemon_as_etimedout(site: Site) -> None:
    daemon, program = start(site, UNCHANGED, faulty_disk(site))
    daemon.store(file=open_file(site.folder))
    switch = site.folder / "pwrite"
    switch.touch()
    swap(daemon)
    daemon.until_true(lambda: daemon.stored.error == errno.ETIMEDOUT)
    switch.unlink()
    daemon.until_true(lambda: (daemon.stored.error, daemon.stored.moved) == (0, SIZE))
    daemon.let_return(program)
