# SPDX-License-Identifier: Apache-2.0
"""Programs are parked, woken and moved on simulated cards, by the real daemon and helper."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from nvshared.errors import NvshareError
from nvshared.hook.protocol import Flag, Type
from nvshared.machine import checkpoint
from nvshared.units import MIB
from tests import pages
from tests.integration.conftest import (
    ROOT,
    SAMPLED_OFTEN,
    Process,
    Site,
    Start,
    kill,
    wait_until,
)
from tests.integration.programs import FUTEX
from tests.integration.test_doctor import PROGRAM
from tests.seeds import seeds

CHECKPOINTER = shlex.join(checkpoint.COMMAND)

ENTRIES = ROOT / "libhook" / "simulator" / "table" / "entries.def"

USED = """
import pynvml, sys
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(2)]
for _ in sys.stdin:
    print(*[pynvml.nvmlDeviceGetMemoryInfo(card).used >> 20 for card in cards], flush=True)
"""


class Program(Process):
    right = "{7}"                       # the right answer to read(): the byte values in memory

    def __init__(
        self, site: Site, *command: object, environment: dict[str, str] | None = None,
        wait: bool = True,
    ) -> None:
        """`wait`: returns only when the program has its memory."""
        super().__init__(site.program(
            [sys.executable, "-m", *(command or ("tests.integration.moved",))], environment or {},
            bufsize=1, stderr=None))
        site.programs.append(self)
        if wait:
            assert self.line() == "ready"

    def check(self) -> None:
        """Asserts that the program's memory is unchanged; reading it wakes the program."""
        assert self.ask("read()") == self.right


def used(site: Site) -> list[int]:
    """MiB of each card in use, as NVML says."""
    if site.meter is None:
        site.meter = Process(site.program(
            [sys.executable, "-c", USED], {"LD_PRELOAD": ""}, stderr=None))
    return [int(word) for word in site.meter.ask("").split()]


def only(control: Control) -> ClientSnapshot:
    (client,) = control.snapshot().clients
    return client


def park(site: Site, control: Control) -> None:
    control.park(only(control).id)
    assert used(site) == [0, 0]
    assert only(control).state == "parked"


def refuse_to_park(control: Control, program: Program, reason: str) -> None:
    """Fails unless parking is refused for `reason` and the program continues."""
    with pytest.raises(NvshareError, match=reason):
        control.park(only(control).id)
    program.check()


def clients_of(control: Control, program: Program) -> list[ClientSnapshot]:
    return [one for one in control.snapshot().clients if one.pid == program.popen.pid]


def start_move(bus: str, client: int) -> Future[None]:
    """Begins to move a client to GPU 1."""
    def move() -> None:
        with Control(bus, 60) as mover:
            mover.move(client, "1")

    return ThreadPoolExecutor(1).submit(move)


def is_on(control: Control, card: int) -> bool:
    return [one.gpu for one in control.snapshot().clients] == [card]


def is_state(control: Control, state: str) -> bool:
    return {one.state for one in control.snapshot().clients} == {state}


@pytest.fixture
def site(own_site: Site) -> Site:
    return own_site


Shared = Callable[..., tuple[Control, Program]]


@pytest.fixture
def shared(site: Site, start: Start) -> Shared:
    """Starts a daemon with these options, and a program."""
    return lambda *options, **environment: (start(*options, **environment), Program(site))


