# SPDX-License-Identifier: Apache-2.0
"""Clients keep their turns, and the daemon its memory, while an ordinary user attacks the daemon.

If root runs the tests, attackers are processes of another user, else of the same user.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvshared.control import Daemon as Control
from nvshared.hook.connection import DESCRIPTORS_EACH
from nvshared.hook.protocol import Type
from nvshared.report.log import BURST
from nvshared.units import MIB
from tests.integration.attacker import ATTACKS, BUS_ATTACKS
from tests.integration.conftest import PATIENT, ROOT, Process, Site, public_build, wait_until
from tests.integration.fakehook import PATIENCE, Hook
from tests.integration.test_kills import SETTINGS, finish, program

IS_ROOT = os.geteuid() == 0
NOBODY_UID = 65534                        # a user that every system has
LARGE = 700 * MIB                       # two of these do not fit
CROWD, CROWDS = 2500, 4                 # connections of each attacker; number of attackers
WIDTH = 20                              # connections at a time of an attack that reconnects
OF_ONE_USER = 1024                      # the default limit of connections of a user
OF_A_CONNECTION = 2                     # the daemon's descriptors for a connection before HELLO
HAND_OVERS = 6
MOST_MEMORY = 100 * MIB                 # bytes that the daemon may have resident
KINDS = 6                               # kinds of journal lines that one user can cause

# `make test` runs these attacks and lookups, `make test-long` runs all.
OFTEN = {"answer_nothing", "garbage", "promise", "change_settings_deaf", "cgroup",
         "memory.current"}

another_user = pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")


def some_long(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in names]


@dataclass
class Daemon:
    site: Site
    process: subprocess.Popen[str]

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def sockets(self) -> int:
        """Number of open sockets. Files that the daemon opens for a moment do not count."""
        number = 0
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):       # closed since
                number += str(entry.readlink()).startswith("socket:")
        return number

    @property
    def memory(self) -> int:
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def is_well(self) -> None:
        """Fails unless the daemon runs with little memory and has logged few lines."""
        log = self.site.log.read_text()
        assert self.process.poll() is None, log[-2000:]
        assert self.memory <= MOST_MEMORY
        assert "Traceback" not in log
        # Lines from before the attack, and the most lines of each kind during the attack.
        assert len(log.splitlines()) <= 20 + KINDS * (2 * BURST + 1)


@pytest.fixture
def site(public_site: Site) -> Site:
    return public_site


@pytest.fixture
def start(site: Site) -> Callable[..., Daemon]:
    return lambda *options, **changed: Daemon(site, site.start(*options, **changed))


def attack(
    site: Site, name: str, address: str, *options: str,
    before: Callable[[int], None] = lambda _: None,
) -> Process:
    """Starts an attack, after a call of `before` with the attacker's pid. Without --rounds the
    attack lasts until `rest`."""
    # Attackers that obey orders get turns like other clients, so they use another card.
    card = 1 if name in ("change", "gang") else 0
    user = ["--uid", str(NOBODY_UID)] if IS_ROOT else []
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.attacker", name, address,
         "--gpu", site.uuids[card].hex(), *user, *options],
        env={"PATH": os.environ["PATH"]}, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    site.started.append(popen)
    attacker = Process(popen)
    attacker.wait_for("ready")
    before(popen.pid)
    attacker.tell("go")
    return attacker


def rest(attacker: Process) -> None:
    assert attacker.popen.stdin is not None
    attacker.popen.stdin.close()
    if "done" not in attacker.lines:
        attacker.wait_for("done")
    attacker.popen.wait()
    assert attacker.popen.stdout is not None
    attacker.popen.stdout.close()


def hand_over(site: Site, card: int = 0) -> None:
    """Two clients that do not fit together hand over to each other several times."""
    import select

    hooks = [site.wanting(LARGE, card), site.wanting(LARGE, card)]
    turns: list[Hook] = []
    while len(turns) < HAND_OVERS:
        ready, _, _ = select.select([hook.socket for hook in hooks], [], [], PATIENCE)
        assert ready, f"nothing happens any more, after {len(turns)} turns"
        for hook in hooks:
            if hook.socket not in ready:
                continue
            record = hook.obey_next()
            if hook.running and hook not in turns[-1:]:
                turns.append(hook)
            if record.type is Type.RUN and hook.running and hook.paced:
                hook.say(Type.IDLE)
    for hook in hooks:
        hook.close()


@pytest.mark.long
def test_daemon_shares_the_card_during_and_after_ten_thousand_idle_connections(
    site: Site, start: Callable[..., Daemon]
) -> None:
    daemon = start(*SETTINGS, **PATIENT)
    programs = [program(site, seed, 12) for seed in (1, 2, 3)]
    wait_until(lambda: daemon.descriptors > 0 and "came" in site.log.read_text())
    crowds = [
        attack(site, "hold", str(site.socket), "--width", str(CROWD), "--rounds", "1")
        for _ in range(CROWDS)
    ]
    finish(programs)
    for crowd in crowds:
        crowd.wait_for("done")
    assert daemon.descriptors <= 64 + DESCRIPTORS_EACH * OF_ONE_USER
    if IS_ROOT:                         # root has no limit of connections
        assert daemon.descriptors >= OF_A_CONNECTION * OF_ONE_USER
        finish([program(site, 4, 4)])
    for crowd in crowds:
        rest(crowd)
    wait_until(lambda: daemon.descriptors < 64)
    finish([program(site, 5, 4)])
    daemon.is_well()


@another_user
def test_program_beyond_max_clients_per_user_runs_unshared_and_logs_the_reason(
    site: Site, start: Callable[..., Daemon]
) -> None:
    daemon = start("--max-clients-per-user", "5", **PATIENT)
    crowded = daemon.sockets + 5
    crowd = attack(site, "hold", str(site.socket), "--width", "5", "--rounds", "1")
    crowd.wait_for("done")
    wait_until(lambda: daemon.sockets >= crowded)
    done = run_as(site)
    assert "nvshared refuses this program: it has too many clients. The GPU is used unshared." in (
        done.stderr)
    assert done.returncode == 0, done.stderr
    finish([program(site, 1, 4)])       # a program of another user
    rest(crowd)
    wait_until(lambda: daemon.sockets < crowded)
    assert run_as(site).stderr == ""


def run_as(
    site: Site, user: int = NOBODY_UID, *options: str
) -> subprocess.CompletedProcess[str]:
    """Runs nvshare-workload as another user until it ends."""
    pipe = public_build(site)
    return subprocess.run(
        [str(pipe / "nvshare-workload"), *(options or ("--memory", "8MiB")), "--steps", "2"],
        env={
            **site.environment, "LD_LIBRARY_PATH": str(pipe / "simulator"),
            "LD_PRELOAD": str(pipe / "libnvshare.so"), "NVSHARE_SOCKET": str(site.socket),
        }, cwd=pipe,
        user=user, group=user, extra_groups=[], capture_output=True, text=True,
        timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    "name", some_long(name for name in ATTACKS if name not in ("hold", "cling")))
def test_turns_are_handed_over_while_a_client_attacks_the_daemon(
    site: Site, start: Callable[..., Daemon], name: str
) -> None:
    daemon = start("--tq", "3600")
    hand_over(site)
    before = daemon.sockets
    attacker = attack(site, name, str(site.socket), "--width", str(WIDTH))
    hand_over(site)
    daemon.is_well()
    rest(attacker)
    wait_until(lambda: daemon.sockets <= before)
    daemon.is_well()


# A read of a file about the attacker's process never ends. The event loop must not wait for such a
# read: the daemon would answer no client.
@another_user
@pytest.mark.parametrize("lookup", some_long(
    ["comm", "stat", "cgroup", "status", "uid_map", "users", "cmdline", "memory.current"]))
def test_turns_are_handed_over_while_the_identification_of_an_attackers_process_hangs(
    site: Site, start: Callable[..., Daemon], lookup: str
) -> None:
    box = site.folder / "box"
    (box / "proc").mkdir(parents=True)
    (box / "groups" / "slow").mkdir(parents=True)
    (box / "groups" / "slow" / "memory.max").write_text("1073741824")
    site.module = "tests.integration.changed"
    site.environment["NVSHARE_TEST_PIPES"] = str(box)
    daemon = start("--tq", "3600", "--debug")
    silent = attack(site, "hold", str(site.socket), "--width", "1", "--rounds", "1",
                    before=partial(hang, box, lookup))
    silent.wait_for("done")             # later clients may be refused as unidentified
    attackers = [
        attack(
            site, name, str(site.socket), "--width", str(WIDTH), before=partial(hang, box, lookup))
        for name in ("answer_nothing", "come_and_go")
    ]
    hand_over(site)
    site.allocating(MIB)                # other clients are served meanwhile
    for attacker in attackers:
        rest(attacker)
    daemon.process.terminate()
    # The daemon ends although threads of it still wait, and an unidentified client is silent.
    assert daemon.process.wait(PATIENCE) == 0
    rest(silent)
    log = site.log.read_text()
    assert "Traceback" not in log


def hang(box: Path, lookup: str, pid: int) -> None:
    """Makes the daemon's reads of `lookup` about process `pid` block."""
    folder = box / "proc" / str(pid)
    folder.mkdir()
    for file in ("comm", "stat", "cgroup", "status", "uid_map", "cmdline"):
        (folder / file).symlink_to(f"/proc/{pid}/{file}")
    if lookup in ("cmdline", "memory.current"):
        for file, text in (("comm", "a" * 15), ("cgroup", "0::/slow")):
            (folder / file).unlink()
            (folder / file).write_text(f"{text}\n")
    pipe = {"users": box, "memory.current": box / "groups" / "slow"}.get(lookup, folder) / lookup
    if pipe.parent == folder:
        pipe.unlink()
    if not pipe.exists():
        os.mkfifo(pipe)


