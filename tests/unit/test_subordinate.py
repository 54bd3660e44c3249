# SPDX-License-Identifier: Apache-2.0
"""The owner of a subordinate user id (subuid), from /etc/subuid."""

import os
import pwd
import socket
from pathlib import Path

import pytest

from nvshared.machine import peer, subordinate
from nvshared.names import user

ALICE = 1000
NOBODY_HAS = "no-such-user"


@pytest.fixture(autouse=True)
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "subuid"
    monkeypatch.setattr(subordinate, "FILE", file)
    return file


def test_owner_of_a_subuid_is_the_user_of_the_range(lent: Path) -> None:
    assert subordinate.owner(ALICE) == ALICE        # there is no file yet
    lent.write_text(f"{ALICE}:100000:65536\n1001:165536:65536\n{ALICE}:300000:10\n")
    found = [subordinate.owner(uid) for uid in (
        99999, 100000, 165535, 165536, 231071, 231072, 300009, 300010)]
    assert found == [99999, ALICE, ALICE, 1001, 1001, 231072, ALICE, 300010]


def test_owner_of_a_subuid_is_found_in_ranges_given_by_user_name(
        lent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.struct_passwd(("alice", "x", ALICE, ALICE, "", "/", "/bin/sh"))
    users = {"alice": entry}
    monkeypatch.setattr(pwd, "getpwnam", lambda name: users[name])
    lent.write_text(f"{NOBODY_HAS}:100000:65536\nalice:200000:65536\n")
    assert subordinate.owner(200001) == ALICE
    assert subordinate.owner(100001) == 100001
    monkeypatch.delattr(pwd, "getpwnam")
    assert [*map(subordinate.lenders(), (99999, 100001, 200001))] == [99999, NOBODY_HAS, "alice"]


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
    lender = subordinate.lenders()
    assert lender(100001) == str(ALICE)
    assert subordinate.owner(99) == lender(99) == 99


def test_owner_of_a_subuid_follows_the_subuid_file_and_is_the_subuid_if_the_file_is_invalid(
        lent: Path) -> None:
    lent.write_text("# of this machine\n\n1001:x:3\n1001:5\n1000:100000:65536\n")
    assert subordinate.owner(100001) == ALICE
    lent.write_text("1001:100000:65536\n")
    assert subordinate.owner(100001) == 1001
    lent.write_bytes(b"\xff\xfe")
    assert subordinate.owner(100001) == 100001


def test_peer_with_a_subuid_belongs_to_the_owner(lent: Path) -> None:
    lent.write_text(f"{ALICE}:{os.getuid()}:1\n")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        account = peer.identify(*peer.credentials(ours))
    assert (account.pid, account.uid, account.owner) == (os.getpid(), os.getuid(), ALICE)
    assert account.account == f"user:{ALICE}"
    assert str(account.tenants[0]) == f"user:{user(ALICE)}"
