# SPDX-License-Identifier: Apache-2.0
"""A framework is asked to give back what it has cached, and asked at no wrong moment.

The framework is standin.py; the real ones are in tests/gpu. The test plays the daemon, so that each
order comes when it is meant to.
"""

import json
from collections.abc import Callable

import pytest

from nvshared import library
from nvshared.hook.protocol import OrderRecord, ReportRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import Site, wait_until
from tests.integration.fakedaemon import FOR_EVER, FakeDaemon
from tests.integration.fakehook import PATIENCE
from tests.integration.programs import Program
from tests.integration.standin import READY, STAND_IN, STEPS
from tests.integration.test_kills import finish

ROOM = 900 * MIB
MUCH = 480 * MIB                        # bytes: less than the program has allocated with its cache
# NVSHARE_EXAMINE=0, because reading memory is slow on the simulated card and tested elsewhere.
WANTED = {"NVSHARE_TRIM_CACHES": "1", "NVSHARE_EXAMINE": "0", "PYTHONPATH": str(library.program())}


@pytest.fixture
def daemon(site: Site) -> FakeDaemon:
    site.environment = {**site.environment, **WANTED}
    return FakeDaemon(site, ROOM, host=128 * MIB)


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
    """Expects these numbers of reads of its statistics, and of emptied caches.

    Each request to trim reads the statistics once, and once more after it emptied the cache.
    """
    program.tell(json.dumps(expected))
    assert program.hears() == expected


def evict_and_load(daemon: FakeDaemon) -> ReportRecord:
    """The other client's need for the card is smaller than the cached memory."""
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


@pytest.mark.parametrize("missing", ["NVSHARE_TRIM_CACHES", "PYTHONPATH"])
def test_framework_caches_are_not_trimmed_without_nvshare_trim_caches_or_the_trim_module(
    site: Site, start: Start, daemon: FakeDaemon, missing: str
) -> None:
    del site.environment[missing]
    program = start(FOUR_REPORTS)
    for _ in range(4):
        daemon.run()
        daemon.run(contended=True)
        counted(program, [0, 0])
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
    evict_and_load(daemon)              # the program has less, and would have had more untrimmed
    daemon.run(contended=True)
    counted(program, [3, 1])
    daemon.stop()
    daemon.run(contended=True)          # no other program needed the room between the turns
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


def test_capture_that_begins_during_a_trim_succeeds(start: Start, daemon: FakeDaemon) -> None:
    program = start("wait()\nbegin()\ntime.sleep(0.02)\nend()\nreport()", STEPS)
    program.hears()
    daemon.run(contended=True)
    program.go_on()
    counted(program, [2, 1])            # trimmed either during the capture or afterwards
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


def test_ending_python_interpreter_is_not_asked_to_trim(start: Start, daemon: FakeDaemon) -> None:
    program = start('''
class Last:
    def __del__(self, write=os.write, report=report):
        write(1, b"0\\n")
        report()
sys.last_value = Last()                 # destroyed first at the interpreter's end
''')
    program.hears()
    daemon.run(contended=True)
    counted(program, [0, 0])
    program.ends_well()


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


def test_forked_child_is_not_asked_to_trim(start: Start, daemon: FakeDaemon) -> None:
    program = start('''
go_on, told = os.pipe()
child = os.fork()
if child == 0:
    os.read(go_on, 1)
    time.sleep(0.02)
    say(caching.counts())
    os._exit(0)
say("forked")
report()
os.write(told, b"0")
assert os.waitpid(child, 0)[1] == 0
''')
    program.hears()
    daemon.run(contended=True)
    counted(program, [2, 1])
    assert program.hears() == [0, 0]
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


@pytest.mark.parametrize(("body", "expected"), [
    pytest.param(CUPY, [2, 1], id="cupy"),
    pytest.param(WITHOUT, [0, 0], id="neither"),
    pytest.param("torch_cuda.is_initialized = lambda: False", [0, 0], id="not-on-the-card"),
    pytest.param("caching.empty(); caching.give(caching.take(255 * MIB))", [1, 1], id="too-little"),
])
def test_framework_caches_are_trimmed_only_of_initialised_frameworks_with_enough_cached_memory(
    start: Start, daemon: FakeDaemon, body: str, expected: list[int]
) -> None:
    program = start("report()", body)
    daemon.run(contended=True)
    counted(program, expected)
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert (program.popen.returncode, errors) == (0, "")


def test_c_program_with_nvshare_trim_caches_takes_turns_with_right_results(site: Site) -> None:
    trace = str(site.folder / "trace")
    site.start("--tq", "100ms", "--capacity", str(60 * MIB), "--trace", trace)
    programs = [
        site.workload(
            "--memory", "40MiB", "--chunk", "4MiB", "--until-told", "--kernel-us", "2000",
            "--seed", str(seed), "--json", **WANTED)
        for seed in range(2)
    ]
    wait_until(lambda: bool(site.lines(event="evicted")))
    finish(programs)
