# SPDX-License-Identifier: Apache-2.0
"""A framework is asked to give back what it has cached, and asked at no wrong moment.

PyTorch itself does not run on a simulated card. What stands in for it here is a caching allocator
in Python over the driver's functions, under the names that the library looks for; the real ones
are in tests/gpu. Daemon is played by the test, so that each order comes when it is meant to.
"""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvshared.hook.protocol import Flag, Limits, Record, Type, decode, encode
from tests.integration.conftest import MIB, Site
from tests.integration.fakehook import PATIENCE
from tests.integration.test_own_memory import Program

ROOM = 900 * MIB
HOST = 128 * MIB
MUCH = 480 * MIB                        # and yet less than the program has, with its cache
FOR_EVER = 3600 * 10**6                 # microseconds without work until a program counts as idle
# Looking at memory takes this processor long, and is not what is tested here.
WANTED = {"NVSHARE_TRIM_CACHES": "1", "NVSHARE_EXAMINE": "0"}

STAND_IN = '''
import time, types
class Caching:
    """Blocks that are freed are kept, for the next that want just as much."""
    def __init__(self):
        self.sizes, self.kept = {}, []
        self.asked = self.emptied = 0
    def take(self, size, value=None):
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
        self.asked += 1
        bytes = {"reserved_bytes": sum(self.sizes.values()),
                 "active_bytes": sum(self.sizes.values()) - sum(map(self.sizes.get, self.kept)),
                 "inactive_split_bytes": 0}
        return {name: {"all": {"current": value}} for name, value in bytes.items()}
    def empty(self):
        self.emptied += 1
        while self.kept:
            address = self.kept.pop()
            call("cuMemFree_v2", address)
            del self.sizes[address]
caching = Caching()
def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
module("torch")
module("torch.cuda", _initialized=True)
module("torch._C", _cuda_memoryStats=lambda device: caching.figures(device),
       _cuda_emptyCache=lambda: caching.empty())
def report():
    "Once the test says so, and Python has come to what it was asked."
    sys.stdin.readline()
    for _ in range(1000):
        pass
    print(json.dumps([caching.asked, caching.emptied]), flush=True)
def wait_for(emptied):
    while caching.emptied < emptied:
        time.sleep(0.001)               # lets go of Python's lock, as a framework does
kept, cached = caching.take(100 * MIB, 3), caching.take(400 * MIB)
caching.give(cached)
'''
READY = '''
print(json.dumps("ready"), flush=True)
'''


STEPS = '''
import itertools, operator
stream = c_void_p()
call("cuStreamCreate", byref(stream), 1)
def in_one(*calls):
    "Without an instruction of Python's in between: what it was asked comes after all of them."
    list(itertools.starmap(operator.call, calls))
def end():
    graph = c_void_p()
    call("cuStreamEndCapture", stream, byref(graph))
    call("cuGraphDestroy", graph)
    wait_for(1)
BEGIN = cuda.cuStreamBeginCapture_v2, stream, 0
WAIT = (os.write, 1, b"0\\n"), (os.read, 0, 1)
'''


class Daemon:
    """What a daemon says to its one program."""

    def __init__(self, site: Site) -> None:
        site.socket.parent.mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        self.connection.send(encode(Record(kind, **what)))

    def hear(self, kind: Type, number: int = 0) -> Record:
        """The next of this kind; what is said besides needs no answer."""
        assert self.connection is not None
        while True:
            said = decode(self.connection.recv(4096))
            if said.type is kind and said.number == number:
                return said

    def welcome(self) -> None:
        """Lets the program have the card for itself."""
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(PATIENCE)
        self.hear(Type.HELLO)
        self.order(Type.WELCOME, limits=Limits(ROOM, ROOM, ROOM, 32 * MIB))
        self.load()
        self.run()

    def run(self, contended: bool = False, idle_window: int = FOR_EVER) -> None:
        """And returns when it knows."""
        flags = Flag.CONTENDED if contended else Flag(0)
        self.order(Type.RUN, flags=flags, microseconds=idle_window)
        self.settle()

    def settle(self) -> None:
        """Until everything that was ordered has had its effect."""
        self.number += 1
        self.order(Type.INTRODUCE, number=self.number)
        self.hear(Type.HELLO, self.number)

    def stop(self) -> None:
        self.order(Type.STOP)
        self.hear(Type.STOPPED)

    def evict(self, room: int) -> Record:
        self.number += 1
        self.order(Type.EVICT, number=self.number, bytes=room, host=HOST)
        return self.hear(Type.EVICTED, self.number)

    def load(self) -> Record:
        self.number += 1
        self.order(Type.LOAD, number=self.number, bytes=ROOM, host=HOST)
        return self.hear(Type.LOADED, self.number)


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


