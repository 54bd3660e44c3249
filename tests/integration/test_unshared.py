# SPDX-License-Identifier: Apache-2.0
"""Programs without the library take turns by checkpoints, on simulated cards."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from tests import pages
from tests.bus.service import private_bus
from tests.integration.conftest import ROOT, Site
from tests.integration.test_moving import Program, used

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())

Eventually = Callable[[Callable[[], bool]], None]
RULE = "[gpu]\ntq = 300ms\n" + pages.block("docs/moving.md", "[tenant user:*]")
MOST = 880                              # MiB of a card of 1024, beside which no client of ours fits
GROUPS = 'mount -t cgroup2 none "$1" && shift && exec "$@"'


@pytest.fixture
def bus() -> Iterator[str]:
    """The address of a bus for the daemon and its administrator."""
    with private_bus() as made:
        yield made.address


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With cards that nobody else uses, control groups, and a rule for all users."""
    from tests.integration.conftest import _made, simulate

    (folder := tmp_path / "cards").mkdir()
    (groups := tmp_path / "groups").mkdir()
    before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", GROUPS, "sh",
              str(groups)]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("control groups of version 2 cannot be mounted here; root may")
    for made in _made(tmp_path, simulate(folder)):
        made.before = before
        made.environment["NVSHARE_SIM_RESTORER"] = "1"
        (made.folder / "nvshared.conf").write_text(RULE)
        yield made


class Bare(Program):
    """tests/integration/bare.py, without the library."""

    def __init__(self, site: Site, size: int = MOST) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.bare", str(size)], cwd=ROOT, text=True,
            bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=site.environment)
        site.started.append(self.popen)
        assert self._line() == "ready"


def of(control: Control, program: Program) -> ClientSnapshot | None:
    found = [one for one in control.snapshot().clients if one.pid == program.popen.pid]
    return found[0] if found else None


def state(control: Control, program: Program) -> str:
    one = of(control, program)
    return "" if one is None else one.state


def turns(control: Control, program: Program) -> int:
    one = of(control, program)
    return 0 if one is None else one.turns


def why(control: Control, program: Program) -> str:
    return next((one.unsuspendable for gpu in control.snapshot().gpus for one in gpu.unshared
                 if one.pid == program.popen.pid), "")


def is_away(control: Control, program: Program) -> bool:
    one = of(control, program)
    return one is not None and one.allocated > 0 and one.resident == 0


def has_asked_more(program: Program, before: int) -> bool:
    return int(program.ask("asked")) > before


def test_program_without_the_library_and_a_client_take_turns_and_both_keep_their_bytes(
    site: Site, bus: str, eventually: Eventually,
) -> None:
    site.start("--bus", bus)
    bare = Bare(site)
    with Control(bus) as control:
        eventually(lambda: state(control, bare) == "running")
        ours = Program(site)            # it allocates what does not fit beside the other
        for byte in (6, 7, 8):
            assert ours.ask(f"fill({byte})") == "None"
            assert ours.ask("read()") == f"{{{byte}}}"
            before = int(bare.ask("asked"))
            assert bare.ask(f"fill({byte})") == "None"
            assert bare.ask("read()") == f"{{{byte}}}"
            eventually(partial(has_asked_more, bare, before))
        assert turns(control, bare) > 1
        one = of(control, bare)
        assert one is not None
        assert "no libnvshare.so" in one.unparkable
        ours.end()
    bare.end()


def test_unshared_program_without_a_checkpoint_rule_is_not_a_client(
    site: Site, bus: str, eventually: Eventually,
) -> None:
    (site.folder / "nvshared.conf").write_text(RULE.replace("checkpoint", "none"))
    site.start("--bus", bus)
    bare, ours = Bare(site, 64), Program(site)
    with Control(bus) as control:
        eventually(lambda: any(gpu.unshared for gpu in control.snapshot().gpus))
        for _ in range(3):
            assert ours.ask("read()") == "{7}"
            assert not of(control, bare)
            assert why(control, bare) == ""
    ours.end()
    bare.end()


