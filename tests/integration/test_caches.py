# SPDX-License-Identifier: Apache-2.0
"""A framework is asked to give back what it has cached, and asked at no wrong moment.

The framework is standin.py; the real ones are in tests/gpu. The test plays the daemon, so that each
order comes when it is meant to.
"""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvshared import library
from nvshared.hook.protocol import (
    Flag,
    OrderRecord,
    ReportRecord,
    Type,
    decode_report,
    encode_order,
)
from nvshared.units import MIB
from tests.integration.conftest import Site
from tests.integration.fakehook import PATIENCE
from tests.integration.standin import READY, STAND_IN, STEPS
from tests.integration.test_own_memory import Program

ROOM = 900 * MIB
HOST = 128 * MIB
MUCH = 480 * MIB                        # and yet less than the program has, with its cache
FOR_EVER = 3600 * 10**6                 # microseconds without work until a program counts as idle
# Looking at memory takes this processor long, and is not what is tested here.
WANTED = {
    "NVSHARE_TRIM_CACHES": "1", "NVSHARE_EXAMINE": "0", "PYTHONPATH": str(library.program()),
}


class Daemon:
    """What a daemon says to its one program."""

    def __init__(self, site: Site) -> None:
        site.socket.parent.mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(PATIENCE)
        self.listener.bind(str(site.socket))
        self.listener.listen()
        self.listener.settimeout(PATIENCE)
        self.connection: socket.socket | None = None
        self.number = 0

    def close(self) -> None:
        """Whatever has come of it."""
        self.listener.close()
        if self.connection is not None:
            self.connection.close()

    def order(self, kind: Type, **what: Any) -> None:
        assert self.connection is not None
        self.connection.send(encode_order(OrderRecord(kind, **what)))

    def hear(self, kind: Type, number: int = 0) -> ReportRecord:
        """The next of this kind; what is said besides needs no answer."""
        assert self.connection is not None
        while True:
            said = decode_report(self.connection.recv(4096))
            if said.type is kind and said.number == number:
                return said

    def welcome(self) -> None:
        """Lets the program have the card for itself."""
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(PATIENCE)
        self.hear(Type.HELLO)
        self.order(Type.LIMITS, commit=ROOM, most=ROOM, total=ROOM, host_slab=32 * MIB)
        self.load()
        self.run()

    def run(self, contended: bool = False, idle_window: int = FOR_EVER) -> None:
        """And returns when it knows."""
        flags = Flag.PACE | Flag.REPORT_IDLE if contended else Flag(0)
        self.order(Type.RUN, flags=flags, idle_window=idle_window)
        self.load()                     # of nothing: its answer comes after RUN had its effect

    def stop(self) -> None:
        self.order(Type.STOP)
        self.hear(Type.STOPPED)

    def evict(self, room: int) -> ReportRecord:
        self.number += 1
        self.order(Type.EVICT, number=self.number, room=room, host=HOST)
        return self.hear(Type.MOVED, self.number)

    def load(self) -> ReportRecord:
        self.number += 1
        self.order(Type.LOAD, number=self.number, room=ROOM, host=HOST)
        return self.hear(Type.MOVED, self.number)


@pytest.fixture
def daemon(site: Site) -> Iterator[Daemon]:
    site.environment = {**site.environment, **WANTED}
    made = Daemon(site)
    yield made
    made.close()


Start = Callable[..., Program]


@pytest.fixture
def start(site: Site, daemon: Daemon) -> Start:
    """A program whose framework has 400 MiB cached, and 100 in use."""

    def begin(body: str, before: str = "") -> Program:
        program = Program(site, STAND_IN + before + READY + body)
        daemon.welcome()
        assert program.hears() == "ready"
        return program

    return begin


def counted(program: Program, expected: list[int]) -> None:
    """How often it was looked what it could give back, and how often it gave that back.

    Each time that it is asked it is looked once, and once more when something was given back.
    """
    tell(program, json.dumps(expected))
    assert program.hears() == expected


def tell(program: Program, line: str) -> None:
    assert program.popen.stdin is not None
    program.popen.stdin.write(line + "\n")
    program.popen.stdin.flush()


FOUR_REPORTS = "for _ in range(4): report()"


def test_caches_are_trimmed_once_another_client_waits(start: Start, daemon: Daemon) -> None:
    program = start(FOUR_REPORTS + "\nassert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)")
    counted(program, [0, 0])
    daemon.run(contended=True)
    counted(program, [2, 1])
    daemon.load()
    counted(program, [2, 1])
    daemon.run()
    daemon.run(contended=True)          # there is nothing left
    counted(program, [3, 1])
    program.ends_well()


def test_trim_module_works_when_the_program_imports_it_late(
        site: Site, start: Start, daemon: Daemon) -> None:
    folder = site.environment.pop("PYTHONPATH")
    program = start("report()", f"sys.path.append({folder!r})\nimport nvshare_caches\n")
    daemon.run(contended=True)
    counted(program, [2, 1])
    program.ends_well()


@pytest.mark.parametrize("missing", ["NVSHARE_TRIM_CACHES", "PYTHONPATH"])
def test_caches_are_not_trimmed_without_variable_or_module(
        site: Site, start: Start, daemon: Daemon, missing: str) -> None:
    del site.environment[missing]
    program = start(FOUR_REPORTS)
    for _ in range(4):
        daemon.run()
        daemon.run(contended=True)
        counted(program, [0, 0])
    program.ends_well()


