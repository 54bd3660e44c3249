# SPDX-License-Identifier: Apache-2.0
"""Work in flight may wait until a thread of the program sets a word. Each driver call of that
thread returns as early as without the library: in a turn, a drain and a capture of the thread."""

import socket
import threading

import pytest

from nvshared.hook.packets import decode_report, encode_order
from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.fakedaemon import FakeDaemon
from tests.integration.programs import PRELUDE, Program
from tests.integration.test_contexts import WAITING

OUT_OF_MEMORY = 2
# A kernel waits for a word in host memory that this thread sets last. If the call does not return,
# the program ends and prints the stacks of its threads.
DEPENDENT = WAITING.removeprefix(PRELUDE) + '''
import faulthandler, select
faulthandler.dump_traceback_later(120, exit=True)

address, other, small, array = c_uint64(allocate(64 * MIB)), c_uint64(), c_uint64(), c_uint64()
stream, side, lasting = new_stream(), new_stream(), new_stream()
fill(address, 7, 64 * MIB)
exportable = c_uint64(map_memory(64 * MIB, handles=1)[1])
another = new_context()
call("cuCtxSetCurrent", home)
call("cuMemAllocAsync", byref(small), 8 * MIB, stream)
call("cuStreamSynchronize", stream)

def spins():
    wait_in(stream)
def waits_for_a_value():
    call("cuStreamWaitValue32_v2", stream, flag.value, c_uint(1), c_uint(0))
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)
@HOST_FUNCTION
def needs_the_interpreter(_):
    while not reached.value:
        time.sleep(0.001)
def calls_back():
    call("cuLaunchHostFunc", stream, needs_the_interpreter, None)

def allocates(size):
    return lambda: cuda.cuMemAlloc_v2(byref(other), c_size_t(size))
def makes_an_array():
    return cuda.cuArrayCreate_v2(byref(array), (c_uint64 * 3)(1024, 1024, 1 << 32 | 1))
def exports_by_handle():
    return cuda.cuIpcGetMemHandle(byref((ctypes.c_char * 64)()), address)
def exports_by_descriptor():
    return cuda.cuMemExportToShareableHandle(byref(c_int()), exportable, c_int(1), c_uint64(0))
def allocates_managed():
    return cuda.cuMemAllocManaged(byref(other), c_size_t(8 * MIB), c_uint(1))
def creates():
    properties = Properties(1, 0, Location(1, 0))
    return cuda.cuMemCreate(byref(other), c_size_t(8 * MIB), byref(properties), c_uint64(0))
def allocates_in_a_stream(size):
    return lambda: cuda.cuMemAllocAsync(byref(other), c_size_t(size), side)
def frees_in_a_stream():
    return cuda.cuMemFreeAsync(small, side)
def asks():
    return cuda.cuMemGetInfo_v2(byref(other), byref(array))
def launches_until_told():
    while not select.select([0], [], [], 0)[0]:
        call("cuMemsetD8Async", address, c_uint(7), 16, side)

def capture():
    call("cuStreamBeginCapture_v2", lasting, c_int(RELAXED))
def capture_ends():
    graph = c_void_p()
    call("cuStreamEndCapture", lasting, byref(graph))
'''
ENDING = '''
reached.value = 1
call("cuStreamSynchronize", stream)
assert get(address, MIB) == bytes([7]) * MIB
'''

# Calls, and the driver's results. cuCtxDestroy and cuModuleLoad are missing, because the driver
# itself waits for work in flight in these calls.
CALLS = {
    "allocates(8 * MIB)": 0, "allocates(1 << 40)": OUT_OF_MEMORY, "makes_an_array": 0,
    "allocates_managed": 0, "creates": 0, "allocates_in_a_stream(8 * MIB)": 0,
    "allocates_in_a_stream(1 << 40)": OUT_OF_MEMORY, "frees_in_a_stream": 0, "asks": 0,
}
EXPORTS = ["exports_by_handle", "exports_by_descriptor"]
WORK = ["spins", "waits_for_a_value", "calls_back"]


class Answering(threading.Thread):
    """Answers COMMIT requests of the library with a grant, and each STOPPED with RUN.

    `said` has the types of the library's reports.
    """

    def __init__(self, daemon: FakeDaemon) -> None:
        super().__init__(daemon=True)
        self.daemon_ = daemon
        self.said: list[Type] = []
        self.stops_before_answer = False
        self.start()

    def run(self) -> None:
        daemon = self.daemon_
        while packet := daemon.connection.recv(4096):
            record = decode_report(packet)
            self.said.append(record.type)
            if record.type is Type.COMMIT:
                if self.stops_before_answer:
                    self.stops_before_answer = False
                    daemon.connection.send(encode_order(OrderRecord(Type.STOP)))
                daemon.connection.send(encode_order(daemon.answer(record)))
            if record.type is Type.STOPPED:
                daemon.connection.send(encode_order(OrderRecord(Type.RUN)))
        daemon.connection.close()

    def hears_all(self) -> list[Type]:
        self.join()
        return self.said


