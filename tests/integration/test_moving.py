# SPDX-License-Identifier: Apache-2.0
"""Programs are parked, woken and moved on simulated cards, by the real daemon and helper."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from nvshared.errors import NvshareError
from nvshared.units import MIB
from tests import pages
from tests.bus.service import private_bus
from tests.integration.conftest import BUILD, ROOT, Site
from tests.integration.test_turns import NVSHARECTL

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())

Eventually = Callable[[Callable[[], bool]], None]
ENTRIES = ROOT / "libhook" / "simulator" / "table" / "entries.def"

USED = """
from nvshared.machine.nvml import NVML
nvml = NVML()
for facts in nvml.find():
    print(nvml.sample(facts.uuid).memory_used)
"""


@pytest.fixture
def bus() -> Iterator[str]:
    """The address of a bus for the daemon and its administrator."""
    with private_bus() as made:
        yield made.address


class Program:
    """tests/integration/moved.py, under the library."""

    def __init__(self, site: Site, **variables: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.moved"], cwd=ROOT, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={
                **site.environment, "LD_PRELOAD": str(BUILD / "libnvshare.so"),
                "NVSHARE_SOCKET": str(site.socket), **variables,
            },
        )
        site.started.append(self.popen)
        assert self._line() == "ready"

    def say(self, line: str) -> None:
        assert self.popen.stdin is not None
        print(line, file=self.popen.stdin, flush=True)

    def ask(self, line: str) -> str:
        self.say(line)
        return self._line()

    def _line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def end(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.popen.wait() == 0


def used(site: Site) -> list[int]:
    """MiB of each card in use, as NVML says."""
    said = subprocess.run(
        [sys.executable, "-c", USED], env=site.environment, cwd=ROOT, capture_output=True,
        text=True, check=True).stdout
    return [int(line) // MIB for line in said.split()]


def only(control: Control) -> ClientSnapshot:
    (client,) = control.snapshot().clients
    return client


def is_on(control: Control, card: int) -> bool:
    return [one.gpu for one in control.snapshot().clients] == [card]


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """With two cards that nobody else uses."""
    from tests.integration.conftest import _made, simulate

    folder = tmp_path / "cards"
    folder.mkdir()
    yield from _made(tmp_path, simulate(folder))


def test_parked_program_has_no_memory_on_the_card_and_wakes_at_a_call(
    own_site: Site, bus: str,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        assert used(own_site)[0] >= 64
        control.park(only(control).id)
        assert used(own_site) == [0, 0]
        assert only(control).state == "parked"
        assert program.ask("read()") == "{7}"
        assert only(control).state == "running"
        assert used(own_site)[0] >= 64
        # A question alone wakes it, too, and from another thread.
        for question in ("free() > 0", "in_thread('free()')", "in_thread('fill(9)') or True"):
            control.park(only(control).id)
            assert used(own_site) == [0, 0]
            assert program.ask(question) == "True"
    program.end()


def test_commands_of_moving_md_park_move_and_drain_a_program(own_site: Site, bus: str) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        for command, card in (
            ("nvsharectl park 4711", 0), ("nvsharectl move 4711 --to 1", 1),
            ("nvsharectl drain --gpu 1", 0), ("nvsharectl --json clients", 0),
        ):
            assert ("docs/moving.md", command) in pages.inline()
            words = command.replace("4711", str(program.popen.pid)).split()[1:]
            done = subprocess.run(
                [*NVSHARECTL, "--bus", bus, *words], cwd=ROOT, capture_output=True, text=True,
                check=False)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert only(control).gpu == card
            if "park" in command:
                assert only(control).state == "parked"
            assert program.ask("read()") == "{7}"
    program.end()


def entries() -> list[str]:
    """All functions of the driver but those that end contexts or work on processes."""
    names = re.findall(r"^(?:ENTRY|UNSUPPORTED)\((\w+),", ENTRIES.read_text(), re.MULTILINE)
    return [name for name in names if not re.match(
        r"cuCtxDestroy|cuCtxDetach|cuDevicePrimaryCtxRe|cuCtxReset|cuCheckpoint|cuGL|cuVDPAU|"
        r"cuCtxCreate|cuGreenCtxDestroy|cuCtxPop", name)]


def test_parked_program_wakes_at_whichever_driver_function_it_calls(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    """The simulated driver aborts a checkpointed program of which any call arrives."""
    own_site.start("--bus", bus)
    program = Program(own_site)
    names = entries()
    assert len(names) > 500
    with Control(bus) as control:
        client = only(control)
        # So that it stays parked while they call.
        control.set_client_term(client.id, "suspended", 1)
        control.park(client.id)
        assert program.ask(f"call_all({names!r})") == str(len(names))

        def stand() -> bool:
            tasks = Path(f"/proc/{program.popen.pid}/task")
            waiting = [path for path in tasks.iterdir()
                       if (path / "syscall").read_text().startswith("202 ")]
            return len(waiting) >= len(names)

        eventually(stand)
        assert program.ask("len(returned)") == "0"
        assert only(control).state == "parked"
        control.set_client_term(client.id, "suspended", 0)
        assert program.ask("join()") == str(len(names))
        assert program.ask("read()") == "{7}"
    program.end()


def test_moved_program_goes_on_with_the_same_bytes_on_the_other_card(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        before = only(control)
        control.set_client_term(before.id, "compute-limit", 50)
        for target in ("1", "0", "1"):
            control.move(only(control).id, target)
            eventually(partial(is_on, control, int(target)))
            assert program.ask("read()") == "{7}"
            figures = used(own_site)
            assert figures[int(target)] >= 64
            assert figures[1 - int(target)] == 0
            assert only(control).compute_limit == 50
    program.end()


def test_program_that_the_driver_refuses_goes_on_and_the_reason_is_kept(
    own_site: Site, bus: str,
) -> None:
    own_site.start("--bus", bus, NVSHARE_SIM_FAIL="cuCheckpointProcessCheckpoint:1:801")
    program = Program(own_site)
    with Control(bus) as control:
        for _ in range(2):
            with pytest.raises(NvshareError, match=r"checkpoint: .*801"):
                control.park(only(control).id)
            assert program.ask("read()") == "{7}"
        assert "801" in only(control).unparkable
        assert only(control).state == "running"
    program.end()


def test_program_with_an_old_driver_is_not_parked(own_site: Site, bus: str) -> None:
    own_site.start("--bus", bus, NVSHARE_SIM_DRIVER="565")
    program = Program(own_site)
    with Control(bus) as control:
        with pytest.raises(NvshareError, match="570"):
            control.park(only(control).id)
        assert program.ask("read()") == "{7}"
    program.end()


def test_program_is_not_moved_to_a_card_without_enough_free_memory(
    own_site: Site, bus: str,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    # A stranger, which has all of the other card.
    with Control(bus) as control, subprocess.Popen(
        [sys.executable, "-c",
         "import ctypes; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0);"
         "c.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 1);"
         "print(c.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1000 << 20)),"
         "flush=True); input()"],
        env=own_site.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "0\n"
        with pytest.raises(NvshareError, match="GPU 1 is too small"):
            control.move(only(control).id, "1")
        assert program.ask("read()") == "{7}"
        assert only(control).gpu == 0
        stranger.kill()
    program.end()


def test_idle_programs_are_parked_after_deep_idle_though_no_program_waits(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus, "--deep-idle", "10ms")
    programs = [Program(own_site) for _ in range(3)]
    with Control(bus) as control:
        eventually(lambda: {one.state for one in control.snapshot().clients} == {"parked"})
        assert used(own_site) == [0, 0]
    for one in programs:
        assert one.ask("read()") == "{7}"
        one.end()


def keep_busy(program: Program, other: Program) -> None:
    """Both use their GPU without pause, and do not fit together."""
    for one in (program, other):
        assert one.ask("grow(600)") == "600"
        one.say("work()")


def test_balance_moves_a_waiting_program_to_the_idle_card_and_says_why(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus, "--balance", "on", "--tq", "3")
    programs = Program(own_site), Program(own_site)
    keep_busy(*programs)
    with Control(bus) as control:
        eventually(lambda: {one.gpu for one in control.snapshot().clients} == {0, 1})
        (moved,) = [one for one in control.snapshot().clients if one.gpu == 1]
        assert "from GPU 0" in moved.moved
        assert "waiting" in moved.moved
        # Each has a card now, so neither moves again.
        for one in programs:
            assert one.ask("stop") == "{7}"
            one.end()
    assert "moves to gpu1 from GPU 0" in own_site.log.read_text()


def test_balance_leaves_a_program_that_the_driver_refuses_and_does_not_ask_again(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus, "--balance", "on", "--tq", "1",
                   NVSHARE_SIM_FAIL="cuCheckpointProcessCheckpoint:1+:801")
    programs = Program(own_site), Program(own_site)
    keep_busy(*programs)
    with Control(bus) as control:
        eventually(lambda: all(one.unparkable for one in control.snapshot().clients))
        assert {(one.gpu, one.moved) for one in control.snapshot().clients} == {(0, "")}
    for one in programs:
        assert one.ask("stop") == "{7}"
        one.end()
    assert own_site.log.read_text().count("moves to gpu1") == 2


def test_program_is_not_moved_beyond_its_tenants_memory_limit_on_the_other_card(
    own_site: Site, bus: str,
) -> None:
    own_site.start("--bus", bus)
    program, other = Program(own_site), Program(own_site)
    with Control(bus) as control:
        (tenant,) = {one.tenant for one in control.snapshot().clients}
        control.move(control.snapshot().clients[0].id, "1")
        control.set_tenant_terms(tenant, {"memory-limit": 100 * MIB})
        (last,) = [one for one in control.snapshot().clients if one.gpu == 0]
        with pytest.raises(NvshareError, match=r"on GPU 1, all programs of .* are limited to"):
            control.move(last.id, "1")
    for one in (program, other):
        assert one.ask("read()") == "{7}"
        one.end()


def test_parked_program_that_is_killed_leaves_no_memory_on_the_cards(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        control.park(only(control).id)
        os.kill(program.popen.pid, signal.SIGKILL)
        eventually(lambda: not control.snapshot().clients)
        assert used(own_site) == [0, 0]


@pytest.mark.parametrize("cut", ["park:0", "park:1", "park:2", "wake:1", "wake:2"])
def test_program_goes_on_when_the_helper_is_killed_at_any_step(
    own_site: Site, bus: str, cut: str,
) -> None:
    own_site.module = "tests.integration.cutshort"
    own_site.start("--bus", bus, NVSHARE_TEST_CUT=cut)
    program = Program(own_site)
    with Control(bus) as control:
        if cut.startswith("park"):
            with pytest.raises(NvshareError, match="nvshare-checkpoint"):
                control.park(only(control).id)
        for _ in range(2):
            assert program.ask("read()") == "{7}"
            control.park(only(control).id)
            assert used(own_site) == [0, 0]
        assert only(control).unparkable == ""
    program.end()


@pytest.mark.parametrize("end", ["KILL", "TERM"])
@pytest.mark.parametrize("cut", ["park:0", "park:1", "park:2", "wake:0", "wake:1", "wake:2"])
def test_program_goes_on_when_the_daemon_is_ended_at_any_step(
    own_site: Site, bus: str, eventually: Eventually, cut: str, end: str,
) -> None:
    own_site.module = "tests.integration.cutshort"
    daemon = own_site.start("--bus", bus, NVSHARE_TEST_CUT=f"{cut}:{end}")
    program = Program(own_site)
    with Control(bus) as control:
        if cut.startswith("park"):
            with pytest.raises(NvshareError):
                control.park(only(control).id)
        else:
            control.park(only(control).id)
        program.say("read()")
        daemon.wait()
    own_site.module = "nvshared"
    own_site.start("--bus", bus)
    assert program._line() == "{7}"
    with Control(bus) as control:
        eventually(lambda: bool(control.snapshot().clients))
        control.park(only(control).id)
        assert used(own_site) == [0, 0]
    assert program.ask("read()") == "{7}"
    program.end()


def helpers_of(daemon: subprocess.Popen[str]) -> list[int]:
    """Processes of nvshare-checkpoint that the daemon keeps."""
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    return [int(pid) for pid in children
            if Path(f"/proc/{pid}/comm").read_text().startswith("nvshare-checkpo")]


@pytest.mark.parametrize(("script", "words"), [
    ("read line; echo step x y z w; echo state running", "nonsense"),
    ("read line; head -c 100000 /dev/zero; echo; echo state running", "nonsense"),
    ("exit 1", "none"),
])
def test_park_fails_each_time_and_the_program_goes_on_with_a_broken_helper(
    own_site: Site, bus: str, script: str, words: str,
) -> None:
    helper = own_site.folder / "nvshare-checkpoint"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    own_site.module = "tests.integration.ownhelper"
    own_site.start("--bus", bus, NVSHARE_TEST_HELPER=str(helper))
    program = Program(own_site)
    with Control(bus) as control:
        for _ in range(2):
            with pytest.raises(NvshareError, match=words):
                control.park(only(control).id)
            assert program.ask("read()") == "{7}"
    program.end()


def test_park_fails_and_the_program_goes_on_when_the_helper_has_been_removed(
    own_site: Site, bus: str,
) -> None:
    helper = own_site.folder / "nvshare-checkpoint"
    shutil.copy(BUILD / "nvshare-checkpoint", helper)
    own_site.module = "tests.integration.ownhelper"
    daemon = own_site.start("--bus", bus, NVSHARE_TEST_HELPER=str(helper))
    program = Program(own_site)
    with Control(bus) as control:
        control.park(only(control).id)
        assert program.ask("read()") == "{7}"
        helper.unlink()
        for pid in helpers_of(daemon):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(NvshareError, match="No such file"):
            control.park(only(control).id)
        assert program.ask("read()") == "{7}"
    program.end()


def test_park_fails_and_the_program_goes_on_when_the_helper_is_removed_after_its_first_answer(
    own_site: Site, bus: str,
) -> None:
    helper = own_site.folder / "nvshare-checkpoint"
    helper.write_text(
        f'#!/bin/sh\nread line\necho "$line" | {BUILD}/nvshare-checkpoint\nrm "$0"\n')
    helper.chmod(0o755)
    own_site.module = "tests.integration.ownhelper"
    own_site.start("--bus", bus, NVSHARE_TEST_HELPER=str(helper))
    program = Program(own_site)
    with Control(bus) as control:
        with pytest.raises(NvshareError, match="No such file"):
            control.park(only(control).id)
        # And no helper ever comes back.
        assert program.ask("read()") == "{7}"
        assert only(control).unparkable == ""
    program.end()


def test_park_refused_by_a_temporary_driver_error_can_be_repeated(own_site: Site, bus: str) -> None:
    """For example, a debugger has stopped the program, and the driver's lock times out."""
    own_site.start("--bus", bus, NVSHARE_SIM_FAIL="cuCheckpointProcessLock:1:600")
    program = Program(own_site)
    with Control(bus) as control:
        with pytest.raises(NvshareError, match=r"lock: .*600"):
            control.park(only(control).id)
        assert program.ask("read()") == "{7}"
        assert only(control).unparkable == ""
        control.park(only(control).id)
        assert used(own_site) == [0, 0]
    program.end()