@pytest.fixture(autouse=True)
def check_programs(site: Site, start: Start, request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test that passes, the programs that still run have the right bytes, and end well."""
    failed = request.session.testsfailed
    yield
    for program in site.programs if request.session.testsfailed == failed else ():
        if program.popen.poll() is None:
            program.check()
            program.end()


def test_parked_program_has_no_memory_on_the_card_and_wakes_at_a_driver_call(
    site: Site, shared: Shared
) -> None:
    control, program = shared()
    assert used(site)[0] >= 16
    park(site, control)
    program.check()
    assert only(control).state == "running"
    assert used(site)[0] >= 16
    # Queries wake the program, also queries in another thread.
    for question in ("free() > 0", "in_thread('free()')", "in_thread('fill(7)') or True"):
        park(site, control)
        assert program.ask(question) == "True"


def test_moving_md_commands_park_move_and_drain_a_program(shared: Shared, bus: str) -> None:
    control, program = shared()
    for command, card in (
        ("nvsharectl park 4711", 0), ("nvsharectl move 4711 --to 1", 1),
        ("nvsharectl drain --gpu 1", 0), ("nvsharectl --json clients", 0)):
        assert ("docs/moving.md", command) in pages.inline()
        words = command.replace("4711", str(program.popen.pid)).split()[1:]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "--bus", bus, *words], cwd=ROOT, check=False,
            capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert only(control).gpu == card
        if "park" in command:
            assert only(control).state == "parked"

def entries() -> list[str]:
    """The driver's functions, except functions that end a context or checkpoint a process."""
    names = re.findall(r"^(?:ENTRY|UNSUPPORTED)\((\w+),", ENTRIES.read_text(), re.MULTILINE)
    return [name for name in names if not re.match(
        r"cuCtxDestroy|cuCtxDetach|cuDevicePrimaryCtxRe|cuCtxReset|cuCheckpoint|cuGL|cuVDPAU|"
        r"cuCtxCreate|cuGreenCtxDestroy|cuCtxPop", name)]


def test_parked_program_wakes_at_whichever_driver_function_it_calls(
    site: Site, shared: Shared
) -> None:
    """The simulated driver aborts a checkpointed program that calls the driver."""
    control, program = shared()
    names = entries()
    assert len(names) > 500
    client = only(control).id
    # a suspended program stays parked during the calls
    control.set_client_term(client, "suspended", 1)
    park(site, control)
    assert program.ask(f"call_all({names!r})") == str(len(names))

    def all_wait() -> bool:
        tasks = Path(f"/proc/{program.popen.pid}/task").iterdir()
        calls = [(path / "syscall").read_text() for path in tasks]
        return sum(call.startswith(f"{FUTEX} ") for call in calls) >= len(names)

    wait_until(all_wait)
    assert program.ask("len(returned)") == "0"
    assert only(control).state == "parked"
    control.set_client_term(client, "suspended", 0)
    assert program.ask("join()") == str(len(names))


def test_moved_program_continues_with_the_same_bytes_on_the_other_card(
    site: Site, shared: Shared
) -> None:
    control, program = shared()
    control.set_client_term(only(control).id, "compute-limit", 50)
    for target in (1, 0, 1):
        control.move(only(control).id, str(target))
        wait_until(partial(is_on, control, target))
        program.check()
        figures = used(site)
        assert figures[target] >= 16
        assert figures[1 - target] == 0
        assert only(control).terms["compute-limit"] == 50


@pytest.mark.parametrize("visible", ["1", "GPU-763A7C0E", "1,0"])
def test_move_of_a_program_to_a_gpu_out_of_its_sight_keeps_its_memory(
    site: Site, start: Start, visible: str
) -> None:
    """The driver maps UUIDs, whatever CUDA_VISIBLE_DEVICES of the program and of the daemon say."""
    control = start(CUDA_VISIBLE_DEVICES="1")
    program = Program(site, environment={"CUDA_VISIBLE_DEVICES": visible})
    assert only(control).gpu == 1
    for target in (0, 1, 0):
        control.move(only(control).id, str(target))
        wait_until(partial(is_on, control, target))
        park(site, control)
        program.check()
        assert used(site)[1 - target] == 0


@pytest.mark.parametrize(("environment", "reason", "kept"), [
    ({"NVSHARE_SIM_FAIL": "cuCheckpointProcessCheckpoint:1:801"}, r"checkpoint: .*801", "801"),
    ({"NVSHARE_SIM_DRIVER": "565"}, "570", ""),
], ids=["refused", "an old driver"])
def test_program_whose_park_the_driver_refuses_continues_and_shows_the_reason(
    shared: Shared, environment: dict[str, str], reason: str, kept: str
) -> None:
    control, program = shared(**environment)
    for _ in range(2):
        refuse_to_park(control, program, reason)
    assert kept in only(control).unparkable
    assert only(control).state == "running"


FILLS_CARDS = """
import ctypes, sys
cuda, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
cuda.cuInit(0)
for card in map(int, sys.argv[2:]):
    cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, card)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    size = free.value - (int(sys.argv[1]) << 20)
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
print("full", flush=True)
input()
"""


def fill_cards(site: Site, *cards: int, leave: int = 100) -> Process:
    """Starts a program without the library that leaves `leave` MiB of these cards free."""
    foreign = Process(site.program(
        [sys.executable, "-c", FILLS_CARDS, leave, *cards],
        {"LD_PRELOAD": "", "NVSHARE_SIM_CONTEXT": "8M"}))
    assert foreign.line() == "full"
    return foreign


def test_program_is_not_moved_to_a_card_without_enough_free_memory(
    site: Site, shared: Shared
) -> None:
    control, program = shared()
    assert program.ask("grow(110)") == "110"
    fill_cards(site, 1)
    with pytest.raises(NvshareError, match="GPU 1 is too small"):
        control.move(only(control).id, "1")
    program.check()
    assert only(control).gpu == 0


def answers(calls: Iterable[Callable[[], None]]) -> list[str]:
    """Makes calls at the same time. Returns an error message, or "" for success, of each call."""
    def answer(call: Callable[[], None]) -> str:
        try:
            call()
        except NvshareError as error:
            return error.message
        return ""

    with ThreadPoolExecutor() as threads:
        return list(threads.map(answer, calls))


def test_programs_moved_at_the_same_time_stay_within_the_tenants_memory_limit_on_the_target(
    site: Site, start: Start, bus: str
) -> None:
    control = start()
    programs = [Program(site), Program(site)]
    (tenant,) = {one.tenant for one in control.snapshot().clients}
    control.set_tenant_terms(tenant, {"memory-limit": 24 * MIB})
    with Control(bus, 60) as first, Control(bus, 60) as second:
        moves = [partial(one.move, client.id, "1") for one, client in zip(
            (first, second), control.snapshot().clients, strict=True)]
        assert ["are limited to" in why for why in sorted(answers(moves))] == [False, True]
    for program in programs:
        program.check()
    assert [one.gpu for one in control.snapshot().clients] == [0, 1]


def test_second_of_two_simultaneous_moves_of_a_program_is_refused(
    shared: Shared, bus: str
) -> None:
    control, _ = shared()
    client = only(control).id
    with Control(bus, 60) as first, Control(bus, 60) as second:
        why = sorted(answers(partial(one.move, client, "1") for one in (first, second)))
    assert why[0] == ""
    assert why[1].endswith("has moved")
    wait_until(partial(is_on, control, 1))


def test_idle_program_is_parked_after_the_deep_idle_time_though_no_program_waits(
    site: Site, start: Start
) -> None:
    control = start("--deep-idle", "10ms")
    for _ in range(3):
        Program(site)
    wait_until(lambda: is_state(control, "parked"))
    assert used(site) == [0, 0]


HALF = ("--capacity", "64MiB")          # capacity of each card, for start_two_busy()


def start_two_busy(site: Site) -> list[Program]:
    """Starts two programs that compute without pause and do not fit on a card together."""
    programs = [Program(site), Program(site)]
    for program in programs:
        assert program.ask("grow(24)") == "24"
        program.tell("work()")
    return programs


def end_busy(programs: list[Program]) -> None:
    for program in programs:
        assert program.ask("stop") == "{7}"
        program.end()


def test_balance_moves_a_waiting_program_to_the_idle_card_and_logs_the_reason(
    site: Site, start: Start
) -> None:
    control = start("--balance", "on", "--tq", "3", *HALF)
    programs = start_two_busy(site)
    wait_until(lambda: {one.gpu for one in control.snapshot().clients} == {0, 1})
    (moved,) = [one for one in control.snapshot().clients if one.gpu == 1]
    assert "from GPU 0" in moved.moved
    assert "waiting" in moved.moved
    end_busy(programs)                  # each program has its own card, so no further move
    assert "moves to gpu1 from GPU 0" in site.log.read_text()


def test_parked_program_that_exits_or_is_killed_leaves_no_memory_on_the_cards(
    site: Site, start: Start
) -> None:
    control = start()
    for end in (Program.end, Program.kill):
        program = Program(site)
        park(site, control)
        end(program)
        wait_until(lambda: not control.snapshot().clients)
        assert used(site) == [0, 0]


STEPS = ["park:0", "park:1", "park:2", "wake:0", "wake:1", "wake:2"]
LONG = pytest.mark.long


@pytest.mark.parametrize("cut", [
    pytest.param(step, marks=[] if step in ("park:1", "wake:2") else LONG)
    for step in STEPS if step != "wake:0"])
def test_parked_program_continues_when_the_checkpoint_helper_is_killed_at_any_step(
    site: Site, shared: Shared, cut: str
) -> None:
    site.module = "tests.integration.changed"
    control, program = shared(NVSHARE_TEST_CUT=cut)
    if cut in ("park:0", "park:1"):     # with two calls of the driver the process is checkpointed
        refuse_to_park(control, program, "nvshare-checkpoint")
    for _ in range(2):
        program.check()
        park(site, control)
    assert only(control).unparkable == ""


@pytest.mark.parametrize("end", ["KILL", pytest.param("TERM", marks=LONG)])
@pytest.mark.parametrize("cut", [
    pytest.param(step, marks=[] if step[-1] == "1" else LONG) for step in STEPS])
def test_parked_program_continues_when_the_daemon_is_ended_at_any_step(
    site: Site, start: Start, cut: str, end: str
) -> None:
    site.module = "tests.integration.changed"
    control = start(NVSHARE_TEST_CUT=f"{cut}:{end}")
    daemon = site.started[-1]
    program = Program(site)
    if cut.startswith("park"):
        with pytest.raises(NvshareError):
            control.park(only(control).id)
    else:
        control.park(only(control).id)
    program.tell("read()")
    daemon.wait()
    site.module = "nvshared"
    control = start()
    assert program.line() == program.right
    wait_until(lambda: bool(control.snapshot().clients))
    park(site, control)


def test_moved_program_is_on_the_new_card_after_checkpoint_helper_and_daemon_were_killed(
    site: Site, start: Start, shared: Shared, helper: Path
) -> None:
    """When the daemon is killed, the process is restored on the other card and still locked."""
    write_script(helper, f"""while read line; do
        case "$line" in
        wake*=*) echo "$line" | env NVSHARE_SIM_FAIL=cuCheckpointProcessUnlock:1 \\
            {CHECKPOINTER} >{site.folder}/answer; kill -9 $PPID;;
        *) echo "$line" | {CHECKPOINTER};;
        esac
    done""")
    control, program = shared()
    with pytest.raises(NvshareError):
        control.move(only(control).id, "1")
    site.started[0].wait()
    assert "state locked" in (site.folder / "answer").read_text()
    site.module = "nvshared"
    control = start()
    program.check()
    wait_until(partial(is_on, control, 1))
    assert used(site)[0] == 0
    park(site, control)


@pytest.fixture
def helper(site: Site) -> Path:
    """The path at which the daemon of this site finds nvshare-checkpoint."""
    site.module = "tests.integration.changed"
    helper = site.folder / "nvshare-checkpoint"
    site.environment["NVSHARE_TEST_HELPER"] = str(helper)
    return helper


def write_script(helper: Path, script: str) -> None:
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)


