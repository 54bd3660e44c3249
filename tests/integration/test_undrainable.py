# SPDX-License-Identifier: Apache-2.0
"""A program with work that never ends is pinned. Captures of ended threads delay no hand-over."""

import pytest

from nvshared.hook.protocol import Flag, OrderRecord, Type
from nvshared.scheduler.events import PinReason
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.fakehook import pump
from tests.integration.programs import Program

SIZE = 240 * MIB

# One kernel is always in flight. It ends when the program writes a word on the card; the next
# kernel is queued before that.
ENDLESS = f'''
import select, threading, time
SIZE = {SIZE}
waiting, work, words = kernel("wait_flag"), new_stream(), new_stream()
address, flag = allocate(SIZE), allocate(4)
fill(address, 7, SIZE)
call("cuMemsetD32_v2", flag, c_uint(0), 1)
call("cuCtxSynchronize")                # the streams do not wait for the NULL stream
rounds, events = 0, [c_void_p(), c_void_p()]
for one in events:
    call("cuEventCreate", byref(one), 2)
def launch_next():
    launch(waiting, work, flag, rounds + 1)
    call("cuEventRecord", events[rounds % 2], work)
def feed():
    "Ends the kernel in flight by the word that it waits for, after the next kernel is queued."
    global rounds
    rounds += 1
    launch_next()
    call("cuMemsetD32Async", flag, c_uint(rounds), 1, words)
    while cuda.cuEventQuery(events[(rounds - 1) % 2]):
        time.sleep(0.001)
def feed_until_told():
    while not select.select([0], [], [], 0)[0]:
        feed()
    os.read(0, 1)
launch_next()
'''
ENDS = '''
call("cuMemsetD32Async", flag, c_uint(rounds + 1), 1, words)
call("cuStreamSynchronize", work)
assert get(address, SIZE) == bytes([7]) * SIZE
'''


def test_undrainable_program_is_pinned_and_others_use_the_remaining_memory(site: Site) -> None:
    site.start("--tq", "100ms", "--stuck-after", "1h", "--swap-budget", "4GiB",
               NVSHARE_TEST_CONSTANTS="nvshared.scheduler.turns:DRAIN_PATIENCE=10000")
    program = Program(site, ENDLESS + "say('begun')\n" "feed_until_told()\n" + ENDS)
    assert program.hears() == "begun"
    large = site.wanting(800 * MIB)
    assert program.popen.stderr is not None
    line = program.popen.stderr.readline()
    assert "this program stays on GPU 0 from now on: its work does not end" in line
    small = site.wanting(500 * MIB)
    pump([large, small], lambda: small.running)
    assert not large.running
    program.finish()
    pump([large, small], lambda: large.running)
    assert "stays on the GPU from now on" in site.log.read_text()


def test_undrainable_client_is_not_paced(site: Site) -> None:
    daemon = FakeDaemon(site)
    program = Program(site, ENDLESS + "say('begun')\n"
                      "feed_until_told()\n" + '''
for _ in range(300):
    feed()
pause("fed")
''' + ENDS)
    daemon.accept()
    while (memory := daemon.until(Type.MEMORY).memory).resident < SIZE:
        continue
    assert program.hears() == "begun"
    daemon.send(OrderRecord(Type.STOP))
    reopened = daemon.until(Type.REOPENED)
    assert reopened.memory.pin_reason is PinReason.NONE
    assert reopened.memory.resident == memory.resident
    daemon.send(OrderRecord(Type.RUN, flags=Flag.PACE))
    program.go_on()
    assert program.hears() == "fed"     # otherwise two kernels would end in half a second
    daemon.let_finish(program)


ABANDONED = '''
import threading
stream, address, status = new_stream(), allocate(64 * MIB), c_int()
fill(address, 7, 64 * MIB)
def begin():
    call("cuCtxSetCurrent", context)
    call("cuStreamBeginCapture_v2", stream, c_int(MODE))
thread = threading.Thread(target=begin)
thread.start()
thread.join()
away()
call("cuStreamIsCapturing", stream, byref(status))
assert status.value == 0
call("cuMemsetD8Async", address, c_uint(8), 32 * MIB, stream)
call("cuStreamSynchronize", stream)
assert get(address, 64 * MIB) == bytes([8]) * (32 * MIB) + bytes([7]) * (32 * MIB)
'''


# pthread_exit() ends only the main thread: the other thread goes on, and ends the process.
MAIN_ABANDONED = """
import threading, time, traceback
stream, status = new_stream(), c_int()
def state_of_main_thread():
    with open(f"/proc/self/task/{os.getpid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
def goes_on():
    try:
        call("cuCtxSetCurrent", context)
        while state_of_main_thread() != "Z":
            time.sleep(0.001)
        away()
        call("cuStreamIsCapturing", stream, byref(status))
        assert status.value == 0
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
fill(allocate(64 * MIB), 7, 64 * MIB)
call("cuStreamBeginCapture_v2", stream, c_int(0))
threading.Thread(target=goes_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.parametrize("body", [ABANDONED.replace("MODE", "1"), MAIN_ABANDONED],
                         ids=["thread", "main thread"])
def test_capture_begun_by_an_ended_thread_delays_no_hand_over(site: Site, body: str) -> None:
    site.start("--tq", "100ms")
    program = Program(site, body)
    assert program.hears() == "away"
    site.holding().close()
    program.finish()
