# SPDX-License-Identifier: Apache-2.0
"""A directory of users that is slow or out of reach, in a real daemon: see directory.c.

Nothing may wait for it in the event loop. No time is asserted: the C functions that look up users,
groups and hosts note which thread called them, and the directory takes longer than the test."""

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.control.connection import ControlConnection
from nvshared.control.snapshot import ClientSnapshot
from nvshared.errors import NvshareError
from nvshared.names import CLIENT_PATH, GPU_PATH, MANAGER_PATH
from nvshared.settings.config import options
from nvshared.units import MIB
from tests.integration.conftest import Site, kill, public_build, wait_until
from tests.integration.test_start import free_port

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())

SOURCE = Path(__file__).with_name("directory.c")
AWAY = 40                               # seconds that the directory takes to answer
ALICE = 70_000
RULES = """\
[gpu]
reserve = 0
context-reserve = 8MiB
[tenant user:alice]
memory-limit = 120MiB
[tenant user:al*]
weight = 50
[tenant group:staff]
priority = high
[tenant unit:alice/*.service]
weight = 7
[tenant user:70001]
weight = 7
"""
as_alice = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Directory:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.file = site.folder / "directory"
        self.answers(0)
        library = site.folder / "directory.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", SOURCE, "-o", library], check=True)
        # Without HOME Python asks for the user's home as it starts. systemd sets it for a User=.
        site.before = ["env", "HOME=/", f"LD_PRELOAD={library}",
                       f"NVSHARE_TEST_DIRECTORY={self.file}"]

    def answers(self, seconds: int, **entries: int) -> None:
        """It takes this many seconds for an answer from now on, and knows these users, groups."""
        lines = [str(seconds), *(f"{name} {number}" for name, number in entries.items())]
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.file)

    @property
    def asked(self) -> list[str]:
        path = self.file.with_suffix(".asked")
        return path.read_text().splitlines() if path.exists() else []

    def has_not_held_up_the_loop(self) -> None:
        assert [one for one in self.asked if "in the loop" in one] == []
        assert "Traceback" not in self.site.log.read_text()


@pytest.fixture
def site(public_site: Site) -> Site:
    (public_site.folder / "nvshared.conf").write_text(RULES)
    return public_site


@pytest.fixture
def directory(site: Site) -> Directory:
    return Directory(site)


def rows(control: Control) -> dict[str, dict[str, int]]:
    """By tenant, its terms in force."""
    return {one.name: {term.name: one.value(term.name) for term in one.terms}
            for one in control.tenants()}


def client(control: Control) -> ClientSnapshot:
    (found,) = control.snapshot().clients
    return found


def walk(address: str) -> set[str]:
    """Calls every method of every object with names that only a directory knows. Returns them."""
    values = {"s": "user:nobody-knows", "u": 1, "t": 1, "b": True, "a{sv}": {}, "a(sssa{ss})": []}
    connection, called = ControlConnection(address), set[str]()
    for path in (MANAGER_PATH, f"{GPU_PATH}/0", f"{CLIENT_PATH}/1"):
        ((text,),) = connection.ask(
            (path, "org.freedesktop.DBus.Introspectable", "Introspect", "", ()))
        for interface in ElementTree.fromstring(text).iter("interface"):
            name = interface.get("name", "")
            if not name.startswith("com.nvshare"):
                continue
            connection.ask((path, "org.freedesktop.DBus.Properties", "GetAll", "s", (name,)))
            for method in interface.iter("method"):
                member = method.get("name", "")
                types = [one.get("type", "") for one in method.iter("arg")
                         if one.get("direction") != "out"]
                with suppress(NvshareError):    # a traceback would be in the log
                    connection.ask((path, name, member, "".join(types),
                                    tuple(values[one] for one in types)))
                called.add(member)
    connection.close()
    return called


def test_slow_directory_keeps_no_call_reload_program_or_restart_waiting_in_the_event_loop(
    site: Site, directory: Directory, bus: str
) -> None:
    directory.answers(AWAY, alice=ALICE, staff=50)
    state = site.folder / "state"
    state.mkdir()
    (state / "tenants.json").write_text(json.dumps({"version": 1, "tenants": {
        "user:alice": {"weight": 9}, "unit:bob/x.service": {"weight": 8}}}))
    every = [f"--{one.name}={one.default}" for one in options()
             if one.metavar and one.name not in ("socket", "bus", "state-dir", "metrics")]
    port = free_port()                  # without an address
    daemon = site.start("--bus", bus, "--state-dir", str(state), "--metrics", str(port), *every)
    socket.create_connection(("127.0.0.1", port)).close()
    began = len(directory.asked)
    assert began > 0
    hooks = [site.allocating(MIB) for _ in range(3)]    # HELLO is answered meanwhile
    called = walk(bus)
    assert {"GetTenant", "SetTenantTerms", "GetHistory", "Reload", "ListTenants"} <= called
    with Control(bus) as control:
        assert len(control.snapshot().clients) == 3
        control.set_tenant_terms("user:carol", {"weight": 3})
        assert rows(control)["user:carol"] == {"weight": 3}
        assert rows(control)["user:alice"]["weight"] == 9
        daemon.send_signal(signal.SIGHUP)
        conf = site.folder / "nvshared.conf"
        conf.write_text(conf.read_text() + "[tenant user:dave]\nweight = 4\n")
        wait_until(lambda: control.tenant("user:dave").value("weight") == 4)
        control.history(0, int(time.time() * 1e6), 0, "tenant", "", 0, everyone=True)
    daemon.terminate()
    assert daemon.wait() == 0           # it ends although its threads wait for the directory
    for hook in hooks:
        hook.close()
    directory.has_not_held_up_the_loop()
    assert {"getpwnam", "getgrnam", "getpwuid"} <= {*directory.asked}
    assert "getaddrinfo" not in directory.asked


@as_alice
@pytest.mark.parametrize("seconds", [AWAY, 0], ids=["slow", "away"])
def test_rules_by_name_hold_for_a_program_that_started_while_the_directory_was_away(
    site: Site, directory: Directory, bus: str, seconds: int
) -> None:
    directory.answers(seconds)
    site.start("--bus", bus, "--state-dir", str(site.folder / "state"))
    build = public_build(site)
    program = site.program(
        [build / "nvshare-workload", "--memory", "8MiB", "--chunk", "4MiB", "--until-told"],
        {"LD_PRELOAD": str(build / "libnvshare.so"), "LD_LIBRARY_PATH": str(build / "simulator")},
        user=ALICE, group=ALICE, extra_groups=[], stdout=subprocess.DEVNULL, stderr=None)
    with Control(bus) as control:
        wait_until(lambda: bool(control.snapshot().clients))
        assert client(control).tenant == f"user:{ALICE}"
        assert rows(control)[f"user:{ALICE}"] == {}
        directory.answers(0, alice=ALICE, staff=50)     # it is back: nothing is read again by hand
        wait_until(lambda: rows(control).get("user:alice") == {
            "memory-limit": 120 * MIB, "weight": 50, "priority": 3})
        wait_until(lambda: client(control).tenant == "user:alice")
        directory.answers(0)            # away again: what it said last holds
        assert rows(control)["user:alice"]["memory-limit"] == 120 * MIB
    kill(program)
    directory.has_not_held_up_the_loop()
