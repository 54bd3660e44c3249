# SPDX-License-Identifier: Apache-2.0
"""Class Peer: the process at the other end of a socket, its tenants, account and subuid."""

import errno
import os
import pwd
import select
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from nvshared import caller
from nvshared.machine import cgroup as control_groups
from nvshared.machine import host, peer, subordinate
from nvshared.machine.tenant import Kind, Tenant


def test_peer_has_pid_uid_and_name_from_the_kernel() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        identified = peer.identify(*caller.credentials(ours))
    assert (identified.pid, identified.uid) == (os.getpid(), os.getuid())
    assert identified.name == Path("/proc/self/comm").read_text().strip()
    assert str(identified) == f"{identified.name}[{identified.pid}]"
    assert identified.started is not None


def identify(monkeypatch: pytest.MonkeyPatch, **files: str) -> peer.Peer:
    files |= {"status": "", "uid_map": ""}
    monkeypatch.setattr(
        host, "process", lambda _, name, longest=-1: files.get(name, ""))
    monkeypatch.setattr(peer, "own", lambda _name: "")
    return peer.identify(1, 0)


def test_tenants_of_a_peer_are_read_from_the_cgroup_path_of_the_process(
        monkeypatch: pytest.MonkeyPatch) -> None:
    identified = identify(
        monkeypatch, comm="python\n", environ="SLURM_JOB_ID=42\0",
        cgroup="0::/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n")
    assert identified.name == "python"
    assert [str(one) for one in identified.tenants] == ["user:0", "job:42"]
    assert str(identified.tenant) == "job:42"
    odd = identify(monkeypatch, comm="\x1b[2J\n", cgroup="0::/\x1b.service")
    assert (odd.name, str(odd.tenant)) == ("?[2J", "unit:?.service")


