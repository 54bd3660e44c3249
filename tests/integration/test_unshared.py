# SPDX-License-Identifier: Apache-2.0
"""Programs without the library take turns by checkpoints, on simulated cards."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from nvshared.units import MIB
from tests import pages
from tests.integration.conftest import Site, Start, kill, make_site, simulate, wait_until
from tests.integration.test_moving import Program, check_programs, clients_of, used  # noqa: F401

RULE = "[gpu]\ntq = 300ms\n" + pages.block("docs/moving.md", "[tenant user:*]")
CARD = 96 * MIB
MOST = 64                               # MiB beside which a Program does not fit on a card
GROUPS = 'mount -t cgroup2 none "$1" && shift && exec "$@"'


@pytest.fixture
def own_site(site_folder: Path) -> Iterator[Site]:
    """A site with small cards, on which moving all memory is quick."""
    yield from make_site(site_folder, simulate(site_folder / "cards", memory=CARD))


@pytest.fixture
def site(own_site: Site) -> Site:
    """A site with its own cards and cgroups, and a checkpoint rule for all users."""
    (groups := own_site.folder / "groups").mkdir()
    own_site.before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", GROUPS, "sh",
                       str(groups)]
    if subprocess.run([*own_site.before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("control groups of version 2 cannot be mounted here; root may")
    own_site.environment["NVSHARE_SIM_RESTORER"] = "1"
    (own_site.folder / "nvshared.conf").write_text(RULE)
    return own_site


class Bare(Program):
    """A program without the library that polls the driver, and the daemon's report about it."""

    right = "{5}"

    def __init__(self, site: Site, control: Control, size: int = MOST) -> None:
        super().__init__(
            site, "tests.integration.moved", size, 5, "poll", environment={"LD_PRELOAD": ""})
        self.control = control

    @property
    def client(self) -> ClientSnapshot | None:
        return next(iter(clients_of(self.control, self)), None)

    def is_state(self, state: str) -> bool:
        return self.client is not None and self.client.state == state

    def await_turn(self) -> ClientSnapshot:
        wait_until(lambda: self.is_state("running"))
        assert self.client is not None
        return self.client

    def suspend(self, value: int = 1) -> None:
        assert self.client is not None
        self.control.set_client_term(self.client.id, "suspended", value)

    def is_swapped(self) -> bool:
        client = self.client
        return client is not None and client.allocated > 0 and client.resident == 0

    @property
    def reason(self) -> str:
        return next((one.unsuspendable for gpu in self.control.snapshot().gpus
                     for one in gpu.unshared if one.pid == self.popen.pid), "")


def has_unshared(control: Control) -> bool:
    return any(gpu.unshared for gpu in control.snapshot().gpus)


def test_unshared_programs_and_a_client_that_do_not_fit_have_turns_and_keep_all_bytes(
    site: Site, start: Start
) -> None:
    control = start()
    unshared = [Bare(site, control, 32), Bare(site, control, 32)]
    for bare in unshared:
        bare.await_turn()
    ours = Program(site)
    # with its other 16 MiB it fits beside no unshared program
    assert ours.ask("grow(40)") == "40"
    ours.tell("work()")
    pids = {one.popen.pid for one in (*unshared, ours)}
    before = {one.pid: one.turns for one in control.snapshot().clients}
    assert before.keys() == pids
    asked = [int(bare.ask("asked")) for bare in unshared]

    def have_had_turns() -> bool:
        return all(one.turns > before[one.pid] + 1 for one in control.snapshot().clients)

    wait_until(have_had_turns)
    assert ours.ask("") == ours.right
    for bare, number in zip(unshared, asked, strict=True):
        wait_until(lambda: int(bare.ask("asked")) > number)     # noqa: B023
        assert bare.ask("fill(6)") == "None"
        bare.right = "{6}"
        assert bare.client is not None
        assert "no libnvshare.so" in bare.client.unparkable


def test_unshared_program_without_a_checkpoint_rule_is_not_a_client(
    site: Site, start: Start
) -> None:
    (site.folder / "nvshared.conf").write_text(RULE.replace("checkpoint", "none"))
    control = start()
    bare, ours = Bare(site, control, 32), Program(site)
    wait_until(lambda: has_unshared(control))
    for _ in range(3):
        ours.check()
        assert not bare.client
        assert bare.reason == ""


@pytest.mark.parametrize(("failing", "driver", "words"), [
    ("cuCheckpointProcessLock:1:801", "580", "801"),
    ("", "565", "570"),
])
def test_unshared_program_that_cannot_be_checkpointed_continues_and_shows_the_reason(
    site: Site, start: Start, failing: str, driver: str, words: str
) -> None:
    bare = Bare(site, start(NVSHARE_SIM_FAIL=failing, NVSHARE_SIM_DRIVER=driver))
    if failing:
        bare.await_turn()
        bare.suspend()
    wait_until(lambda: words in bare.reason)
    assert not bare.client


def test_suspended_unshared_program_resumes_when_a_restarted_daemon_has_no_checkpoint_rule(
    site: Site, start: Start
) -> None:
    control = start()
    daemon = site.started[-1]
    bare = Bare(site, control)
    bare.await_turn()
    bare.suspend()
    wait_until(bare.is_swapped)
    kill(daemon)
    (site.folder / "nvshared.conf").write_text("")
    control = start()
    bare.check()
    wait_until(lambda: has_unshared(control))       # visible after the next NVML sample


@pytest.mark.parametrize("killed", [
    "park", "restore", *(pytest.param(one, marks=pytest.mark.long) for one in ("hold", "wake"))])
def test_unshared_program_continues_when_daemon_and_checkpoint_helper_are_killed_at_any_step(
    site: Site, start: Start, killed: str
) -> None:
    site.module = "tests.integration.changed"
    control = start(NVSHARE_TEST_CUT_AFTER=killed)
    daemon = site.started[-1]
    bare = Bare(site, control)
    bare.await_turn()
    bare.suspend()
    if killed in ("restore", "wake"):
        wait_until(bare.is_swapped)
        bare.suspend(0)
    daemon.wait()
    site.module = "nvshared"
    bare.control = start()
    bare.await_turn()
    bare.check()
    Program(site)


def test_suspended_unshared_program_that_is_killed_leaves_no_memory(
    site: Site, start: Start
) -> None:
    control = start()
    bare = Bare(site, control)
    bare.await_turn()
    bare.suspend()
    wait_until(lambda: used(site) == [0, 0])
    kill(bare.popen)
    wait_until(lambda: not control.snapshot().clients)
    assert used(site) == [0, 0]