def test_parked_program_stopped_by_sigstop_can_be_moved_and_goes_on_after_sigcont(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        control.park(only(control).id)
        os.kill(program.popen.pid, signal.SIGSTOP)
        control.move(only(control).id, "1")
        os.kill(program.popen.pid, signal.SIGCONT)
        assert program.ask("read()") == "{7}"
        eventually(partial(is_on, control, 1))
    program.end()


def test_exec_in_a_parked_program_leaves_no_memory_on_the_card(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        first = only(control).id
        control.park(first)
        assert program.ask(
            "os.execv(sys.executable, [sys.executable, '-m', 'tests.integration.moved'])"
        ) == "ready"
        eventually(lambda: [one.id for one in control.snapshot().clients] != [first])
        assert program.ask("read()") == "{7}"
        control.park(only(control).id)
        assert used(own_site) == [0, 0]
        assert program.ask("read()") == "{7}"
    program.end()


def test_park_waits_for_a_long_host_function_of_the_program(own_site: Site, bus: str) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        assert program.ask("launch_host_function(1.0)") == "False"      # it has not ended
        control.park(only(control).id)
        assert used(own_site) == [0, 0]
        assert program.ask("ended") == "[True]"
        assert program.ask("read()") == "{7}"
    program.end()


WAITING_HELPER = """#!/bin/sh
while read line; do
    case "$line" in wake*) touch {0}/asked; while [ ! -e {0}/go ]; do sleep 0.01; done;; esac
    echo "$line"
done | {1}/nvshare-checkpoint
"""


def test_program_whose_turn_comes_during_a_move_that_fails_everywhere_is_restored(
    own_site: Site, bus: str, eventually: Eventually,
) -> None:
    helper = own_site.folder / "nvshare-checkpoint"
    helper.write_text(WAITING_HELPER.format(own_site.folder, BUILD))
    helper.chmod(0o755)
    own_site.module = "tests.integration.ownhelper"
    own_site.start("--bus", bus, NVSHARE_TEST_HELPER=str(helper), NVSHARE_SIM_FAIL=(
        "cuCheckpointProcessRestore:1:2,cuCheckpointProcessRestore:2:2"))
    program = Program(own_site)
    failed: list[str] = []

    def move(client: int) -> None:
        with Control(bus) as mover:
            try:
                mover.move(client, "1")
            except NvshareError as error:
                failed.append(str(error))

    with Control(bus) as control:
        control.park(only(control).id)
        one = only(control)
        mover = threading.Thread(target=move, args=(one.id,))
        mover.start()
        eventually((own_site.folder / "asked").exists)
        program.say("read()")
        # No other program waits, so its turn comes at once.
        eventually(lambda: only(control).waiting_usec > 0 or only(control).turns > one.turns)
        (own_site.folder / "go").touch()
        eventually(lambda: bool(failed))
        eventually(lambda: only(control).state == "running")
    assert program._line() == "{7}"
    program.end()


@pytest.mark.parametrize("seed", range(3))
def test_random_parks_moves_and_restarts_keep_each_programs_bytes(
    own_site: Site, bus: str, eventually: Eventually, seed: int,
) -> None:
    random = Random(seed)
    daemon = own_site.start("--bus", bus, "--neighbour", random.choice(["auto", "off"]))
    programs = [Program(own_site) for _ in range(3)]
    bytes_ = [7] * 3

    def client(control: Control, number: int) -> ClientSnapshot:
        def there() -> list[ClientSnapshot]:
            pid = programs[number].popen.pid
            return [one for one in control.snapshot().clients if one.pid == pid]

        eventually(lambda: len(there()) == 1)
        return there()[0]

    for step in range(25):
        number = random.randrange(3)
        program = programs[number]
        action = random.choice(["park", "move", "move", "fill", "read", "ask", "restart"])
        print(seed, step, number, action)
        if action == "restart":
            daemon.kill()
            daemon.wait()
            daemon = own_site.start("--bus", bus)
        elif action == "fill":
            bytes_[number] = random.randrange(256)
            program.ask(f"fill({bytes_[number]})")
        elif action == "read":
            assert program.ask("read()") == str({bytes_[number]})
        elif action == "ask":
            assert program.ask("in_thread('free() > 0')") == "True"
        else:
            with Control(bus, 60) as control:
                one = client(control, number)
                if action == "park":
                    control.park(one.id)
                else:
                    control.move(one.id, str(1 - one.gpu))
    for program, byte in zip(programs, bytes_, strict=True):
        assert program.ask("read()") == str({byte})
        program.end()


def test_child_that_a_parked_program_forks_is_refused_by_the_driver(
    own_site: Site, bus: str,
) -> None:
    own_site.start("--bus", bus)
    program = Program(own_site)
    with Control(bus) as control:
        assert program.ask("ask_in_child()") == "3"
        control.park(only(control).id)
        assert program.ask("ask_in_child()") == "3"
        assert only(control).state == "parked"
        assert program.ask("read()") == "{7}"
    program.end()
