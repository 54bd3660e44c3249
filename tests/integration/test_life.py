# SPDX-License-Identifier: Apache-2.0
"""Events in a process's life while another client holds the card: threads, signals, children,
exec, exit, debuggers. The programs are life.c, closing.c and plugin.c."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from nvshared.hook.protocol import OrderRecord, Type
from nvshared.units import MIB
from tests.integration.conftest import BUILD, SIMULATOR, Process, Site
from tests.integration.fakedaemon import FakeDaemon, begin
from tests.integration.fakehook import PATIENCE, Hook
from tests.integration.programs import Program

SOURCE = Path(__file__).with_name("life.c")
CLOSING = SOURCE.with_name("closing.c")
LINKED = ("-pthread", f"-L{SIMULATOR}", "-l:libcuda.so.1")


def compiled(folder: Path, *flags: str, source: Path = SOURCE) -> Path:
    program = folder / source.stem
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-o", str(program)]
    subprocess.run([*command, str(source), *flags], check=True)
    return program


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("life"), *LINKED)


class Life(Process):
    """A running program of life.c, possibly under a tool such as valgrind."""

    def __init__(self, site: Site, *command: object, tq: str = "200ms", **environment: str) -> None:
        self.daemon = site.start("--tq", tq)
        self.site = site
        super().__init__(site.program(command, environment))

    def ends(self, code: int = 0) -> str:
        rest, _ = self.popen.communicate(timeout=PATIENCE)
        assert self.popen.returncode == code, (self.lines, rest)
        return "\n".join([*self.lines, rest])


def taken(program: Life) -> Hook:
    program.wait_for("away")
    hook = program.site.holding()
    program.tell()
    return hook


def until_it_waits(hook: Hook) -> None:
    """The daemon sends STOP because a thread of the program waits at the gate."""
    while True:
        record = hook.hear()
        assert record is not None
        if record.type is Type.STOP:
            return
        hook.obey(record)


def comes_back(program: Life) -> str:
    """Evicts the program, loads it when it waits at the gate, and returns its output."""
    hook = taken(program)
    until_it_waits(hook)
    hook.close()
    return program.ends()


def waiting_at_the_gate(site: Site, life: Path, action: str) -> tuple[Life, Hook]:
    """A program of which one thread waits at the gate while the program goes on."""
    program = Life(site, life, action)
    hook = taken(program)
    program.wait_for("waiting")
    until_it_waits(hook)
    program.tell()
    return program, hook


LARGE = """
address = allocate(96 * MIB)
fill(address, 7, 96 * MIB)
put(address, os.urandom(1 * MIB))
away()
"""


def moving(site: Site, body: str, **environment: str) -> tuple[Program, FakeDaemon]:
    """A program that continues while the played daemon evicts its memory."""
    site.environment.update({"NVSHARE_SIM_COPY_RATE": str(40 * MIB)} | environment)
    daemon, program = begin(site, LARGE + body)
    daemon.stop()
    daemon.send(*(OrderRecord(Type.EVICT, number=number, room=room, host=512 * MIB)
                  for number, room in ((2, 64 * MIB), (3, 0))))
    daemon.until(Type.MOVED)
    program.tell()
    return program, daemon


def test_program_can_exit_while_its_memory_moves(site: Site) -> None:
    """The driver is unloaded as a process exits: a thread within the driver would crash."""
    program, daemon = moving(site, "")
    daemon.rest()
    program.ends_well()


def test_child_forked_while_memory_moves_exits_without_waiting_for_its_parents_threads(
    site: Site
) -> None:
    program, daemon = moving(site, """
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
print(child)
""", NVSHARE_DEBUG="1")
    daemon.rest()
    said, errors = program.popen.communicate(timeout=PATIENCE)
    assert program.popen.returncode == 0, errors
    assert f"[{int(said)}]" not in errors


@pytest.mark.parametrize("action", [
    "plain",
    pytest.param("interrupted", id="while signals arrive"),
    pytest.param("late", id="in an exit handler"),
])
def test_evicted_memory_is_loaded_when_the_program_launches(
    site: Site, life: Path, action: str
) -> None:
    comes_back(Life(site, life, action))


def test_libcuda_may_be_closed_and_opened_again(site: Site, tmp_path: Path) -> None:
    """The program opens the library as CUDA's runtime does."""
    comes_back(Life(site, compiled(tmp_path, "-ldl", source=CLOSING), "driver"))


