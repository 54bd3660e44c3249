# SPDX-License-Identifier: Apache-2.0
"""A program releases its turn by nvshared.program and the adapters of frameworks.

With FakeDaemon a program counts as idle only after an hour.
"""

import pytest

from nvshared import library
from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests import pages
from tests.integration.conftest import ROOT, Site
from tests.integration.fakedaemon import FOR_EVER, FakeDaemon
from tests.integration.programs import Program

ADAPTERS = library.program() / "adapters"
BEGIN = '''
import nvshared.program as sharing
size = 64 * MIB
memory = allocate(size)
def work():
    fill(memory, 7, size)
work()
'''


@pytest.fixture
def daemon(site: Site) -> FakeDaemon:
    site.environment = {**site.environment, "PYTHONPATH": f"{ROOT}:{ADAPTERS}"}
    return FakeDaemon(site, 900 * MIB, host=128 * MIB)


def start(site: Site, daemon: FakeDaemon, body: str) -> Program:
    """A program with a turn; no other program waits."""
    program = Program(site, BEGIN + body)
    daemon.accept(idle_window=FOR_EVER)
    return program


def heard(daemon: FakeDaemon) -> list[Type]:
    """The types of reports until the program has carried out all orders."""
    daemon.said.clear()
    daemon.move(Type.LOAD, daemon.room)
    return [report.type for report in daemon.said]


def test_turn_release_call_is_reported_at_once_and_cancelled_by_submitted_work(
    site: Site, daemon: FakeDaemon
) -> None:
    program = start(
        site, daemon, "sharing.release()\nwork()\npause('works')\npause(sharing.release())")
    assert program.hears() == "works"
    daemon.run(contended=True)
    assert Type.IDLE not in heard(daemon)
    assert Type.IDLE not in heard(daemon)
    program.go_on()
    assert program.hears() is True
    daemon.until(Type.IDLE)
    program.finish()


def test_turn_release_call_ends_only_the_present_turn_and_only_while_another_program_waits(
    site: Site, daemon: FakeDaemon
) -> None:
    """Otherwise a thread that is slow to pass the open gate would lose its next turn to the old
    release."""
    program = start(site, daemon, "pause(sharing.release())")
    assert program.hears() is True
    daemon.run(contended=True)
    daemon.until(Type.IDLE)
    daemon.stop()
    daemon.run(contended=True)
    for _ in range(50):                 # the client checks its work in flight after each order
        assert Type.IDLE not in heard(daemon)
    program.finish()


def test_nested_python_turn_blocks_release_the_turn_when_the_outermost_block_ends(
    site: Site, daemon: FakeDaemon
) -> None:
    program = start(site, daemon, '''
try:
    with sharing.turn():
        with sharing.turn():
            work()
        pause("inner")
        raise KeyError
except KeyError:
    pause("outer")
''')
    assert program.hears() == "inner"
    daemon.run(contended=True)
    assert Type.IDLE not in heard(daemon)
    program.go_on()
    assert program.hears() == "outer"
    daemon.until(Type.IDLE)
    program.finish()


def test_loop_in_engines_md_releases_the_turn_after_each_batch(
    site: Site, daemon: FakeDaemon
) -> None:
    loop = pages.block("docs/engines.md", "import nvshared.program")
    program = start(site, daemon, f"""
pause("ready")
def given():
    for batch in range(2):
        yield batch
        pause("done")
def train(batch):
    work()
batches = given()
{loop}
""")
    assert program.hears() == "ready"
    daemon.run(contended=True)
    assert Type.IDLE not in heard(daemon)
    program.go_on()
    for _ in range(2):
        assert program.hears() == "done"
        daemon.until(Type.IDLE)
        daemon.stop()
        daemon.move(Type.LOAD, daemon.room)
        daemon.run(contended=True)
        program.go_on()
    program.ends_well()


def test_turn_release_call_in_a_forked_child_returns_false(site: Site, daemon: FakeDaemon) -> None:
    program = start(site, daemon, '''
child = os.fork()
if child == 0:
    os._exit(int(sharing.release()))
pause(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
''')
    assert program.hears() == 0
    program.finish()


def test_torch_memory_saver_pause_frees_memory_and_resume_keeps_addresses(site: Site) -> None:
    """Uses torch_memory_saver's interface as its README does, with tags and a backup."""
    site.environment = {**site.environment, "PYTHONPATH": f"{ROOT}:{ADAPTERS}"}
    site.start("--tq", "1000")
    program = Program(site, BEGIN + '''
from torch_memory_saver import configure_subprocess, torch_memory_saver
assert torch_memory_saver.enabled
torch_memory_saver.hook_mode = "torch"
torch_memory_saver.set_disk_backup_dir("/nowhere")
with configure_subprocess():
    pass
def tensor(value):
    made = allocate(size)
    fill(made, value, size)
    return made
with torch_memory_saver.region(
        tag="weights", enable_cpu_backup=True, cpu_backup_backend="mmap"):
    weights = tensor(42)
with torch_memory_saver.region(tag="kv_cache"), torch_memory_saver.disable():
    cache = tensor(43)
torch_memory_saver.pause("kv_cache")
torch_memory_saver.pause("weights")
away()
torch_memory_saver.resume("weights")
torch_memory_saver.resume("kv_cache")
assert get(weights, size) == bytes([42]) * size
fill(cache, 44, size)
assert get(cache, size) == bytes([44]) * size
''')
    assert program.hears() == "away"
    hook = site.holding()          # only the release can end the turn: the quantum is long
    program.go_on()
    hook.close()
    program.ends_well()
