# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a socket."""

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared.machine import peer

CGROUPS = [
    ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service\n",
     "jupyter.service", ""),
    ("0::/system.slice/train.service/child\n", "train.service", ""),
    ("0::/user.slice/user-0.slice/session-1.scope\n", "session-1.scope", ""),
    ("12:memory:/kubepods/burstable/pod01234567-89ab-cdef-0123-456789abcdef/abc\n0::/\n", "",
     "01234567-89ab-cdef-0123-456789abcdef"),
    ("0::/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-1.scope\n",
     "cri-1.scope", "01234567-89ab-cdef-0123-456789abcdef"),
    ("0::/\n", "", ""), ("", "", ""),
]


def test_a_peer_is_what_the_kernel_says() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        who = peer.identify(ours)
    assert (who.pid, who.uid) == (os.getpid(), os.getuid())
    assert who.name == Path("/proc/self/comm").read_text().strip()
    assert str(who) == f"{who.name}[{who.pid}]"
    assert "pytest" in who.command or "python" in who.command


@pytest.mark.parametrize(("cgroup", "unit", "pod"), CGROUPS)
def test_units_and_pods_are_read_from_the_cgroup(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, unit: str, pod: str
) -> None:
    files = {"comm": "python\n", "cmdline": "python\0train.py\0", "cgroup": cgroup}
    monkeypatch.setattr(peer, "_read", lambda _, name: files[name])
    who = peer.describe(1, 0)
    assert (who.name, who.command) == ("python", "python train.py")
    assert (who.unit, who.pod) == (unit, pod)


def test_a_process_cannot_write_on_our_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"comm": "\x1b[2J\n", "cmdline": "a\nb\x07" + "x" * 5000, "cgroup": "0::/\x1b.service"}
    monkeypatch.setattr(peer, "_read", lambda _, name: files[name])
    who = peer.describe(1, 0)
    assert who.name == "?[2J"
    assert who.command.startswith("a?b?x")
    assert len(who.command) == peer.COMMAND_LONGEST
    assert who.unit == "?.service"


def test_a_number_without_a_name_is_a_user_too() -> None:
    assert peer.Peer(1, 0, "", "", "", "").user == "root"
    assert peer.Peer(1, 3_999_999_999, "", "", "", "").user == "3999999999"


def test_death_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = peer.watch(process.pid)
        assert watch is not None
        assert not select.select([watch], [], [], 0)[0]
        process.kill()
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)
    with pytest.raises(ProcessLookupError):
        peer.watch(process.pid)
    assert peer.watch(0) is None            # somebody from another pid namespace
    dead = peer.describe(process.pid, 0)
    assert (dead.name, dead.command) == ("?", "?")