def test_plugin_may_be_closed_while_a_plugin_thread_waits_at_the_gate(
    site: Site, tmp_path: Path
) -> None:
    """dlclose() holds the dynamic linker's lock for as long as the plugin ends its thread."""
    plugin = tmp_path / "plugin.so"
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-fPIC", "-shared"]
    source = str(SOURCE.with_name("plugin.c"))
    subprocess.run([*command, "-o", str(plugin), source, *LINKED], check=True)
    comes_back(Life(site, compiled(tmp_path, "-ldl", source=CLOSING), "plugin", plugin))


def test_threads_started_before_cuinit_may_use_the_card(site: Site, life: Path) -> None:
    Life(site, life, "threads").ends()


def test_signal_handler_may_fork_during_a_call_that_waits_at_the_gate(
    site: Site, life: Path
) -> None:
    program = Life(site, life, "fork-inside")
    hook = taken(program)
    until_it_waits(hook)
    program.popen.send_signal(signal.SIGUSR1)
    program.wait_for("forked")
    hook.close()
    program.ends()


@pytest.mark.parametrize(("action", "number", "code"), [
    ("exit", signal.SIGUSR1, signal.SIGUSR1), ("plain", signal.SIGTERM, -signal.SIGTERM),
])
def test_signal_may_end_the_program_during_a_call_that_waits_at_the_gate(
    site: Site, life: Path, action: str, number: int, code: int
) -> None:
    """Signals with and without a handler. Afterwards card and host memory are free again."""
    program = Life(site, life, action)
    hook = taken(program)
    until_it_waits(hook)
    program.popen.send_signal(number)
    program.ends(code)
    hook.close()
    site.holding()


def test_program_may_exit_while_a_thread_waits_at_the_gate(site: Site, life: Path) -> None:
    program, _ = waiting_at_the_gate(site, life, "leave")
    program.ends()


def test_other_threads_spawn_programs_while_a_thread_waits_at_the_gate(
    site: Site, life: Path
) -> None:
    program, hook = waiting_at_the_gate(site, life, "bear")
    program.wait_for("borne")
    hook.close()
    program.tell()
    program.ends()


def test_program_may_exec_while_a_thread_waits_at_the_gate(site: Site, life: Path) -> None:
    """The executed program keeps the process id and waits for the card, which the hook has."""
    program, hook = waiting_at_the_gate(site, life, "become")
    words = Path(f"/proc/{program.popen.pid}/cmdline")
    while not words.read_bytes().endswith(b"threads\0"):
        assert program.popen.poll() is None, program.ends()
    hook.close()
    program.ends()


def tool(folder: Path, name: str) -> Path:
    """A library with the name of a profiler's, which also defines a basename() that differs from
    glibc's, as some programs do."""
    library = folder / name
    code = 'char *basename(char *path) { return path[0] == 0 ? path : "another function"; }'
    command = ["gcc", "-shared", "-fno-builtin", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=code, text=True, check=True)
    return library


@pytest.mark.parametrize("way", ["driver", "preload"])
def test_program_under_a_profiler_runs_unshared(
    site: Site, life: Path, tmp_path: Path, way: str
) -> None:
    """The driver loads the library of compute-sanitizer and nsys; that of ncu is preloaded."""
    if way == "driver":
        library = tool(tmp_path, "libsanitizer-collection.so")
        changed = {"CUDA_INJECTION64_PATH": str(library)}
    else:
        library = tool(tmp_path, "libcuda-injection.so")
        changed = {"LD_PRELOAD": f"{library}:{BUILD / 'libnvshare.so'}"}
    said = Life(site, life, "threads", **changed).ends().splitlines()
    lines = [line for line in said if line]
    assert len(lines) == 1
    assert lines[0].startswith("libnvshare[")
    assert f"]: {library.name} watches this program" in lines[0]
    assert "came" not in site.log.read_text()


def test_program_under_a_profiler_shares_the_card_if_nvshare_profiled_is_set(
    site: Site, life: Path, tmp_path: Path
) -> None:
    library = tool(tmp_path, "libsanitizer-collection.so")
    program = Life(site, life, "plain", CUDA_INJECTION64_PATH=str(library), NVSHARE_PROFILED="1")
    assert comes_back(program).split() == ["away"]


@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_gdb_attaches_to_a_program_that_waits_at_the_gate(site: Site, life: Path) -> None:
    program = Life(site, life, "plain")
    hook = taken(program)
    until_it_waits(hook)
    done = subprocess.run(
        ["gdb", "-batch", "-p", str(program.popen.pid), "-ex", "thread apply all backtrace"],
        capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "gate_wait" in done.stdout, done.stderr
    hook.close()
    program.ends()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind")
def test_program_under_valgrind_takes_turns_without_a_fault(site: Site, life: Path) -> None:
    comes_back(Life(site, "valgrind", "-q", "--error-exitcode=9", life, "plain"))