@pytest.mark.parametrize(("script", "reason"), [
    ("read line; echo step x y z w; echo state running", "nonsense"),
    ('read line; yes "$(head -c 9000 /dev/zero | tr "\\0" x)"', "nonsense: more than"),
    ("read line; echo state x", "for the driver its process is x"),
    ("exit 1", "ended without an answer"),
    ("exec sleep 1000", "has not answered for 1 s"),
    # The helper is removed after its first answer, so no further helper can be started.
    (f'read line; echo "$line" | {CHECKPOINTER}; rm "$0"', "No such file"),
    (None, "Permission denied|Exec format error"),
], ids=["nonsense", "endless lines", "unknown state", "fails", "hangs", "removed", "no program"])
def test_park_with_a_broken_checkpoint_helper_fails_and_the_program_continues(
    shared: Shared, helper: Path, script: str | None, reason: str
) -> None:
    if script is None:
        helper.write_text("")           # the helper exists but is not executable
    else:
        write_script(helper, script)
    control, program = shared(NVSHARE_TEST_PATIENCE="1" if "answered" in reason else "")
    for _ in range(2):
        refuse_to_park(control, program, reason)


OUTLASTS = """
import asyncio, time
from pathlib import Path
from nvshared.machine import checkpoint
process = asyncio.run(checkpoint.start(Path("none"), "sh", "-c", "sleep 0.1"))[2]
del process
time.sleep(0.5)
"""