def dependent(site: Site, body: str) -> tuple[FakeDaemon, Answering, Program]:
    """Starts a program that defines the calls of CALLS and runs `body`."""
    daemon = FakeDaemon(site)
    program = Program(site, DEPENDENT + body + ENDING)
    daemon.accept()
    site.sockets.remove(daemon.connection)      # the thread closes this socket
    return daemon, Answering(daemon), program


@pytest.mark.parametrize("work", WORK)
def test_driver_call_returns_while_gpu_work_waits_for_the_calling_thread(
    site: Site, work: str
) -> None:
    calls = [*CALLS, *EXPORTS]
    body = "\n".join([f"{work}()", *(f"say({call}())" for call in calls)])
    _, answering, program = dependent(site, body)
    for call in calls:
        assert program.hears() == CALLS.get(call, 0), call
    program.ends_well()
    assert Type.REOPENED not in answering.hears_all()


def said_while_drained(
    site: Site, calls: list[str], capturing: bool, *behind: OrderRecord
) -> list[Type]:
    """The library's reports during drains, one for each call, in which the call returned the
    driver's result. `behind`: orders sent behind each STOP."""
    begins, ends = ("capture()", "capture_ends()") if capturing else ("", "")
    daemon, answering, program = dependent(site, "".join(
        f"reached.value = 0\nspins()\n{begins}\naway()\nsay({call}())\n{ends}\n"
        "reached.value = 1\ncall('cuStreamSynchronize', stream)\n" for call in calls))
    for call in calls:
        assert program.hears() == "away"
        daemon.send(OrderRecord(Type.STOP))
        wait_until(daemon.has_no_unread_order)      # on a busy machine the program could end before
        daemon.send(*behind)
        program.go_on()
        assert program.hears() == CALLS.get(call, 0), call
    program.ends_well()
    return answering.hears_all()


@pytest.mark.parametrize("capturing", [False, True])
def test_driver_call_returns_in_a_drain_while_gpu_work_waits_for_the_calling_thread(
    site: Site, capturing: bool
) -> None:
    # The EVICT behind the STOP moves memory, so it waits for the end of the drain.
    said = said_while_drained(
        site, [*CALLS], capturing, OrderRecord(Type.EVICT, number=2, room=512 * MIB, host=1 << 40))
    assert said.count(Type.STOPPED) + said.count(Type.REOPENED) == len(CALLS)


@pytest.mark.parametrize("capturing", [False, True])
def test_memory_export_returns_during_a_drain_while_gpu_work_waits_for_the_calling_thread(
    site: Site, capturing: bool
) -> None:
    # An export that waits at the gate always reopens it, a busy machine does so now and then.
    assert any(Type.REOPENED not in said_while_drained(site, EXPORTS, capturing)
               for _ in range(3))


@pytest.mark.parametrize("export", EXPORTS)
def test_memory_export_does_not_wait_at_the_gate_when_stop_arrives_before_the_commit_reply(
    site: Site, export: str
) -> None:
    """The drain reads the reply to the export's request, so the export goes on while the gate is
    shut and the work in flight waits for its thread."""
    _, answering, program = dependent(site, f"spins()\naway()\nsay({export}())\n")
    assert program.hears() == "away"
    answering.stops_before_answer = True
    program.go_on()
    assert program.hears() == 0
    program.ends_well()
    assert Type.REOPENED not in answering.hears_all()


def test_allocation_fails_in_bounded_time_while_a_deferred_free_waits_for_the_calling_thread(
    site: Site
) -> None:
    """Memory freed during a capture is kept until its work is done."""
    _, answering, program = dependent(
        site, "call('cuMemAlloc_v2', byref(other), 8 * MIB)\nspins()\ncapture()\n"
        "call('cuMemFree_v2', other)\ncapture_ends()\nsay(allocates(1 << 40)())\n")
    assert program.hears() == OUT_OF_MEMORY
    program.ends_well()
    answering.hears_all()


def test_launch_passes_the_closed_gate_when_work_in_flight_waits_for_the_launching_thread(
    site: Site
) -> None:
    daemon, answering, program = dependent(site, "spins()\naway()\nlaunches_until_told()\n")
    assert program.hears() == "away"
    program.go_on()
    daemon.send(OrderRecord(Type.STOP))
    wait_until(lambda: Type.REOPENED in answering.said)     # the drain was abandoned
    program.finish()
    answering.join()


# Calls that wait for the daemon or for memory of the card without a limit of time.
LONG_WAITS = {
    "attaching to another GPU": "cuda.cuDevicePrimaryCtxRetain(byref(other), 1)",
    "a context that does not fit": "cuda.cuCtxCreate_v2(byref(other), 0, 0)",
}


@pytest.mark.parametrize("wait", LONG_WAITS)
def test_drain_times_out_while_gpu_work_waits_for_a_thread_that_a_silent_process_blocks(
    site: Site, wait: str
) -> None:
    site.environment["NVSHARE_SIM_FAIL"] = "cuCtxCreate_v2:2+"
    daemon, answering, program = dependent(
        site, f"spins()\naway()\nsay({LONG_WAITS[wait]})\n")
    assert program.hears() == "away"
    site.socket.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(site.socket))
        silent.listen()
        program.go_on()
        daemon.send(OrderRecord(Type.STOP))
        wait_until(lambda: Type.REOPENED in answering.said)