@another_user
@pytest.mark.parametrize(
    "name", some_long(["promise", "claim_host_memory", "cling", "come_and_go"]))
def test_allocation_of_900_mib_is_granted_while_another_user_attacks_the_daemon(
    site: Site, start: Callable[..., Daemon], name: str
) -> None:
    daemon = start("--swap-budget", "4GiB")
    attacker = attack(site, name, str(site.socket), "--width", str(WIDTH))
    done = run_as(site, NOBODY_UID - 1, "--memory", "900MiB", "--used", "1%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    daemon.is_well()
    rest(attacker)


@pytest.mark.long
def test_programs_compute_right_results_while_all_attacks_on_the_daemon_run_at_once(
    site: Site, start: Callable[..., Daemon]
) -> None:
    daemon = start(*SETTINGS)
    programs = [program(site, seed, 12) for seed in (1, 2, 3)]
    attackers = [attack(site, name, str(site.socket), "--width", str(WIDTH)) for name in ATTACKS]
    finish(programs)
    for attacker in attackers:
        rest(attacker)
    wait_until(lambda: daemon.descriptors < 64)
    daemon.is_well()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_daemon_restarted_during_an_attack_takes_over_its_clients(
    site: Site, start: Callable[..., Daemon], how: signal.Signals
) -> None:
    first = start(*SETTINGS)
    programs = [program(site, seed, 8) for seed in (1, 2, 3)]
    attackers = [
        attack(site, name, str(site.socket), "--width", str(WIDTH))
        for name in ("hold", "come_and_go", "garbage")
    ]
    hook = site.allocating(MIB)
    hook.close()
    first.process.send_signal(how)
    assert first.process.wait(PATIENCE) == (0 if how is signal.SIGTERM else -how)
    second = start(*SETTINGS)
    finish(programs)
    for attacker in attackers:
        rest(attacker)
    assert "Traceback" not in site.log.read_text()
    assert second.process.poll() is None


@another_user
@pytest.mark.parametrize("name", some_long(BUS_ATTACKS))
def test_turns_are_handed_over_and_the_bus_answers_while_a_caller_floods_d_bus(
    site: Site, start: Callable[..., Daemon], bus: str, name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nvshared.dbus.PATIENCE", PATIENCE)       # long, for busy machines
    daemon = start("--tq", "3600", "--bus", bus)
    hand_over(site)
    before = daemon.sockets
    attacker = attack(site, name, bus, "--width", "4")
    hand_over(site)
    control = Control(bus)
    seen = control.snapshot()
    control.close()
    assert seen.gpus[0].tq == 3600
    rest(attacker)
    daemon.is_well()
    wait_until(lambda: daemon.sockets <= before)