def test_event_loop_that_ends_before_a_helper_does_complains_of_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", OUTLASTS], cwd=ROOT, check=False,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_parked_program_stopped_by_sigstop_can_be_moved_and_continues_after_sigcont(
    site: Site, shared: Shared
) -> None:
    control, program = shared()
    park(site, control)
    program.popen.send_signal(signal.SIGSTOP)
    control.move(only(control).id, "1")
    program.popen.send_signal(signal.SIGCONT)
    program.check()
    wait_until(partial(is_on, control, 1))


def test_exec_in_a_parked_program_leaves_no_memory_on_the_card(site: Site, shared: Shared) -> None:
    control, program = shared()
    first = only(control).id
    park(site, control)
    assert program.ask(
        "os.execv(sys.executable, [sys.executable, '-m', 'tests.integration.moved'])") == "ready"
    wait_until(lambda: [one.id for one in control.snapshot().clients] != [first])
    program.check()
    park(site, control)


def test_program_that_exits_during_a_move_exits_with_success(
    site: Site, start: Start, bus: str
) -> None:
    control = start()
    for _ in range(3):
        program = Program(site)
        mover = start_move(bus, only(control).id)
        wait_until(lambda: not is_state(control, "idle"))
        program.end()
        with suppress(NvshareError):
            mover.result()
        wait_until(lambda: not control.snapshot().clients)
        assert used(site) == [0, 0]


