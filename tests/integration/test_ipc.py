# SPDX-License-Identifier: Apache-2.0
"""Two processes share memory by legacy IPC, as torch.multiprocessing does, between hand-overs."""

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared.units import MIB
from tests.integration.conftest import Site, kill
from tests.integration.programs import Program

SHARING = '''
def give(address):
    handle = Handle()
    call("cuIpcGetMemHandle", byref(handle), address)
    return bytes(handle).hex()
def take(text, result=0):
    address = c_uint64()
    handle = Handle.from_buffer_copy(bytes.fromhex(text))
    got = cuda.cuIpcOpenMemHandle_v2(ctypes.addressof(address), handle, 1)
    assert got == result, f"cuIpcOpenMemHandle_v2: {got}, must be {result}"
    return address.value
def hear():
    return json.loads(sys.stdin.readline())
'''

OWNER = SHARING + '''
large, size = allocate(100 * MIB), 100 * MIB
small = [allocate(3000) for _ in range(3)]
other = allocate(64 * MIB)
put(large, b"L" * size)
put(small[1], b"S" * 3000)
put(other, b"O" * 64 * MIB)
assert attribute(10, large, c_uint) == 1                 # IS_LEGACY_CUDA_IPC_CAPABLE
handles = [give(large + 5000), give(small[1])]
assert give(large) == handles[0]
assert get(large, size) == b"L" * size and get(small[1], 3000) == b"S" * 3000
say(handles)
hear()
assert get(large, size) == b"l" * size and get(small[1], 3000) == b"s" * 3000
assert get(other, 64 * MIB) == b"O" * 64 * MIB
put(large + MIB, b"again")
say("read")
hear()
call("cuMemFree_v2", large)
say("freed")
hear()
'''

USER = SHARING + '''
handles = hear()
large, small = take(handles[0]), take(handles[1])
# the second open is counted and maps nothing
assert take(handles[0]) == large
base, size = c_uint64(), c_size_t()
call("cuMemGetAddressRange_v2", byref(base), byref(size), large + 70 * MIB)
assert (base.value, size.value) == (large, 100 * MIB)
assert [attribute(w, small + 5, c_uint) for w in (2, 9, 10)] == [2, 0, 0]
assert get(large, 100 * MIB) == b"L" * 100 * MIB and get(small, 3000) == b"S" * 3000
call("cuMemFree_v2", large, result=INVALID)
call("cuMemsetD8_v2", large, ord("l"), 100 * MIB)
call("cuMemsetD8_v2", small, ord("s"), 3000)
call("cuCtxSynchronize")
say("written")
hear()
assert get(large + MIB, 5) == b"again"
call("cuIpcCloseMemHandle", large)
assert get(large + MIB, 5) == b"again"                   # still open once
call("cuIpcCloseMemHandle", large)
call("cuIpcCloseMemHandle", large, result=INVALID)
call("cuIpcCloseMemHandle", small)
say("closed")
hear()
take(handles[0], result=INVALID)                         # the owner has freed the memory
take("00" * 64, result=INVALID)
take(handles[1][:16] + "11" * 56, result=INVALID)        # no process has the socket of this handle
'''


def test_ipc_importer_reads_the_bytes_that_the_exporter_writes(site: Site) -> None:
    site.start("--tq", "1")
    owner, user = Program(site, OWNER), Program(site, USER)
    handles = owner.hears()
    # Shared memory stays on the card, other memory is evicted.
    hook = site.holding(800 * MIB)
    hook.close()
    user.tell(json.dumps(handles))
    assert user.hears() == "written"
    owner.tell("0")
    assert owner.hears() == "read"
    user.tell("0")
    assert user.hears() == "closed"
    owner.tell("0")
    assert owner.hears() == "freed"
    user.tell("0")
    user.ends_well()
    owner.tell("0")
    owner.ends_well()


