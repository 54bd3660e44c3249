# SPDX-License-Identifier: Apache-2.0
"""Clients that die, misbehave or never stop; daemons that are killed."""

import resource
import signal
import subprocess

import pytest

from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests.integration.conftest import BUILD, SAMPLED_OFTEN, Site, wait_until
from tests.integration.fakehook import PATIENCE


def test_client_that_never_reads_from_its_socket_is_disconnected(site: Site) -> None:
    site.start()
    silent, other = site.hook(), site.hook()
    silent.hello()
    other.hello()
    number = 1
    while silent.say(Type.COMMIT, number=number, wanted=MIB):
        number += 1                     # the daemon answers each COMMIT, and no answer is read
    assert other.allocate(MIB)
    assert "does not read what it is sent" in site.log.read_text()


def test_connection_without_hello_is_closed_and_a_client_silent_after_hello_is_not(
    site: Site
) -> None:
    site.start(NVSHARE_TEST_CONSTANTS="nvshared.hook.connection:HELLO_WITHIN=200000")
    hook = site.hook()
    if hook.hello() is None:            # on a busy machine HELLO may come after the timeout
        pytest.skip("this machine is too slow to send HELLO in time")
    assert site.hook().hear() is None   # until the timeout of a second connection
    assert "sent no HELLO" in site.log.read_text()
    assert hook.allocate(MIB)


def test_clients_wait_while_the_daemon_has_no_free_descriptors(site: Site) -> None:
    """The limit of the running daemon is lowered below its number of open descriptors."""
    daemon = site.start()
    first = site.hook()
    first.hello()
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    late = site.hook()                  # the kernel's accept queue takes the connection
    late.say(Type.HELLO)
    assert first.allocate(MIB)
    wait_until(lambda: "no new client can be accepted for now" in site.log.read_text())
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
    answer = late.hear()
    assert answer is not None
    assert answer.type is Type.LIMITS


def test_journal_names_the_unshared_program_that_a_client_waits_for(site: Site) -> None:
    site.start("--stuck-after", "1s", **SAMPLED_OFTEN)
    hog = site.workload("--memory", "700MiB", "--hold", "--used", "1%", LD_PRELOAD="")
    # The daemon samples NVML, which shows the unshared process, only while it has a client.
    site.workload("--memory", "8MiB", "--hold")
    site.workload("--memory", "600MiB", "--steps", "1", "--used", "1%")
    named = f"these use it unshared: nvshare-workloa[{hog.pid}] ("
    wait_until(lambda: named in site.log.read_text())
    assert "waits: it needs 6" in site.log.read_text()


def test_program_waits_for_a_silent_daemon_and_logs_the_reason(site: Site) -> None:
    daemon = site.start()
    daemon.send_signal(signal.SIGSTOP)
    program = site.program(
        [BUILD / "nvshare-workload", "--memory", "8MiB", "--steps", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert program.stderr is not None
    assert "waits for nvshared, which does not answer" in program.stderr.readline()
    daemon.send_signal(signal.SIGCONT)
    assert "goes on, as nvshared is there" in program.stderr.read()
    assert program.wait(PATIENCE) == 0
    assert "nvshare-workloa" in site.log.read_text()