def test_park_and_move_of_programs_that_share_memory_by_ipc_are_refused(
    site: Site, start: Start
) -> None:
    control = start()
    exporter = Program(site)
    handle = exporter.ask("export()")
    importer = Program(site)
    assert importer.ask(f"import_({handle})") == exporter.right
    for program in (exporter, importer):
        (client,) = clients_of(control, program)
        for order in (control.park, partial(control.move, gpu="1")):
            with pytest.raises(NvshareError, match=r"\(801\)|memory"):
                order(client.id)
        program.check()


def test_drain_before_a_stop_of_the_daemon_restores_a_parked_program(
    site: Site, shared: Shared
) -> None:
    control, _ = shared()
    park(site, control)
    control.drain()
    wait_until(lambda: is_state(control, "running"))
    site.started[0].terminate()
    site.started[0].wait()


def test_park_waits_for_a_long_host_function_of_the_program(site: Site, shared: Shared) -> None:
    control, program = shared()
    assert program.ask("launch_host_function(1.0)") == "False"  # the host function has not ended
    park(site, control)
    assert program.ask("ended") == "[True]"


@pytest.mark.parametrize("command", ["state", "park", "wake"])
def test_program_killed_during_a_checkpoint_helper_command_leaves_no_memory_on_the_cards(
    site: Site, start: Start, bus: str, helper: Path, command: str
) -> None:
    asked, go = site.folder / "asked", site.folder / "go"
    write_script(helper, f"""while read line; do
        if [ "${{line%% *}}" = {command} ] && [ -e {site.folder}/armed ]; then
            touch {asked}; while [ ! -e {go} ]; do sleep 0.01; done
        fi
        echo "$line"
    done | {CHECKPOINTER}""")
    control = start()
    program = Program(site)
    (site.folder / "armed").touch()
    mover = start_move(bus, only(control).id)
    wait_until(asked.exists)
    program.kill()
    wait_until(lambda: not control.snapshot().clients)
    go.touch()
    with pytest.raises(NvshareError, match="has ended"):
        mover.result()
    assert used(site) == [0, 0]
    (site.folder / "armed").unlink()
    Program(site)
    park(site, control)