def counted(program: Program) -> Any:
    """How often it was asked what it could give back, and to do so."""
    program.go_on()
    return program.hears()


FOUR_REPORTS = "for _ in range(4): report()"


def test_it_gives_back_once_others_wait_and_not_before(start: Start, daemon: Daemon) -> None:
    program = start(FOUR_REPORTS + "\nassert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)")
    assert counted(program) == [0, 0]
    daemon.run(contended=True)
    assert counted(program) == [1, 1]
    daemon.settle()
    assert counted(program) == [1, 1]
    daemon.run()
    daemon.run(contended=True)          # there is nothing left
    assert counted(program) == [2, 1]
    program.ends_well()


def test_nothing_is_asked_without_the_variable(
        site: Site, start: Start, daemon: Daemon) -> None:
    del site.environment["NVSHARE_TRIM_CACHES"]
    program = start(FOUR_REPORTS)
    for _ in range(4):
        daemon.run()
        daemon.run(contended=True)
        assert counted(program) == [0, 0]
    program.ends_well()


def test_what_is_taken_again_at_once_is_asked_for_ever_more_rarely(
        start: Start, daemon: Daemon) -> None:
    program = start('''
for _ in range(15):
    report()
    if not caching.kept:
        caching.give(caching.take(400 * MIB))
''')
    asked = []
    for _ in range(7):
        daemon.run(contended=True)
        asked.append(counted(program)[0])
        program.go_on()                 # it takes everything again before its turn ends
        assert program.hears()[0] == asked[-1]
        daemon.stop()
        daemon.evict(MUCH)
        daemon.load()
    assert asked == [1, 1, 2, 2, 2, 3, 3]
    program.go_on()
    program.ends_well()


def test_nothing_is_asked_where_nothing_would_leave(start: Start, daemon: Daemon) -> None:
    program = start('''
report()
report()
caching.give(caching.take(400 * MIB))
report()
report()
''')
    daemon.run(contended=True)
    assert counted(program) == [1, 1]
    daemon.stop()
    daemon.run(contended=True)          # nobody needed its room meanwhile
    assert [counted(program), counted(program)] == [[1, 1]] * 2
    daemon.stop()
    daemon.evict(MUCH)
    daemon.load()
    daemon.run(contended=True)
    assert counted(program) == [2, 2]
    program.ends_well()


def test_it_gives_back_when_it_pauses_between_two_pieces_of_work(
        start: Start, daemon: Daemon) -> None:
    program = start('''
report()
caching.give(caching.take(400 * MIB))
report()
wait_for(2)
report()
''')
    daemon.run(contended=True)
    assert [counted(program), counted(program)] == [[1, 1]] * 2
    daemon.run(contended=True, idle_window=1000)
    assert counted(program) == [2, 2]
    program.ends_well()


def test_what_is_given_back_too_late_need_not_come_in_again(start: Start, daemon: Daemon) -> None:
    program = start('''
in_one(*WAIT)
report()
assert get(kept, 100 * MIB) == bytes([3]) * (100 * MIB)
''', STEPS)
    program.hears()
    daemon.run(contended=True)
    daemon.stop()                       # its main thread has been waiting for us all the while
    assert daemon.evict(MUCH).memory.allocated == 500 * MIB
    program.go_on()
    assert counted(program) == [1, 1]
    memory = daemon.load().memory
    assert memory.allocated == memory.resident == 100 * MIB
    daemon.order(Type.RUN)              # whereupon it ends, and may not answer any more
    program.ends_well()


@pytest.mark.parametrize("body", [
    "in_one(BEGIN, *WAIT)",             # it is open when there is occasion to ask
    "in_one(*WAIT, BEGIN)",             # it has begun since the program was asked
])
def test_nothing_is_given_back_while_a_stream_is_captured(
        start: Start, daemon: Daemon, body: str) -> None:
    program = start(body + "\nreport()\nend()\nreport()", STEPS)
    program.hears()
    daemon.run(contended=True)
    program.go_on()
    assert counted(program) == [0, 0]
    assert counted(program) == [1, 1]   # as soon as it is over
    program.ends_well()


FAILS = '''
def fails(*_):
    caching.asked += 1
    raise RuntimeError("the stand-in has failed")
'''


