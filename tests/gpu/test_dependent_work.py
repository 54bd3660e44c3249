# SPDX-License-Identifier: Apache-2.0
"""Calls of a thread for which work in flight waits have the results of the real driver: alone,
beside a rival that wants the card, and while the thread captures.

The calls and the work are defined in tests/integration/test_dependent_work.py. The duration of each
call is recorded.
"""

import json
from typing import Any

import pytest

from bench.harness import rival, sharing
from tests.gpu.running import python, said
from tests.gpu.test_sharing import Record
from tests.integration.programs import PRELUDE
from tests.integration.test_dependent_work import CALLS, DEPENDENT, EXPORTS, WORK

DRIVER_PATIENCE_S = 4                   # the work ends then: some calls of the driver wait for it
LATER_THAN_A_STOP_S = 1.0
ROUNDS = f'''
faulthandler.cancel_dump_traceback_later()
faulthandler.dump_traceback_later(240, exit=True)
CAPTURING, PAUSE, WORKS, CALLS = json.loads(sys.argv[1])
def took(work, called):
    global address, another
    shared, graph = c_uint64(), c_uint64()
    call("cuMemAlloc_v2", byref(shared), 4 * MIB)
    call("cuMemsetD8_v2", shared, c_uint(7), 4 * MIB)
    address = shared
    if called == "destroys_a_context":
        another = new_context()
        call("cuCtxSetCurrent", home)
    call("cuMemAllocAsync", byref(small), 8 * MIB, stream)
    call("cuStreamSynchronize", stream)
    reached.value = 0
    eval(work)()
    if CAPTURING:
        capture()
    time.sleep(PAUSE)
    timer = threading.Timer({DRIVER_PATIENCE_S}, lambda: setattr(reached, "value", 1))
    timer.start()
    began = time.monotonic()
    result = eval(called)()
    seconds = time.monotonic() - began
    timer.cancel()
    if CAPTURING:
        capture_ends()
    reached.value = 1
    call("cuStreamSynchronize", stream)
    assert get(shared, 4 * MIB) == bytes([7]) * (4 * MIB)
    return result, round(seconds, 2)
wait_in(stream)                         # loads the module while nothing waits
reached.value = 1
call("cuStreamSynchronize", stream)
say({{called: [took(work, called) for work in WORKS] for called in CALLS}})
'''
# The module is loaded by the first round, as loading may wait for work.
LOADED_ONCE = DEPENDENT + '''
def wait_in(stream, loaded=[]):
    if not loaded:
        module, waiting = c_void_p(), c_void_p()
        with open("libhook/demo/kernels.ptx", "rb") as file:
            call("cuModuleLoadData", byref(module), file.read())
        call("cuModuleGetFunction", byref(waiting), module, b"nvshare_wait_flag")
        loaded.append(waiting)
    values = [c_uint64(flag.value), c_uint64(1)]
    passed = (c_void_p * 2)(*(ctypes.cast(byref(value), c_void_p) for value in values))
    call("cuLaunchKernel", loaded[0], *(1, 1, 1, 1, 1, 1, 0), stream, passed, None)
def destroys_a_context():
    return cuda.cuCtxDestroy_v2(another)
def loads():
    with open("libhook/demo/kernels.ptx", "rb") as file:
        return cuda.cuModuleLoadData(byref(other), file.read())
'''
WAIT_THEMSELVES = ["destroys_a_context", "loads"]
RIVAL = PRELUDE + '''
import select
address = c_uint64()
call("cuMemAlloc_v2", byref(address), 900 * MIB)
data = noise(64 * MIB)                   # a part of its memory, as the whole takes long
put(address, data)
while not select.select([sys.stdin], [], [], 0)[0]:
    call("cuMemsetD8_v2", address.value + len(data), c_uint(1), 64 * MIB)
    call("cuCtxSynchronize")
assert get(address, len(data)) == data
'''
Answers = dict[str, list[tuple[int, float]]]


def answers(
    capturing: bool, pause: float, works: list[str], environment: dict[str, str] | None = None
) -> Answers:
    """The result and the duration of each driver call, for each kind of work."""
    given = json.dumps([capturing, pause, works, [*CALLS, *EXPORTS, *WAIT_THEMSELVES]])
    text = said([*python(PRELUDE + LOADED_ONCE + ROUNDS), given], environment, limit_s=260)
    found: dict[str, list[Any]] = json.loads(text)
    return {called: [(result, took) for result, took in each] for called, each in found.items()}


def compare(record: Record, name: str, driver: Answers, library: Answers) -> None:
    for called, each in library.items():
        record(f"{called}, {name}", {"driver": driver[called], "library": each})
    assert {called: [result for result, _ in each] for called, each in library.items()} \
        == {called: [result for result, _ in each] for called, each in driver.items()}


@pytest.mark.parametrize("capturing", [False, True], ids=["plain", "capturing"])
def test_call_returns_the_drivers_result_while_gpu_work_waits_for_the_calling_thread(
    capturing: bool, record: Record
) -> None:
    driver = answers(capturing, 0, WORK)
    with sharing() as daemon:
        library = answers(capturing, 0, WORK, daemon.environment)
    compare(record, f"alone, capturing: {capturing}", driver, library)


@pytest.mark.parametrize("capturing", [False, True], ids=["plain", "capturing"])
def test_call_returns_the_drivers_result_while_another_client_waits_for_the_card(
    capturing: bool, record: Record
) -> None:
    driver = answers(capturing, 0, WORK[:1])
    with sharing("--tq", "500ms", "--capacity", "1GiB") as daemon, \
            rival(python(RIVAL), daemon.environment) as other:
        library = answers(capturing, LATER_THAN_A_STOP_S, WORK[:1], daemon.environment)
    assert other[0].code == 0, other[0].errors
    compare(record, f"beside a rival, capturing: {capturing}", driver, library)