def act(control: Control, program: Program, random: Random) -> None:
    """Parks or moves a program, or lets the program fill or read its memory."""
    wait_until(lambda: bool(clients_of(control, program)))
    (client,) = clients_of(control, program)
    match random.choice(["park", "move", "move", "fill", "read", "ask"]):
        case "park":
            control.park(client.id)
        case "move":
            control.move(client.id, str(1 - client.gpu))
        case "fill":
            program.right = f"{{{random.randrange(256)}}}"
            program.ask(f"fill({program.right[1:-1]})")
        case "ask":
            assert program.ask("in_thread('free() > 0')") == "True"
        case _:
            program.check()


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_random_parks_moves_and_restarts_keep_each_programs_bytes(
    site: Site, start: Start, bus: str, seed: int
) -> None:
    random = Random(seed)
    start("--neighbour", random.choice(["auto", "off"]))
    daemon = site.started[-1]
    programs = [Program(site) for _ in range(3)]
    for _ in range(25):
        if random.random() < 1 / 7:
            kill(daemon)
            start()
            daemon = site.started[-1]
        with Control(bus, 60) as patient:
            act(patient, random.choice(programs), random)


def test_simultaneous_parks_and_moves_of_programs_keep_all_bytes(
    site: Site, start: Start, bus: str
) -> None:
    start()
    programs = [Program(site) for _ in range(4)]

    def act_repeatedly(number: int) -> None:
        random = Random(number)
        with Control(bus, 60) as mine:
            for _ in range(6):
                act(mine, programs[number], random)

    with ThreadPoolExecutor() as threads:
        list(threads.map(act_repeatedly, range(4)))
    for program in programs:
        program.check()
        program.end()
    assert "ERROR" not in site.log.read_text()


def test_child_forked_by_a_parked_program_gets_a_driver_error(site: Site, shared: Shared) -> None:
    control, program = shared()
    assert program.ask("ask_in_child()") == "3"
    park(site, control)
    assert program.ask("ask_in_child()") == "3"
    assert only(control).state == "parked"


def test_park_move_and_drain_of_a_program_on_two_cards_are_refused(shared: Shared) -> None:
    control, program = shared()
    assert program.ask("use_second_card()") == "2"
    wait_until(lambda: len(control.snapshot().clients) == 2)
    before = control.snapshot().clients
    for client in before:
        for order in (control.park, partial(control.move, gpu=str(1 - client.gpu))):
            with pytest.raises(NvshareError, match="it uses several GPUs"):
                order(client.id)
    ((pid, why),) = control.drain_gpu("0")
    assert pid == program.popen.pid
    assert "it uses several GPUs" in why
    program.check()
    after = control.snapshot().clients
    assert [(one.id, one.gpu, one.bytes_out) for one in after] == [
        (one.id, one.gpu, 0) for one in before]


def test_daemon_restart_leaves_a_suspended_parked_program_parked(
    site: Site, start: Start, shared: Shared
) -> None:
    state = site.folder / "state"
    control, program = shared("--state-dir", str(state))
    client = only(control)
    control.set_client_term(client.id, "suspended", 1)
    park(site, control)
    program.tell("read()")
    wait_until(lambda: only(control).waiting_usec > 0)
    site.started[0].terminate()
    site.started[0].wait()
    control = start("--state-dir", str(state))
    wait_until(lambda: {one.state for one in control.snapshot().clients} - {"restoring"} != set())
    assert only(control).state == "parked"
    assert used(site) == [0, 0]
    control.set_client_term(only(control).id, "suspended", 0)
    assert program.line() == program.right


