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
from nvshared.machine.tenant import Kind, Tenant


def test_a_peer_is_what_the_kernel_says() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        who = peer.describe(*peer.credentials(ours))
    assert (who.pid, who.uid) == (os.getpid(), os.getuid())
    assert who.name == Path("/proc/self/comm").read_text().strip()
    assert str(who) == f"{who.name}[{who.pid}]"
    assert "pytest" in who.command or "python" in who.command


def test_a_peer_belongs_to_what_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "comm": "python\n", "cmdline": "python\0train.py\0", "environ": "SLURM_JOB_ID=42\0",
        "cgroup": "0::/system.slice/slurmd.service\n", "status": "", "uid_map": "",
    }
    monkeypatch.setattr(peer, "_read", lambda _, name, longest=4096: files[name][:longest])
    monkeypatch.setattr(peer, "own_cgroup", str)
    who = peer.describe(1, 0, 0)
    assert (who.name, who.command) == ("python", "python train.py")
    assert [str(one) for one in who.tenants] == ["user:root", "job:42"]
    assert str(who.tenant) == "job:42"


def test_what_users_start_for_themselves_is_their_share_of_the_time() -> None:
    def sharers(*names: str) -> list[str]:
        tenants = tuple(Tenant(Kind(kind), name) for kind, name in (n.split(":") for n in names))
        return [str(one) for one in peer.Peer(1, 1000, 1000, "", "", tenants).sharers]

    assert sharers("user:alice", "unit:train.service") == ["unit:train.service", "user:alice"]
    assert sharers("user:alice", "pod:lab/train") == ["pod:lab/train", "user:alice"]
    assert sharers("user:alice", "container:9f1c") == ["container:9f1c", "user:alice"]
    assert sharers("user:alice", "unit:alice/run-u1.scope") == [
        "user:alice", "unit:alice/run-u1.scope"]
    assert sharers("user:alice", "container:alice/9f1c")[0] == "user:alice"
    assert sharers("user:alice", "job:7") == ["user:alice", "job:7"]
    assert sharers("user:alice") == ["user:alice"]


def test_a_process_cannot_write_on_our_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "comm": "\x1b[2J\n", "cmdline": "a\nb\x07" + "x" * 5000, "cgroup": "0::/\x1b.service",
        "status": "", "uid_map": "",
    }
    monkeypatch.setattr(peer, "_read", lambda _, name, longest=4096: files[name][:longest])
    monkeypatch.setattr(peer, "own_cgroup", str)
    who = peer.describe(1, 0, 0)
    assert who.name == "?[2J"
    assert who.command.startswith("a?b?x")
    assert len(who.command) == peer.COMMAND_LONGEST
    assert str(who.tenant) == "unit:?.service"


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_contained_process_stays_so_whatever_it_calls_itself(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    # The kernel replaces an end of a line in a name, and nothing else at which Python splits.
    files = {
        "status": f"Name:\tx{end}NSpid:\t9\nPid:\t9\nNSpid:\t9\t1\n", "uid_map": "0 0 4294967295\n",
        "comm": "x\n", "cmdline": "x\0", "cgroup": "0::/\n",
    }
    monkeypatch.setattr(peer, "_read", lambda _, name, longest=4096: files[name])
    monkeypatch.setattr(peer, "own_cgroup", lambda: "0::/\n")
    assert peer.describe(9, 1000, 1000).fellows == ""


def test_death_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = peer.watch(process.pid)
        assert watch is not None
        assert not select.select([watch], [], [], 0)[0]
        process.kill()
        assert select.select([watch], [], [], 600)[0]
        os.close(watch)
    with pytest.raises(ProcessLookupError):
        peer.watch(process.pid)
    assert peer.watch(0) is None            # somebody from another pid namespace
    dead = peer.describe(process.pid, 0, 0)
    assert (dead.name, dead.command) == ("?", "?")
