# SPDX-License-Identifier: Apache-2.0
"""Memory that is pinned on the card: what is granted of it counts until it is there, no longer."""

import select
import signal
from collections.abc import Callable
from pathlib import Path

from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import Hook
from tests.integration.test_life import FUTEX
from tests.integration.test_own_memory import Program

# What is pinned as long as it exists, by several threads: each frees its own while others ask.
THREADS = '''
import signal, threading
refused = []
class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]
context = c_void_p()
call("cuCtxGetCurrent", byref(context))
def pin_and_free(times):
    call("cuCtxSetCurrent", context)
    for _ in range(times):
        array = c_void_p()
        shape = Descriptor(1024, MIB // 4096, 0x20, 1)
        error = cuda.cuArrayCreate_v2(byref(array), byref(shape))
        if error:
            refused.append(error)
        else:
            call("cuArrayDestroy", array)
def start(threads, times):
    started = [threading.Thread(target=pin_and_free, args=(times,)) for _ in range(threads)]
    for thread in started:
        thread.start()
    return started
def end(threads):
    for thread in threads:
        thread.join()
    assert not refused, (len(refused), set(refused))
'''
CHURNED = THREADS + "end(start(4, 400))"
# Who is held is in a handler, where it waits for another signal.
HELD = THREADS + '''
libc = ctypes.CDLL(None)
libc.signal.argtypes = c_int, c_void_p
libc.signal(signal.SIGUSR1, ctypes.cast(libc.pause, c_void_p))
libc.signal(signal.SIGUSR2, ctypes.cast(libc.getpid, c_void_p))
def say(what):
    print(json.dumps(what), flush=True)
    sys.stdin.readline()
say("ready")
asking = start(ASKING, 1)
say([thread.native_id for thread in asking])
signal.pthread_kill(asking[0].ident, signal.SIGUSR1)
say("held")
for thread in start(CHURNING, 400):
    thread.join()
signal.pthread_kill(asking[0].ident, signal.SIGUSR2)
end(asking)
'''


def serve(hook: Hook, program: Program) -> None:
    """Until the program ends.

    Where host memory is short the hook had to ask for its 600 MiB, was granted more than that, and
    is asked for the rest.
    """
    while program.popen.poll() is None:
        if select.select([hook.socket], [], [], 0.1)[0]:
            record = hook.hear()
            assert record is not None
            hook.obey(record)
    program.ends_well()


def hold_between(
    site: Site, asking: int, churning: int, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """Threads ask to pin 1 MiB each, of which the first stands still before it knows the answer.

    It goes on when others have pinned and freed 400 MiB each.
    """
    daemon = site.start("--tq", "1")
    hook = site.hook()
    assert hook.hello() is not None
    assert hook.allocate(600 * MIB)
    program = Program(site, f"ASKING, CHURNING = {asking}, {churning}\n{HELD}")
    tasks = Path(f"/proc/{program.popen.pid}/task")

    def waits_in(task: int) -> str:
        return (tasks / str(task) / "syscall").read_text().split()[0]

    assert program.hears() == "ready"
    daemon.send_signal(signal.SIGSTOP)
    program.go_on()
    ids = program.hears()
    eventually(lambda: all(waits_in(task) == str(FUTEX) for task in ids))
    program.go_on()
    assert program.hears() == "held"
    eventually(lambda: waits_in(ids[0]) not in {str(FUTEX), "running"})
    daemon.send_signal(signal.SIGCONT)
    program.go_on()
    serve(hook, program)


def test_pinning_again_after_a_free_is_not_refused(site: Site) -> None:
    """A card of 1 GiB, of which somebody else needs 600 MiB, and never more than four are pinned.

    In all 1,600 MiB are. While a thread is on its way from the answer to its memory, what others
    pin counts on, also when it is freed: on a busy machine that may be a hundred of theirs.
    """
    site.start("--tq", "1")
    hook = site.hook()
    assert hook.hello() is not None
    assert hook.allocate(600 * MIB)
    serve(hook, Program(site, CHURNED))


# What is pinned: in the current context, but for `physical`.
CONTEXTS = '''
class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]
class Descriptor3D(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
                ("format", c_uint), ("channels", c_uint), ("flags", c_uint)]
def used():
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return total.value - free.value
def array(size):
    made = c_void_p()
    call("cuArrayCreate_v2", byref(made), byref(Descriptor(4096, size // 65536, 0x20, 4)))
    return made
def mipmap(size):
    made, shape = c_void_p(), Descriptor3D(4096, size // 65536, 0, 0x20, 4, 0)
    call("cuMipmappedArrayCreate", byref(made), byref(shape), c_uint(1))
    return made
def managed(size):                       # where the processor may not have it meanwhile
    made = c_uint64()
    call("cuMemAllocManaged", byref(made), size, c_uint(1))
    return made
def physical(size):                      # for sparse arrays: cannot leave
    made, tiles = c_uint64(), Properties(1, 0, Location(1, 0))
    tiles.flags[2] = 1
    call("cuMemCreate", byref(made), size, byref(tiles), 0)
    return made
def enter():
    made = c_void_p()
    call("cuCtxCreate_v2", byref(made), 0, 0)
    return made
'''


def test_pinned_memory_is_freed_with_its_context(site: Site) -> None:
    """And what is not, or in another one, stays. In all more is made than the card has."""
    site.environment = {**site.environment, "NVSHARE_SIM_CONCURRENT": "0"}
    site.start()
    program = Program(site, CONTEXTS + '''
kept = array(64 * MIB)
before = used()
for make in (array, mipmap, managed):
    for _ in range(5):
        own = enter()
        make(256 * MIB)
        make(64 * MIB)
        assert used() == before + 320 * MIB
        call("cuCtxDestroy_v2", own)
        assert used() == before, make.__name__
own = enter()
handle = physical(128 * MIB)
call("cuCtxDestroy_v2", own)
assert used() == before + 128 * MIB
call("cuMemRelease", handle)
call("cuArrayDestroy", kept)
assert used() == before - 64 * MIB
# In the device's own context, which is let go, and then reset.
for end in ("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2"):
    array(256 * MIB)
    handle = physical(128 * MIB)
    call(end, 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    assert used() == before + 64 * MIB, end
    call("cuMemRelease", handle)
    assert used() == before - 64 * MIB
''')
    program.ends_well()


def test_pinned_memory_freed_with_its_context_is_counted_once(site: Site) -> None:
    """Neither by who destroys it then, nor by what has its name afterwards."""
    site.start()
    program = Program(site, CONTEXTS + '''
kept = array(64 * MIB)
before, own = used(), enter()
gone = array(128 * MIB)
call("cuCtxDestroy_v2", own)
assert used() == before
cuda.cuArrayDestroy(gone)                # whatever it answers
assert used() == before
fresh = [array(32 * MIB) for _ in range(4)]
assert used() == before + 128 * MIB
for one in fresh:
    call("cuArrayDestroy", one)
assert used() == before
call("cuArrayDestroy", kept)
assert used() == before - 64 * MIB
''')
    program.ends_well()


def test_impossible_pin_request_is_refused_and_the_client_goes_on(site: Site) -> None:
    site.start("--tq", "1")
    Program(site, THREADS + '''
shape = Descriptor(1 << 57, 0, 1, 1)
call("cuArrayCreate_v2", byref(c_void_p()), byref(shape), result=2)
pin_and_free(1)
assert not refused
''').ends_well()
    assert "dropped" not in site.log.read_text()