def test_reported_context_size_is_limited_to_the_private_memory_of_the_process(
    site: Site, start: Start
) -> None:
    control = start("--swap-budget", "4GiB")
    site.hook().say(Type.HELLO, flags=Flag.IS_PARKED, context=1 << 40)
    wait_until(lambda: [one.state for one in control.snapshot().clients] == ["parked"])
    program = Program(site)
    (client,) = clients_of(control, program)
    control.park(client.id)


def test_move_of_a_suspended_program_loads_no_memory_on_the_new_card(
    site: Site, shared: Shared
) -> None:
    control, program = shared()
    control.set_client_term(only(control).id, "suspended", 1)
    wait_until(lambda: only(control).state == "suspended")
    program.tell("read()")
    wait_until(lambda: only(control).waiting_usec > 0)
    control.move(only(control).id, "1")
    wait_until(partial(is_on, control, 1))
    assert only(control).state == "suspended"
    control.set_client_term(only(control).id, "suspended", 0)
    assert program.line() == program.right
    loads = site.lines(order="load", gpu=1)
    resumed = site.lines(event="terms-changed", gpu=1)[-1]
    assert min(one["at"] for one in loads) >= resumed["at"]


def test_parked_program_of_a_lost_card_wakes_on_the_other_card(site: Site, start: Start) -> None:
    site.module = "tests.integration.changed"
    lost = site.folder / "lost"
    control = start(NVSHARE_TEST_LOST=str(lost), **SAMPLED_OFTEN)
    program = Program(site)
    park(site, control)
    (site.folder / "new").write_text(control.snapshot().gpus[0].uuid)
    (site.folder / "new").rename(lost)      # from now on the driver reports this card as lost
    wait_until(lambda: control.snapshot().gpus[0].state == "lost")
    program.check()
    wait_until(partial(is_on, control, 1))
    assert used(site)[0] == 0


CONTEXT = {"NVSHARE_SIM_CONTEXT": "200M"}
# A client's call fails with this error once the driver cannot restore its process.
LOST = "('cuMemcpyDtoH_v2', 304)"


@pytest.fixture
def large_contexts(site: Site) -> None:
    site.environment |= CONTEXT


def restores(site: Site) -> list[str]:
    """The driver's answers to all restores, by the daemon's log of --debug."""
    return re.findall(r"\]: restore: [^\n]*\((\d+)\)", site.log.read_text())


def waits_for_room(site: Site) -> bool:
    return "cannot be restored yet" in site.log.read_text()


@pytest.mark.parametrize("restart", [False, True], ids=["same daemon", "next daemon"])
@pytest.mark.usefixtures("large_contexts")
def test_no_restore_is_ordered_while_other_programs_leave_no_room_for_the_context(
    site: Site, start: Start, *, restart: bool
) -> None:
    control = start("--debug")
    program = Program(site)
    park(site, control)
    foreign = fill_cards(site, 0, 1)
    if restart:
        kill(site.started[0])
        control = start("--debug")
    program.tell("read()")
    wait_until(partial(waits_for_room, site))
    assert only(control).state in ("parked", "restoring")
    assert not restores(site)
    foreign.kill()
    assert program.line() == program.right
    assert restores(site) == ["0"]


@pytest.mark.parametrize(("grows", "works"), [(800, False), (600, True)], ids=["idle", "busy"])
@pytest.mark.usefixtures("large_contexts")
def test_clients_that_fill_the_card_are_evicted_for_a_context_before_the_restore_is_ordered(
    site: Site, start: Start, grows: int, *, works: bool
) -> None:
    control = start("--debug", "--tq", "1")
    program = Program(site)
    park(site, control)
    other = Program(site)
    assert other.ask(f"grow({grows})") == str(grows)
    assert used(site)[0] >= 1024 - 216
    if works:
        other.tell("work()")
    program.check()
    if works:
        assert other.ask("stop") == other.right
    program.end()                       # beside its context the larger one would not fit
    other.check()
    assert restores(site) == ["0"]