CLOSES_DURING_WORK = SHARING + '''
handle, flag = hear(), c_void_p()
call("cuMemHostAlloc", byref(flag), 64, c_uint(0))
word = c_uint.from_address(flag.value)
word.value = 0
memory = take(handle)
launch(kernel("wait_flag"), None, flag.value, 1)
call("cuIpcCloseMemHandle", memory)      # gives up the wait for the kernel and keeps the mapping
word.value = 1
call("cuCtxSynchronize")
call("cuIpcCloseMemHandle", memory, result=INVALID)
assert take(handle) == take(handle) == memory
call("cuIpcCloseMemHandle", memory)
assert get(memory, 3000) == b"S" * 3000                  # still open once
call("cuIpcCloseMemHandle", memory)
call("cuIpcCloseMemHandle", memory, result=INVALID)
say("closed")
'''


def test_second_close_of_ipc_memory_with_work_in_flight_returns_invalid_value(site: Site) -> None:
    site.start("--tq", "1")
    owner, user = Program(site, OWNER), Program(site, CLOSES_DURING_WORK)
    user.tell(json.dumps(owner.hears()[1]))
    assert user.hears() == "closed"
    user.ends_well()
    owner.popen.kill()


QUIET = SHARING + """
memory = allocate(8 * MIB)
put(memory, b"M" * 8 * MIB)
say(give(memory))
hear()
"""

FETCHES = SHARING + """
memory = take(hear())
assert get(memory, 8 * MIB) == b"M" * 8 * MIB
"""


def test_memory_is_exported_by_ipc_between_containers_without_a_common_network(site: Site) -> None:
    """The containers share /dev/shm, where no file stays, not even that of a killed process."""
    site.start()
    killed, owner = Program(site, QUIET), Program(site, QUIET)
    killed_handle, handle = killed.hears(), owner.hears()
    kill(killed.popen)
    assert file_of(killed_handle).is_socket()
    os.utime(file_of(killed_handle), (0, 0))
    user = Program(site, FETCHES, within=("unshare", "--net", "--map-root-user"))
    user.tell(json.dumps(handle))
    user.ends_well()
    last = Program(site, QUIET)
    last_handle = last.hears()
    assert not file_of(killed_handle).exists()
    assert file_of(handle).is_socket()
    for program in (owner, last):
        program.tell("0")
        program.ends_well()
    assert not file_of(handle).exists()
    assert not file_of(last_handle).exists()


# Takes the name of the exporter's socket in a network namespace of its own, as another user; then
# runs a program there.
SQUATTED = """
import os, socket, subprocess, sys
name, report, *program = sys.argv[1:]
if os.fork() == 0:
    os.setuid(65533)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(b"\\0" + name.encode())
    listener.listen()
    os.write(int(report), b"listens")
    one, _ = listener.accept()
    os.write(int(report), one.recv(100))
    os._exit(0)
os.execvp(program[0], program)
"""
AS_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
           "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
def test_memory_is_imported_by_ipc_although_another_user_took_the_name_of_the_socket(
    public_site: Site
) -> None:
    public_site.start()
    owner = Program(public_site, QUIET, within=AS_USER)
    handle = owner.hears()
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    user = Program(
        public_site, FETCHES, pass_fds=(writing,), within=(
            "unshare", "--net", sys.executable, "-c", SQUATTED, name_of(handle).decode(),
            str(writing), *AS_USER))
    os.close(writing)
    assert os.read(reading, 100) == b"listens"
    user.tell(json.dumps(handle))
    user.ends_well()
    assert os.read(reading, 100) == b"", "the secret"
    os.close(reading)
    owner.tell("0")
    owner.ends_well()


TICKET = struct.Struct("=Q2QQ3Q")    # magic, name, owner's secret; secret, address, id

LENDER = SHARING + """
memory, size = allocate(8 * MIB), 8 * MIB
put(memory, b"M" * size)
handle = give(memory)
before = len(os.listdir("/proc/self/fd"))
say(handle)
hear()
for turn in range(40):                                   # during the attack
    put(memory, bytes([turn]) * size)
    assert get(memory, size) == bytes([turn]) * size
say(before)
hear()
assert get(memory, size) == b"u" * size
while len(os.listdir("/proc/self/fd")) > before:         # the attackers' connections may close late
    os.sched_yield()
say("clean")
hear()
"""

