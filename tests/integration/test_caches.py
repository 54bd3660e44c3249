# SPDX-License-Identifier: Apache-2.0
"""The trim module frees a framework's cached memory at the library's request, at no wrong moment.

The framework is a stand-in, as PyTorch does not run on a simulated card; tests/gpu has real ones.
The test plays the daemon, so that each order is sent at a chosen moment.
"""

import json
from collections.abc import Callable

import pytest

from nvshared import library
from nvshared.hook.protocol import OrderRecord, ReportRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakedaemon import FOR_EVER, FakeDaemon
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import FUTEX, Program

ROOM = 900 * MIB
MUCH = 480 * MIB                        # bytes: less than the program has allocated with its cache
# NVSHARE_EXAMINE=0, because reading memory is slow on the simulated card and tested elsewhere.
WANTED = {"NVSHARE_TRIM_CACHES": "1", "NVSHARE_EXAMINE": "0", "PYTHONPATH": str(library.program())}


@pytest.fixture
def daemon(site: Site) -> FakeDaemon:
    site.environment = {**site.environment, **WANTED}
    return FakeDaemon(site, ROOM, host=128 * MIB)


STAND_IN = '''
import importlib.util, threading, time, types
importlib.util.find_spec("torch")       # as `import torch` does; torch need not be installed
class Caching:
    "Keeps freed blocks for later allocations of the same size."
    def __init__(self):
        self.sizes, self.kept, self.lock = {}, [], threading.Lock()
        self.looked = self.emptied = 0
    def take(self, size, value=None):
        with self.lock:
            for address in self.kept:
                if self.sizes[address] == size:
                    self.kept.remove(address)
                    break
            else:
                memory = c_uint64()
                call("cuMemAlloc_v2", byref(memory), size)
                address = memory.value
                self.sizes[address] = size
        if value is not None:
            call("cuMemsetD8_v2", address, value, size)
        return address
    def give(self, address):
        self.kept.append(address)
    def figures(self, device):
        assert device == 0
        self.looked += 1
        held = sum(self.sizes.values())
        return {"reserved_bytes.all.current": held,
                "active_bytes.all.current": held - sum(map(self.sizes.get, self.kept)),
                "inactive_split_bytes.all.current": 0}
    def empty(self):
        with self.lock:
            while self.kept:
                address = self.kept.pop()
                call("cuMemFree_v2", address)
                del self.sizes[address]
            self.emptied += 1
    def use(self, device):
        call("cuCtxSetCurrent", context)
    def counts(self):
        return [self.looked, self.emptied]
caching = Caching()
def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
torch_cuda = types.SimpleNamespace(
    is_initialized=lambda: True, set_device=caching.use, empty_cache=lambda: caching.empty(),
    memory_stats=lambda device: caching.figures(device))
module("torch", cuda=torch_cuda)
def report():
    "Prints the counts 20 ms after they equal the counts that the test sends, or after a timeout."
    expected = json.loads(sys.stdin.readline())
    until = time.monotonic() + PATIENCE
    while caching.counts() != expected and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.02)
    say(caching.counts())
kept, cached = caching.take(100 * MIB, 3), caching.take(400 * MIB)
caching.give(cached)
'''.replace("PATIENCE", str(PATIENCE // 4))
# The library requests nothing before the trim thread waits for requests. Three looks in sequence
# must find a futex wait, because a single futex wait may be for Python's lock.
READY = f'''
for thread in threading.enumerate():
    looks = 0
    while thread.name == "nvshare_caches" and looks < 3:
        time.sleep(0.005)
        with open(f"/proc/self/task/{{thread.native_id}}/syscall") as file:
            looks = looks + 1 if file.read().startswith("{FUTEX} ") else 0
say("ready")
'''
STEPS = '''
stream = new_stream()
c_library = ctypes.PyDLL(None)          # keeps Python's lock during calls
def wait():
    "Waits for a line of the test; no other Python thread runs meanwhile."
    sys.setswitchinterval(3600)         # between the two calls no other thread gets the lock
    c_library.write(1, b"0\\n", 2)
    c_library.read(0, ctypes.create_string_buffer(1), 1)
    sys.setswitchinterval(.005)
def begin():
    call("cuStreamBeginCapture_v2", stream, 0)
def end():
    graph = c_void_p()
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphDestroy", graph)
'''
Start = Callable[..., Program]


@pytest.fixture
def start(site: Site, daemon: FakeDaemon) -> Start:
    """A program whose framework has 400 MiB cached, and 100 in use."""

    def begin(body: str, before: str = "") -> Program:
        program = Program(site, STAND_IN + before + READY + body)
        daemon.accept(idle_window=FOR_EVER)
        assert program.hears() == "ready"
        return program

    return begin


def counted(program: Program, expected: list[int]) -> None:
    """Expects how often the framework's statistics were read, and its cache was emptied.

    Each request to trim reads the statistics once, and once more after it emptied the cache.
    """
    program.tell(json.dumps(expected))
    assert program.hears() == expected


def evict_and_load(daemon: FakeDaemon) -> ReportRecord:
    """Evicts less than the cached memory and loads it: another client had a turn."""
    daemon.stop()
    daemon.move(Type.EVICT, MUCH)
    return daemon.move(Type.LOAD, ROOM)


FOUR_REPORTS = "for _ in range(4): report()"


def test_framework_caches_are_trimmed_when_another_client_begins_to_wait(
    start: Start, daemon: FakeDaemon
) -> None:
    program = start(FOUR_REPORTS + "\nassert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)")
    counted(program, [0, 0])
    daemon.run(contended=True)
    counted(program, [2, 1])
    daemon.move(Type.LOAD, ROOM)
    counted(program, [2, 1])
    daemon.run()
    daemon.run(contended=True)          # no cached memory is left
    counted(program, [3, 1])
    program.ends_well()


def test_trim_module_that_the_program_itself_imports_after_its_start_trims_caches(
    site: Site, start: Start, daemon: FakeDaemon
) -> None:
    folder = site.environment.pop("PYTHONPATH")
    program = start("report()", f"sys.path.append({folder!r})\nimport nvshare_caches\n")
    daemon.run(contended=True)
    counted(program, [2, 1])
    program.ends_well()


def test_framework_caches_that_refill_within_the_turn_are_trimmed_in_fewer_later_turns(
    start: Start, daemon: FakeDaemon
) -> None:
    program = start('''
for _ in range(15):
    report()
    if not caching.kept:
        caching.give(caching.take(400 * MIB))
''')
    looked = emptied = 0
    for empties in (1, 0, 1, 0, 0, 1, 0):
        daemon.run(contended=True)
        looked, emptied = looked + 1 + empties, emptied + empties
        counted(program, [looked, emptied])
        counted(program, [looked, emptied])     # the cache is full again before the turn ends
        evict_and_load(daemon)
    counted(program, [looked, emptied])
    program.ends_well()


def test_framework_caches_are_trimmed_only_where_memory_would_be_evicted(
    start: Start, daemon: FakeDaemon
) -> None:
    program = start('''
for number in range(5):
    report()
    if number == 2:
        caching.give(caching.take(400 * MIB))
''')
    daemon.run(contended=True)
    counted(program, [2, 1])
    evict_and_load(daemon)              # without the trim this program's memory would not fit
    daemon.run(contended=True)
    counted(program, [3, 1])
    daemon.stop()
    daemon.run(contended=True)          # no other program needed memory between the turns
    counted(program, [3, 1])
    counted(program, [3, 1])
    evict_and_load(daemon)
    daemon.run(contended=True)          # the cache is full again
    counted(program, [5, 2])
    program.ends_well()


def test_framework_caches_are_trimmed_in_a_pause_between_two_kernels(
    start: Start, daemon: FakeDaemon
) -> None:
    program = start('''
report()
caching.give(caching.take(400 * MIB))
report()
report()
''')
    daemon.run(contended=True)
    counted(program, [2, 1])
    counted(program, [2, 1])
    daemon.run(contended=True, idle_window=1000)
    counted(program, [4, 2])
    program.ends_well()


def test_framework_cache_trimmed_after_eviction_is_not_loaded_again(
    start: Start, daemon: FakeDaemon
) -> None:
    program = start('''
wait()
report()
assert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)
''', STEPS)
    program.hears()
    daemon.run(contended=True)
    daemon.stop()                       # the program held Python's lock during the turn
    assert daemon.move(Type.EVICT, MUCH).memory.allocated == 500 * MIB
    program.go_on()
    counted(program, [2, 1])
    memory = daemon.move(Type.LOAD, ROOM).memory
    assert memory.allocated == memory.resident == 100 * MIB
    daemon.send(OrderRecord(Type.RUN))              # the program then ends, and may not reply
    program.ends_well()


def test_framework_caches_are_not_trimmed_during_a_capture(
    start: Start, daemon: FakeDaemon
) -> None:
    program = start("begin()\nreport()\nreport()\nend()\nreport()", STEPS)
    counted(program, [0, 0])
    daemon.run(contended=True)
    counted(program, [0, 0])
    counted(program, [2, 1])            # trimmed as soon as the capture is over
    program.ends_well()


FAILS = '''
def fails(*_):
    raise RuntimeError("the stand-in has failed")
class Errors:
    lines = 0
    def write(self, text):
        self.lines += 1
        return os.write(2, text.encode())
    def flush(self):
        pass
errors = sys.stderr = Errors()
'''


@pytest.mark.parametrize(("name", "body"), [
    pytest.param("RuntimeError: the stand-in has failed", "torch_cuda.empty_cache = fails",
                 id="emptied"),
    pytest.param("memory_stats", "del torch_cuda.memory_stats", id="another-version"),
])
def test_exception_of_a_framework_during_trim_is_logged_once(
    start: Start, daemon: FakeDaemon, name: str, body: str
) -> None:
    program = start('''
for _ in range(4):
    sys.stdin.readline()
    while errors.lines == 0:
        time.sleep(0.001)
    time.sleep(0.02)
    say("named")
''', FAILS + body)
    for _ in range(4):
        daemon.run()
        daemon.run(contended=True)
        program.go_on()
        assert program.hears() == "named"
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert program.popen.returncode == 0, errors
    assert len(errors.splitlines()) == 1
    assert "PyTorch" in errors
    assert name in errors


def test_interpreter_exit_waits_for_a_trim_that_has_begun(start: Start, daemon: FakeDaemon) -> None:
    program = start("began.wait()", '''
began = threading.Event()
def slow():
    began.set()
    time.sleep(0.2)
    say("emptied")
torch_cuda.empty_cache = slow
''')
    daemon.run(contended=True)
    assert program.hears() == "emptied"
    program.ends_well()


WITHOUT = """
del sys.modules["torch"]
"""
CUPY = WITHOUT + '''
class Pool:
    def total_bytes(self):
        return caching.figures(0)["reserved_bytes.all.current"]
    def free_bytes(self):
        return sum(caching.sizes.values()) - 100 * MIB
    def free_all_blocks(self):
        caching.empty()
class Device(int):
    def use(self):
        caching.use(self)
module("cupy", get_default_memory_pool=Pool, cuda=types.SimpleNamespace(Device=Device))
'''


@pytest.mark.parametrize(("body", "missing", "expected"), [
    pytest.param(CUPY, "", [2, 1], id="cupy"),
    pytest.param(WITHOUT, "", [0, 0], id="no framework"),
    pytest.param("torch_cuda.is_initialized = lambda: False", "", [0, 0], id="not initialised"),
    pytest.param("caching.empty(); caching.give(caching.take(255 * MIB))", "", [1, 1],
                 id="too little cached"),
    pytest.param("", "NVSHARE_TRIM_CACHES", [0, 0], id="not requested"),
    pytest.param("", "PYTHONPATH", [0, 0], id="no trim module"),
])
def test_framework_caches_are_trimmed_only_if_requested_and_large_enough(
    site: Site, start: Start, daemon: FakeDaemon, body: str, missing: str, expected: list[int]
) -> None:
    site.environment.pop(missing, None)
    program = start("report()", body)
    daemon.run(contended=True)
    counted(program, expected)
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert (program.popen.returncode, errors) == (0, "")