def test_peer_tenants_begin_with_the_user_for_units_jobs_and_containers_of_the_user() -> None:
    def sharers(*names: str) -> list[str]:
        tenants = tuple(Tenant(Kind(kind), name) for kind, name in (n.split(":") for n in names))
        return [str(one) for one in peer.Peer(1, 1000, 1000, "", tenants).sharers]

    assert sharers("user:alice", "unit:train.service") == ["unit:train.service", "user:alice"]
    assert sharers("user:alice", "pod:lab/train") == ["pod:lab/train", "user:alice"]
    assert sharers("user:alice", "container:9f1c") == ["container:9f1c", "user:alice"]
    assert sharers("user:alice", "unit:alice/run-u1.scope") == [
        "user:alice", "unit:alice/run-u1.scope"]
    assert sharers("user:alice", "container:alice/9f1c")[0] == "user:alice"
    assert sharers("user:alice", "job:7") == ["user:alice", "job:7"]
    assert sharers("user:alice") == ["user:alice"]


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028"])
def test_process_in_a_container_is_recognised_for_any_process_name(
        monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    # The kernel replaces \n in process names, but no other line end that str.splitlines() knows.
    files = {
        "status": f"Name:\tx{end}NSpid:\t9\nPid:\t9\nNSpid:\t9\t1\n", "uid_map": "0 0 4294967295\n",
        "comm": "x\n", "cgroup": "0::/\n"}
    monkeypatch.setattr(host, "process", lambda _, name, longest=-1: files.get(name, ""))
    monkeypatch.setattr(peer, "own", lambda name: files[name])
    assert peer.identify(9, 1000).is_contained


def test_peer_watch_reports_the_end_of_the_process_that_connected(tmp_path: Path) -> None:
    """A forked child that holds the socket, or a process that reused the pid, is not watched."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        connects = (
            "import os, socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
            "s.connect(sys.argv[1]); os.fork() or input()")
        # A forked child lives on and holds the socket.
        with subprocess.Popen([sys.executable, "-c", connects, str(tmp_path / "socket")],
                              stdin=subprocess.PIPE) as process:
            connected, _ = listening.accept()
            watch = peer.watch(connected, process.pid)
            assert watch is not None
            assert not select.select([watch], [], [], 0)[0]
            process.kill()
            assert select.select([watch], [], [], 600)[0]
            os.close(watch)
        with connected, pytest.raises(ProcessLookupError):
            # peer.watch() raises even if a living process has reused the pid.
            peer.watch(connected, os.getpid() if has_peer_pidfd(connected) else process.pid)
    dead = peer.identify(process.pid, 0)
    assert (dead.name, dead.started) == ("?", None)


@pytest.mark.parametrize(("called", "command", "whole"), [
    ("tensorflow_mode", "/usr/bin/tensorflow_model_server --port=8500", "tensorflow_model_server"),
    ("train_large_mod", "/usr/bin/python3 -u ./train_large_model.py", "train_large_model.py"),
    ("a-name-it-chose", "/usr/bin/python3 train.py", "a-name-it-chose"),
])
def test_whole_name_completes_a_process_name_the_kernel_truncated(
        monkeypatch: pytest.MonkeyPatch, called: str, command: str, whole: str) -> None:
    files = {"cmdline": command.replace(" ", "\0")}
    monkeypatch.setattr(host, "process", lambda _, name, longest=-1: files[name])
    assert peer.whole_name(1, called) == whole


def test_peer_watch_uses_the_pid_where_the_kernel_lacks_so_peerpidfd(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "SO_PEERPIDFD", 9999)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, subprocess.Popen([sys.executable, "-c", ""]) as process:
        watch = peer.watch(ours, os.getpid())
        assert watch is not None
        os.close(watch)
        assert peer.watch(ours, 0) is None  # a process of another pid namespace
        process.wait()
        with pytest.raises(ProcessLookupError):
            peer.watch(ours, process.pid)


def has_peer_pidfd(connected: socket.socket) -> bool:
    """Whether the kernel has SO_PEERPIDFD (Linux 6.5)."""
    try:
        os.close(connected.getsockopt(socket.SOL_SOCKET, caller.SO_PEERPIDFD))
    except OSError as error:
        return error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP)
    return True


def accounts(uid: int, cgroup: str, numbers: str = "9", users: str = "0 0 4294967295\n") -> str:
    files = {"cgroup": cgroup, "status": f"Name:\tx\nNSpid:\t{numbers}\n", "uid_map": users}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "process", lambda _, name, longest=-1: files.get(name, ""))
        patch.setattr(peer, "own", {
            "uid_map": "0 0 4294967295\n", "cgroup": "0::/system.slice/nvshared.service\n",
        }.__getitem__)
        patch.setattr(control_groups, "owner", lambda _controllers, _path: 0)
        return peer.identify(9, uid).account


def test_peer_with_uid_0_has_the_account_of_root_only_outside_containers() -> None:
    pod = "pod01234567-89ab-cdef-0123-456789abcdef"
    box = "9f1c" * 16
    assert accounts(0, "0::/user.slice/user-0.slice/session-1.scope\n") == ""
    assert accounts(0, "0::/system.slice/train.service\n") == ""
    assert accounts(0, "0::/\n") == ""
    # In a container without a user namespace, uid 0 is not the root of the host.
    assert accounts(0, f"0::/kubepods/besteffort/{pod}/{box}\n") == f"pod:{pod[3:]}"
    assert accounts(0, f"0::/docker/{box}\n") == f"container:{box}"
    assert accounts(0, "0::/lxc.payload/web\n") == "container:web"
    # In containers of unknown kind, recognised by pids, user ids or an unknown control group.
    assert accounts(0, "0::/\n", numbers="9\t1") == "user:0"
    assert accounts(0, "0::/\n", users="0 0 1\n") == "user:0"
    assert accounts(0, "0::/\n", users="") == "user:0"
    assert accounts(0, "0::/engine/task\n") == "user:0"
    # The kernel shows no path where the path is too long.
    assert accounts(0, "") == "user:0"


def test_peer_belongs_to_the_user_with_the_same_uid_only_outside_containers() -> None:
    def one(kind: Kind, name: str, owner: int = 1000) -> peer.Peer:
        return peer.Peer(1, owner, owner, "", (Tenant(Kind.USER, "alice"), Tenant(kind, name)))

    assert one(Kind.UNIT, "jupyter-alice.service").is_of(1000)
    assert one(Kind.JOB, "42").is_of(1000)
    assert one(Kind.CONTAINER, "alice/9f1c").is_of(1000)
    assert not one(Kind.UNIT, "jupyter-alice.service").is_of(1001)
    # A container image may have a user with uid 1000.
    assert not one(Kind.POD, "01234567").is_of(1000)
    assert not one(Kind.CONTAINER, "9f1c").is_of(1000)


def test_peer_in_a_container_has_the_container_account_unless_a_user_runs_the_container() -> None:
    box = "9f1c" * 16
    manager = "/user.slice/user-1000.slice/user@1000.service"
    assert accounts(1000, "0::/\n") == "user:1000"
    assert accounts(1000, "0::/system.slice/train.service\n") == "user:1000"
    assert accounts(1000, f"0::/docker/{box}\n") == f"container:{box}"
    # User 1000 runs this container, so it has that user's account.
    assert accounts(1000, f"0::{manager}/user.slice/libpod-{box}.scope\n") == "user:1000"


ALICE = 1000
NOBODY_HAS = "no-such-user"


@pytest.fixture(autouse=True)
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "subuid"
    monkeypatch.setattr(subordinate, "FILE", file)
    return file


def test_owner_of_a_subuid_is_the_user_of_the_range(lent: Path) -> None:
    assert subordinate.owner(ALICE) == ALICE        # the subuid file does not exist yet
    lent.write_text(f"{ALICE}:100000:65536\n1001:165536:65536\n{ALICE}:300000:10\n")
    found = [subordinate.owner(uid) for uid in (
        99999, 100000, 165535, 165536, 231071, 231072, 300009, 300010)]
    assert found == [99999, ALICE, ALICE, 1001, 1001, 231072, ALICE, 300010]


def test_first_of_overlapping_ranges_has_their_common_subuids(lent: Path) -> None:
    lent.write_text("1001:10:20\n1002:0:100\n1003:15:0\n1004:15:5\n1005:90:20\n")
    expected = {0: 1002, 9: 1002, 10: 1001, 15: 1001, 29: 1001, 30: 1002, 99: 1002, 100: 1005,
                109: 1005, 110: 110}
    assert {uid: subordinate.owner(uid) for uid in expected} == expected


def test_owner_of_a_subuid_is_found_without_a_look_at_the_range_of_each_user(lent: Path) -> None:
    compared = 0

    class Uid(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < other

        def __ge__(self, other: int) -> bool:
            return not self < other

    lent.write_text("".join(
        f"{2000 + user}:{100000 + 65536 * user}:65536\n" for user in range(1000)))
    for find in (subordinate.owner, subordinate.lender):
        find(Uid(100001 + 65536 * 999))
    assert compared < 50


def test_overlapping_ranges_of_thousands_of_users_take_no_memory_for_each_pair(lent: Path) -> None:
    """As with ranges of 65,536 ids that begin at 100,000 and the user's number."""
    lent.write_text("".join(f"{2000 + user}:{100000 + user}:65536\n" for user in range(2000)))
    tracemalloc.start()
    try:
        assert subordinate.owner(165000) == 2000
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()
    assert subordinate.owner(165536) == 2001


def test_owner_of_a_subuid_is_found_in_ranges_given_by_user_name(
        lent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.struct_passwd(("alice", "x", ALICE, ALICE, "", "/", "/bin/sh"))
    users = {"alice": entry}
    monkeypatch.setattr(pwd, "getpwnam", lambda name: users[name])
    lent.write_text(f"{NOBODY_HAS}:100000:65536\nalice:200000:65536\n")
    assert subordinate.owner(200001) == ALICE
    # While no user has the name, the whole range is one user, and not 65,536 of them.
    assert [*map(subordinate.owner, (100000, 100001, 165535))] == [100000] * 3
    lent.write_text("containers:100000:65536\n")   # podman's name for ranges of root's
    assert subordinate.owner(100001) == 100001
    lent.write_text(f"{NOBODY_HAS}:100000:65536\nalice:200000:65536\n")
    monkeypatch.delattr(pwd, "getpwnam")
    assert [*map(subordinate.lender, (99999, 100001, 200001))] == [99999, NOBODY_HAS, "alice"]


@pytest.mark.parametrize("account", ["0", "root", "998"])
def test_subuids_of_root_and_system_accounts_count_as_separate_users(
        lent: Path, account: str) -> None:
    lent.write_text(f"{account}:100000:65536\n")
    assert subordinate.owner(100001) == 100001


@pytest.mark.parametrize("line", [
    "bob:" + "9" * 5000 + ":65536", "bob:90000:" + "9" * 5000, "9" * 5000 + ":100000:65536",
    "b\0b:100000:65536", "4294967295:100000:65536", "bob:\u0661\u0660\u0660\u0660\u0660\u0660:9",
])
def test_subuid_line_without_a_possible_user_or_range_is_ignored(lent: Path, line: str) -> None:
    lent.write_text(f"{line}\n{ALICE}:100000:65536\n")
    assert subordinate.owner(100001) == ALICE
    assert subordinate.lender(100001) == str(ALICE)
    assert subordinate.owner(99) == subordinate.lender(99) == 99


def test_owner_of_a_subuid_follows_the_subuid_file_and_is_the_subuid_if_the_file_is_invalid(
        lent: Path) -> None:
    lent.write_text("# of this machine\n\n1001:x:3\n1001:5\n1000:100000:65536\n")
    assert subordinate.owner(100001) == ALICE
    lent.write_text("1001:100000:65536\n")
    assert subordinate.owner(100001) == 1001
    lent.write_bytes(b"\xff\xfe")
    assert subordinate.owner(100001) == 100001


def test_peer_with_a_subuid_belongs_to_the_owner_of_the_subuid(lent: Path) -> None:
    lent.write_text(f"{ALICE}:{os.getuid()}:1\n")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        account = peer.identify(*caller.credentials(ours))
    assert (account.pid, account.uid, account.owner) == (os.getpid(), os.getuid(), ALICE)
    assert account.account == f"user:{ALICE}"
    assert str(account.tenants[0]) == f"user:{ALICE}"
