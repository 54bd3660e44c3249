# SPDX-License-Identifier: Apache-2.0
"""The list of preloaded libraries: adding, removing, and entries that stay unchanged."""

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvshared.cli.main import main
from nvshared.errors import InvalidArgs
from nvshared.preload import switch
from nvshared.preload.switch import entries, with_library, without_library
from nvshared.preload.tree import Tree

OURS = Path("/usr/lib/libnvshare.so")
LINES = st.lists(st.sampled_from([
    "/lib/a.so", "/lib/b.so /lib/c.so", "/lib/a.so:/lib/b.so", "# words", "", " \t",
    "libm.so # why",
    "/usr/lib/libnvshare.so", "/old/libnvshare.so /lib/a.so # both", "libnvshare.so # ours",
]))


@pytest.mark.parametrize(("data", "found"), [
    (b"", []), (b"/a.so\n/b.so\n", ["/a.so", "/b.so"]),
    (b" /a.so:/b.so\t/c.so", ["/a.so", "/b.so", "/c.so"]), (b"# /a.so\n/b.so # /c.so\n", ["/b.so"]),
    (b"/caf\xe9.so\n", ["/caf\udce9.so"]),
])
def test_preload_entries_are_split_like_in_the_loader(data: bytes, found: list[str]) -> None:
    assert entries(data) == found


@pytest.mark.parametrize(("before", "after"), [
    ("/a.so\n/usr/lib/libnvshare.so\n/b.so\n", "/a.so\n/b.so\n"),
    ("/a.so:libnvshare.so:/b.so\n", "/a.so /b.so\n"),
    ("libnvshare.so # for the lab\n", "# for the lab\n"),
    ("/a.so /x/libnvshare.so # both\n", "/a.so # both\n"),
    ("# /usr/lib/libnvshare.so\n", "# /usr/lib/libnvshare.so\n"),
    ("/a/libnvshare.so.1  /b.so\n", "/a/libnvshare.so.1  /b.so\n"),
])
def test_preload_list_has_no_entry_of_the_library_after_a_removal(
        before: str, after: str) -> None:
    assert without_library(before.encode()).decode() == after


@given(lines=LINES, ends=st.booleans())
def test_preload_list_of_any_content_keeps_other_entries(lines: list[str], ends: bool) -> None:
    data = ("\n".join(lines) + ("\n" if ends else "")).encode()
    others = [entry for entry in entries(data) if not switch.ours(entry)]
    assert entries(without_library(data)) == others
    put = with_library(data, OURS)
    assert [entry for entry in entries(put) if not switch.ours(entry)] == others
    assert [entry for entry in entries(put) if switch.ours(entry)] == [str(OURS)]
    assert with_library(put, OURS) == put
    assert without_library(without_library(data)) == without_library(data)
    assert data.count(b"#") == put.count(b"#")


def test_preload_list_behind_symbolic_links_is_found_within_the_given_root_directory(
        tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "shared").mkdir()
    path = tmp_path / "etc" / "ld.so.preload"
    path.symlink_to("/shared/list")    # a path within tmp_path, not on this machine
    switch.change(Tree(tmp_path), lambda data: with_library(data, OURS))
    assert path.is_symlink()
    assert (tmp_path / "shared" / "list").read_text() == f"{OURS}\n"
    (tmp_path / "shared" / "list").unlink()
    (tmp_path / "shared" / "list").symlink_to("../etc/ld.so.preload")
    with pytest.raises(InvalidArgs, match="circle"):
        switch.read(Tree(tmp_path))


def test_preload_list_is_locked_against_other_processes_during_a_change(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    other = os.open(tmp_path / "etc", os.O_RDONLY)

    def edit(before: bytes) -> bytes:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return before

    path = tmp_path / "etc" / "ld.so.preload"
    path.write_text("/a.so\n")
    inode = path.stat().st_ino
    switch.change(Tree(tmp_path), edit)
    assert path.stat().st_ino == inode      # a list without a change is not rewritten
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.parametrize(("has_list", "label"), [(True, b"of the list"), (False, b"of the cache")])
def test_new_preload_list_gets_the_selinux_label_of_the_old_list_or_the_loader_cache(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_list: bool, label: bytes) -> None:
    path = tmp_path / "etc" / "ld.so.preload"
    path.parent.mkdir()
    if has_list:
        path.write_text("/a.so\n")
    labels = {path: b"of the list", path.with_name("ld.so.cache"): b"of the cache"}
    found = []

    def set_label(descriptor: int, name: str, value: bytes) -> None:
        found.append((os.fstat(descriptor).st_ino, name, value))

    # Few test machines have SELinux, and without it the kernel refuses to set its label.
    monkeypatch.setattr("os.getxattr", lambda path, name: labels[path])
    monkeypatch.setattr("os.setxattr", set_label)
    switch.change(Tree(tmp_path), lambda data: with_library(data, OURS))
    assert found == [(path.stat().st_ino, "security.selinux", label)]


@pytest.mark.parametrize(("path", "resolved"), [
    ("/a/file", "/b/file"), ("/a/../x", "/x"), ("/up", "/b"), ("/no/such", "/no/such"),
    ("/", "/"), ("/rel/file", "/b/file"), ("/b/../../b/file", "/b/file"),
])
def test_path_resolution_follows_links_within_the_given_root_directory(
        tmp_path: Path, path: str, resolved: str) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").touch()
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "rel").symlink_to("./b")
    (tmp_path / "up").symlink_to("../../b")
    assert Tree(tmp_path).resolve(Path(path)) == Path(resolved)


def test_preload_without_an_action_shows_the_list(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for action in (["status"], []):
        assert main(["preload", *action, "--root", str(tmp_path)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""


def test_preload_status_says_what_32_bit_programs_print_where_they_can_run(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ld.so.preload").write_text("libnvshare.so\n")

    def said() -> str:
        assert main(["preload", "status", "--root", str(tmp_path)]) == 0
        return capsys.readouterr().out

    assert "32-bit" not in said()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ld-linux.so.2").touch()
    assert "32-bit programs" in said()
    assert "wrong ELF class: ELFCLASS64" in said()