BORROWER = SHARING + """
handle = hear()
for turn in range(10):
    memory = take(handle)
    get(memory, 8 * MIB)
    call("cuIpcCloseMemHandle", memory)
say("ready")
hear()
memory = take(handle)
call("cuMemsetD8_v2", memory, ord("u"), 8 * MIB)
call("cuCtxSynchronize")
say("written")
hear()
"""

# A process without a handle: connects, is silent or sends garbage, disconnects, and never waits.
INTRUDER = """
import json, os, random, socket, sys
name = sys.argv[1].encode()
dice = random.Random(1)
held = []
while True:
    came = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        came.connect(b"\\0" + name)
        for _ in range(dice.randrange(3)):
            socket.send_fds(came, [dice.randbytes(dice.choice([1, 23, 24, 25, 4000]))],
                            [2] * dice.randrange(4))
    except BrokenPipeError:
        pass
    held.append(came)
    if len(held) > 300:
        held.pop(dice.randrange(len(held))).close()
"""

PATIENT = SHARING + """
import threading
silent, good = hear()
# the importer gives up on a silent owner after seconds
for attempt in range(5):
    waits = threading.Thread(target=take, args=(silent, INVALID))
    waits.start()
    hear()
    memory = take(good)
    waiting = waits.is_alive()
    assert get(memory, 5) == b"MMMMM"
    call("cuIpcCloseMemHandle", memory)
    say(waiting)
    waits.join()
    say("answered")
    if waiting:
        break
"""


def test_ipc_socket_without_a_listener_is_removed_only_when_old(site: Site) -> None:
    """The process of a new socket may be about to listen; that of an old socket was killed. Files
    other than sockets stay."""
    site.start()
    young, old, file = (
        Path(f"/dev/shm/nvshare-{name:016x}{os.getpid():016x}") for name in range(3))
    try:
        for path in (young, old):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.bind(str(path))
        file.touch()
        for path in (old, file):
            os.utime(path, (0, 0))
        owner = Program(site, QUIET)
        assert file_of(owner.hears()).is_socket()
        assert [path.exists() for path in (young, old, file)] == [True, False, True]
        owner.tell("0")
        owner.ends_well()
    finally:
        for path in (young, old, file):
            path.unlink(missing_ok=True)


def name_of(handle: str) -> bytes:
    _, high, low, *_ = TICKET.unpack_from(bytes.fromhex(handle))
    return b"nvshare-%016x%016x" % (high, low)


def file_of(handle: str) -> Path:
    return Path("/dev/shm") / name_of(handle).decode()


def test_memory_is_exported_by_ipc_while_an_intruder_holds_connections(site: Site) -> None:
    """A process that holds hundreds of connections and sends no valid request."""
    site.start()
    lender, borrower = Program(site, LENDER), Program(site, BORROWER)
    handle = lender.hears()
    intruder = subprocess.Popen([sys.executable, "-c", INTRUDER, name_of(handle).decode()])
    try:
        lender.tell("0")
        borrower.tell(json.dumps(handle))
        assert borrower.hears() == "ready"
        lender.hears()
        borrower.tell("0")
        assert borrower.hears() == "written"
        assert intruder.poll() is None
    finally:
        kill(intruder)
    lender.tell("0")
    assert lender.hears() == "clean"
    lender.tell("0")
    borrower.tell("0")
    borrower.ends_well()
    lender.ends_well()


def test_silent_ipc_exporter_delays_only_imports_from_that_process(site: Site) -> None:
    site.start()
    lender, patient = Program(site, QUIET), Program(site, PATIENT)
    good = lender.hears()
    silent = TICKET.pack(TICKET.unpack_from(bytes.fromhex(good))[0], 1, os.getpid(), 2, 3, 4, 5)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as owner:
        owner.bind(b"\0" + name_of(silent.hex()))
        owner.listen()
        patient.tell(json.dumps([silent.ljust(64, b"\0").hex(), good]))
        waiting = False
        for _ in range(5):
            came, _ = owner.accept()
            # the request lacks the secret by which the owner is proved
            assert came.recv(100) == silent[-24:]
            patient.tell("0")
            waiting = patient.hears()
            came.send(b"nothing")
            came.close()
            assert patient.hears() == "answered"
            if waiting:
                break
        assert waiting
    patient.ends_well()
    lender.tell("0")
    lender.ends_well()