@pytest.mark.usefixtures("large_contexts")
def test_programs_that_wake_at_the_same_time_are_restored_only_as_far_as_the_card_has_room(
    site: Site, start: Start
) -> None:
    control = start("--debug")
    programs = [Program(site) for _ in range(3)]
    for client in control.snapshot().clients:
        control.park(client.id)
    foreign = [fill_cards(site, 0, leave=500), fill_cards(site, 1, leave=30)]
    for program in programs:
        program.tell("read()")
    wait_until(partial(waits_for_room, site))
    wait_until(lambda: len(restores(site)) == 2)
    for one in foreign:
        one.kill()
    assert [program.line() for program in programs] == [program.right for program in programs]
    assert set(restores(site)) == {"0"}


@pytest.mark.usefixtures("large_contexts")
def test_program_is_not_parked_for_a_move_to_a_card_without_room_for_its_context(
    site: Site, shared: Shared
) -> None:
    control, program = shared("--debug")
    fill_cards(site, 1)
    with pytest.raises(NvshareError, match="GPU 1 has 100 MiB for it"):
        control.move(only(control).id, "1")
    assert "checkpoint:" not in site.log.read_text()
    program.check()


@pytest.mark.parametrize("code", [2, 304])
def test_program_that_the_driver_cannot_restore_gets_an_error_and_no_further_restore_is_ordered(
    site: Site, shared: Shared, code: int
) -> None:
    control, program = shared("--debug", NVSHARE_SIM_FAIL=f"cuCheckpointProcessRestore:1:{code}")
    park(site, control)
    program.tell("read()")
    assert program.line() == LOST
    assert only(control).state == "lost"
    assert f"({code})" in only(control).unparkable
    for order in (control.park, partial(control.move, gpu="1")):
        with pytest.raises(NvshareError, match="the driver cannot restore it"):
            order(only(control).id)
    # Later calls get the error, too, whichever function they are of.
    names = [name for name in entries() if not name.startswith("cuGetError")]
    assert program.ask(f"{{getattr(cuda, n)(*[ctypes.c_uint64(0)] * 12) for n in {names!r}}}") == (
        "{304}")
    assert restores(site) == [str(code)]
    lines = [line for line in site.log.read_text().splitlines() if "is lost" in line]
    assert len(lines) == 1
    program.end()
    wait_until(lambda: not control.snapshot().clients)


def test_program_that_waits_for_its_turn_when_its_restore_fails_gets_the_error(
    site: Site, start: Start
) -> None:
    """So it does under the next daemon; other programs go on."""
    control = start(NVSHARE_SIM_FAIL="cuCheckpointProcessRestore:1:2")
    program = Program(site)
    park(site, control)
    assert program.ask("fill(3)") == "('cuMemsetD8_v2', 304)"
    kill(site.started[0])
    control = start()
    wait_until(lambda: bool(control.snapshot().clients))
    assert program.ask("fill(3)") == "('cuMemsetD8_v2', 304)"
    other = Program(site)
    assert other.ask("grow(900)") == "900"
    other.check()
    program.end()


def test_move_with_a_failing_restore_leaves_the_program_on_its_card(
    site: Site, shared: Shared
) -> None:
    """For example, the program's container does not see that card, or the card is being lost."""
    control, program = shared(NVSHARE_SIM_FAIL="cuCheckpointProcessRestore:1:101")
    first = only(control)
    with pytest.raises(NvshareError, match=r"was not moved: restore: .*\(101\)"):
        control.move(first.id, "1")
    program.check()
    assert (only(control).id, only(control).gpu) == (first.id, 0)
    lines = [line for line in site.log.read_text().splitlines() if "nvshare-checkpoint" in line]
    assert len(lines) == 1
    assert "wake failed: restore: " in lines[0]


def test_parked_program_wakes_once_a_card_has_memory_for_it(site: Site, shared: Shared) -> None:
    control, program = shared()
    assert program.ask("grow(110)") == "110"
    park(site, control)
    foreign = fill_cards(site, 0, 1)
    program.tell("read()")
    wait_until(lambda: only(control).waiting_usec > 0)
    foreign.kill()
    assert program.line() == program.right