def test_trimming_becomes_rarer_when_the_cache_refills_at_once(
        start: Start, daemon: Daemon) -> None:
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
        counted(program, [looked, emptied])     # it takes everything again before its turn ends
        daemon.stop()
        daemon.evict(MUCH)
        daemon.load()
    counted(program, [looked, emptied])
    program.ends_well()


def test_caches_are_not_trimmed_where_no_memory_would_be_evicted(
    start: Start, daemon: Daemon
) -> None:
    program = start('''
report()
report()
caching.give(caching.take(400 * MIB))
report()
report()
''')
    daemon.run(contended=True)
    counted(program, [2, 1])
    daemon.stop()
    daemon.run(contended=True)          # nobody needed its room meanwhile
    counted(program, [2, 1])
    counted(program, [2, 1])
    daemon.stop()
    daemon.evict(MUCH)
    daemon.load()
    daemon.run(contended=True)          # it has taken all of it again: this time nothing is done
    counted(program, [3, 1])
    program.ends_well()


def test_trimmed_cache_counts_as_evicted(start: Start, daemon: Daemon) -> None:
    program = start(FOUR_REPORTS)
    daemon.run(contended=True)
    counted(program, [2, 1])
    daemon.stop()
    daemon.evict(MUCH)                  # it has less than that, but would have had more
    daemon.load()
    daemon.run(contended=True)
    counted(program, [3, 1])
    daemon.stop()
    daemon.evict(MUCH)
    daemon.load()
    daemon.run(contended=True)
    counted(program, [3, 1])
    counted(program, [3, 1])
    program.ends_well()


def test_caches_are_trimmed_in_a_pause_between_two_kernels(
        start: Start, daemon: Daemon) -> None:
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


def test_caches_are_trimmed_while_the_main_thread_waits(
        start: Start, daemon: Daemon) -> None:
    program = start("os.read(0, 1)")
    daemon.run(contended=True)
    while daemon.hear(Type.MEMORY).memory.allocated != 100 * MIB:
        continue
    program.go_on()
    program.ends_well()


def test_cache_trimmed_after_eviction_is_not_loaded_again(start: Start, daemon: Daemon) -> None:
    program = start('''
wait()
report()
assert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)
''', STEPS)
    program.hears()
    daemon.run(contended=True)
    daemon.stop()                       # it has kept Python's lock all the while
    assert daemon.evict(MUCH).memory.allocated == 500 * MIB
    program.go_on()
    counted(program, [2, 1])
    memory = daemon.load().memory
    assert memory.allocated == memory.resident == 100 * MIB
    daemon.order(Type.RUN)              # whereupon it ends, and may not answer any more
    program.ends_well()


def test_caches_are_not_trimmed_during_a_capture(start: Start, daemon: Daemon) -> None:
    program = start("begin()\nreport()\nreport()\nend()\nreport()", STEPS)
    counted(program, [0, 0])
    daemon.run(contended=True)
    counted(program, [0, 0])
    counted(program, [2, 1])            # as soon as it is over
    program.ends_well()


def test_trim_does_not_disturb_a_capture_that_began_meanwhile(start: Start, daemon: Daemon) -> None:
    program = start("wait()\nbegin()\ntime.sleep(0.02)\nend()\nreport()", STEPS)
    program.hears()
    daemon.run(contended=True)
    program.go_on()
    counted(program, [2, 1])            # during the capture or after it
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
    pytest.param("RuntimeError: the stand-in has failed", "torch_cuda.memory_stats = fails",
                 id="asked"),
    pytest.param("RuntimeError: the stand-in has failed", "torch_cuda.empty_cache = fails",
                 id="emptied"),
    pytest.param("memory_stats", "del torch_cuda.memory_stats", id="another-version"),
    pytest.param("inactive_split_bytes", "caching.figures = lambda device: {"
                 "kind + '.all.current': 0 for kind in ('reserved_bytes', 'active_bytes')}",
                 id="other-figures"),
])
def test_exception_of_a_framework_during_trim_is_logged_once(
        start: Start, daemon: Daemon, name: str, body: str) -> None:
    program = start('''
for _ in range(4):
    sys.stdin.readline()
    while errors.lines == 0:
        time.sleep(0.001)
    time.sleep(0.02)
    print(json.dumps("named"), flush=True)
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


def test_ending_interpreter_is_not_asked_to_trim(start: Start, daemon: Daemon) -> None:
    program = start('''
class Last:
    def __del__(self, write=os.write, report=report):
        write(1, b"0\\n")
        report()
sys.last_value = Last()                 # among the first that go at the end, when all else is there
''')
    program.hears()
    daemon.run(contended=True)
    counted(program, [0, 0])
    program.ends_well()


def test_interpreter_exit_waits_for_a_trim_that_has_begun(start: Start, daemon: Daemon) -> None:
    program = start("began.wait()", '''
began = threading.Event()
def slow():
    began.set()
    time.sleep(0.2)
    print(json.dumps("emptied"), flush=True)
torch_cuda.empty_cache = slow
''')
    daemon.run(contended=True)
    assert program.hears() == "emptied"
    program.ends_well()


def test_forked_child_is_not_asked_to_trim(start: Start, daemon: Daemon) -> None:
    program = start('''
go_on, told = os.pipe()
child = os.fork()
if child == 0:
    os.read(go_on, 1)
    time.sleep(0.02)
    print(json.dumps(caching.counts()), flush=True)
    os._exit(0)
print(json.dumps("forked"), flush=True)
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
def test_frameworks_that_are_loaded_are_asked_to_trim(
    start: Start, daemon: Daemon, body: str, expected: list[int]
) -> None:
    program = start("report()", body)
    daemon.run(contended=True)
    counted(program, expected)
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert (program.popen.returncode, errors) == (0, "")