@pytest.mark.parametrize(("failing", "driver", "words"), [
    ("cuCheckpointProcessCheckpoint:1:801", "580", "801"),
    ("cuCheckpointProcessLock:1:801", "580", "801"),
    ("cuCheckpointProcessGetRestoreThreadId:1:801", "580", "801"),
    ("", "565", "570"),
])
def test_unshared_program_that_cannot_be_checkpointed_goes_on_and_shows_why(
    site: Site, bus: str, eventually: Eventually, failing: str, driver: str, words: str,
) -> None:
    site.start("--bus", bus, NVSHARE_SIM_FAIL=failing, NVSHARE_SIM_DRIVER=driver)
    bare = Bare(site)
    with Control(bus) as control:
        if failing:
            eventually(lambda: state(control, bare) == "running")
            client = of(control, bare)
            assert client is not None
            control.set_client_term(client.id, "suspended", 1)
        eventually(lambda: words in why(control, bare))
        assert not of(control, bare)
        assert bare.ask("read()") == "{5}"
    bare.end()


def test_suspended_program_without_the_library_leaves_the_card_until_it_is_resumed(
    site: Site, bus: str, eventually: Eventually,
) -> None:
    site.start("--bus", bus)
    bare = Bare(site)
    with Control(bus) as control:
        eventually(lambda: state(control, bare) == "running")
        client = of(control, bare)
        assert client is not None
        control.set_client_term(client.id, "suspended", 1)
        eventually(lambda: used(site) == [0, 0])
        control.set_client_term(client.id, "suspended", 0)
        eventually(lambda: state(control, bare) == "running")
        assert bare.ask("read()") == "{5}"
    bare.end()


def test_suspended_unshared_program_resumes_when_a_restart_finds_no_rule_for_it(
    site: Site, bus: str, eventually: Eventually,
) -> None:
    daemon = site.start("--bus", bus)
    bare = Bare(site)
    with Control(bus) as control:
        eventually(lambda: state(control, bare) == "running")
        client = of(control, bare)
        assert client is not None
        control.set_client_term(client.id, "suspended", 1)
        eventually(partial(is_away, control, bare))
    daemon.kill()
    daemon.wait()
    (site.folder / "nvshared.conf").write_text("")
    site.start("--bus", bus)
    with Control(bus) as control:
        assert bare.ask("read()") == "{5}"
        # Its memory is outside again, once NVML has been asked.
        eventually(lambda: any(
            one.pid == bare.popen.pid for gpu in control.snapshot().gpus for one in gpu.unshared))
    bare.end()


@pytest.mark.parametrize("killed", ["hold", "park", "restore", "wake"])
def test_unshared_program_goes_on_when_daemon_and_helper_are_killed_at_any_step(
    site: Site, bus: str, eventually: Eventually, killed: str,
) -> None:
    site.module = "tests.integration.cutafter"
    daemon = site.start("--bus", bus, NVSHARE_TEST_CUT=killed)
    bare = Bare(site)
    with Control(bus) as control:
        eventually(lambda: state(control, bare) == "running")
        client = of(control, bare)
        assert client is not None
        control.set_client_term(client.id, "suspended", 1)
        if killed in ("restore", "wake"):
            eventually(partial(is_away, control, bare))
            control.set_client_term(client.id, "suspended", 0)
        daemon.wait()
    site.module = "nvshared"
    site.start("--bus", bus)
    with Control(bus) as control:
        eventually(lambda: state(control, bare) == "running")
        assert bare.ask("read()") == "{5}"
        ours = Program(site)
        assert ours.ask("read()") == "{7}"
        ours.end()
    assert bare.ask("read()") == "{5}"
    bare.end()


def test_suspended_unshared_program_that_is_killed_leaves_no_memory(
    site: Site, bus: str, eventually: Eventually,
) -> None:
    site.start("--bus", bus)
    bare = Bare(site)
    with Control(bus) as control:
        eventually(lambda: state(control, bare) == "running")
        client = of(control, bare)
        assert client is not None
        control.set_client_term(client.id, "suspended", 1)
        eventually(partial(is_away, control, bare))
        os.kill(bare.popen.pid, signal.SIGKILL)
        bare.popen.wait()
        eventually(lambda: not control.snapshot().clients)
        assert used(site) == [0, 0]