@pytest.mark.parametrize(("name", "body"), [
    pytest.param("RuntimeError: the stand-in has failed",
                 "sys.modules['torch._C']._cuda_memoryStats = fails", id="asked"),
    pytest.param("RuntimeError: the stand-in has failed",
                 "sys.modules['torch._C']._cuda_emptyCache = fails", id="emptied"),
    pytest.param("_cuda_memoryStats", "del sys.modules['torch._C']._cuda_memoryStats",
                 id="another-version"),
    pytest.param("inactive_split_bytes", "caching.figures = lambda device: {"
                 "kind: {'all': {'current': 0}} for kind in ('reserved_bytes', 'active_bytes')}",
                 id="other-figures"),
])
def test_what_a_framework_raises_is_named_once_and_hurts_nobody(
        start: Start, daemon: Daemon, name: str, body: str) -> None:
    program = start(FOUR_REPORTS, FAILS + body)
    for _ in range(4):
        daemon.run()
        daemon.run(contended=True)
        counted(program)
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert program.popen.returncode == 0, errors
    assert len(errors.splitlines()) == 1
    assert "PyTorch" in errors
    assert name in errors


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "SystemExit"])
def test_what_is_the_programs_to_see_gets_there(
        start: Start, daemon: Daemon, kind: str) -> None:
    program = start(f'''
try:
    in_one(*WAIT)
    report()
except {kind} as error:
    print(json.dumps(type(error).__name__), flush=True)
report()
''', STEPS + f'''
def interrupted():
    raise {kind}
sys.modules["torch._C"]._cuda_emptyCache = interrupted
''')
    program.hears()
    daemon.run(contended=True)
    assert counted(program) == kind
    assert counted(program) == [1, 0]
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert (program.popen.returncode, errors) == (0, "")


def test_an_interpreter_that_is_ending_is_left_alone(start: Start, daemon: Daemon) -> None:
    program = start('''
class Last:
    def __del__(self, write=os.write, report=report):
        write(1, b"0\\n")
        report()
sys.last_value = Last()                 # among the first that go at the end, when all else is there
''')
    program.hears()
    daemon.run(contended=True)
    assert counted(program) == [0, 0]
    program.ends_well()


def test_a_forked_child_is_left_alone(start: Start, daemon: Daemon) -> None:
    program = start('''
in_one(*WAIT, (os.fork,), (os.write, 1, b"0\\n"), (os.read, 0, 1))
for _ in range(1000):
    pass
print(json.dumps([caching.asked, caching.emptied]), flush=True)
os._exit(0)
''', STEPS)
    program.hears()
    daemon.run(contended=True)
    program.go_on()
    assert [program.hears() for _ in range(2)] == [0, 0]
    assert sorted([counted(program), counted(program)]) == [[0, 0], [1, 1]]
    program.ends_well()


WITHOUT = """
del sys.modules["torch"], sys.modules["torch.cuda"], sys.modules["torch._C"]
"""
CUPY = WITHOUT + '''
class Pool:
    def free_bytes(self):
        return caching.figures(0)["reserved_bytes"]["all"]["current"] - 100 * MIB
    def free_all_blocks(self):
        caching.empty()
module("cupy", _default_memory_pool=Pool())
'''


@pytest.mark.parametrize(("body", "expected"), [
    pytest.param(CUPY, [1, 1], id="cupy"),
    pytest.param(WITHOUT, [0, 0], id="neither"),
    pytest.param("sys.modules['torch.cuda']._initialized = False", [0, 0], id="not-on-the-card"),
    pytest.param("caching.empty(); caching.give(caching.take(255 * MIB))", [1, 1], id="too-little"),
])
def test_who_is_asked(start: Start, daemon: Daemon, body: str, expected: list[int]) -> None:
    program = start("report()", body)
    daemon.run(contended=True)
    assert counted(program) == expected
    _, errors = program.popen.communicate(timeout=PATIENCE)
    assert (program.popen.returncode, errors) == (0, "")


def test_no_reference_is_lost_or_kept(start: Start, daemon: Daemon) -> None:
    program = start('''
before = [sys.getrefcount(one) for one in held]
for _ in range(3): report()
after = [sys.getrefcount(one) for one in held]
assert before == after, (before, after)
''', '''
figures = caching.figures(0)
caching.figures = lambda device: (caching.__dict__.update(asked=caching.asked + 1), figures)[1]
held = [sys.modules["torch.cuda"], sys.modules["torch._C"], figures, figures["active_bytes"],
        figures["active_bytes"]["all"], sys.modules["torch._C"]._cuda_memoryStats,
        sys.modules["torch._C"]._cuda_emptyCache]
''')
    for asked in (2, 3, 3):             # for nothing came of it, the second time
        daemon.run()
        daemon.run(contended=True)
        assert counted(program)[0] == asked
    program.ends_well()
