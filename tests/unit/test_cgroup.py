# SPDX-License-Identifier: Apache-2.0
"""Memory limits of control groups, read from copies of the kernel's files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.machine import cgroup
from nvshared.machine.cgroup import chain
from nvshared.machine.tenant import DEPTH, OTHERS
from nvshared.units import MIB

HUGE = 9223372036854771712              # cgroup v1 shows this size where there is no limit
FILES = "inactive_anon 1\nactive_anon 2\ninactive_file {0}\nactive_file {1}\nunevictable 0\n"


def write(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def limits(text: str, root: Path) -> list[tuple[str, int, int]]:
    """For each limit of groups below `root`: its file, its size and the free memory, in MiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroup, "ROOT", root)
        patch.setattr(cgroup, "_visible_top", lambda name: (cgroup.mount_point(name), ()))
        found = [limit for group in chain(text) if (limit := group.limit()) is not None]
    return [(str(one.file.relative_to(root)), one.size // MIB, one.free // MIB) for one in found]


def test_cgroup_memory_limits_are_the_tightest_of_each_group_up_to_the_root(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b" / "c", max="max", high="max", current=MIB)
    write(tmp_path / "a" / "b", max=500 * MIB, high=400 * MIB, current=100 * MIB)
    write(tmp_path / "a", max=700 * MIB, high="max", current=100 * MIB)
    # In a container, the top folder is a control group with limits.
    write(tmp_path, max=900 * MIB, current=300 * MIB)
    assert limits("0::/a/b/c\n", tmp_path) == [
        ("a/b/memory.high", 400, 300), ("a/memory.max", 700, 600), ("memory.max", 900, 600)]
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 700, 600), ("memory.max", 900, 600)]


def test_cgroup_memory_limits_count_cached_files_as_free_memory(tmp_path: Path) -> None:
    write(tmp_path / "a", max=500 * MIB, current=490 * MIB, stat=FILES.format(300 * MIB, 50 * MIB))
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 500, 360)]
    write(tmp_path / "a", current=10 * MIB)     # the kernel updates `stat` later
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 500, 500)]
    write(tmp_path / "a", current=900 * MIB)
    assert limits("0::/a\n", tmp_path) == [("a/memory.max", 500, 0)]


def test_cgroup_v1_memory_and_swap_limits_both_apply(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "docker" / "x"
    none = {"limit_in_bytes": HUGE, "usage_in_bytes": 0}
    write(folder, **none)
    write(tmp_path / "memory" / "docker", limit_in_bytes=400 * MIB, usage_in_bytes=100 * MIB)
    write(tmp_path / "memory", **none)
    text = "9:name=systemd:/\n4:cpu,memory:/docker/x\n3:cpuset:/\n0::/other\n"
    assert limits(text, tmp_path) == [("memory/docker/memory.limit_in_bytes", 400, 300)]
    version_1: dict[str, str | int] = {
        "limit_in_bytes": 350 * MIB, "usage_in_bytes": 150 * MIB,
        "memsw.limit_in_bytes": 400 * MIB, "memsw.usage_in_bytes": 390 * MIB,   # memory and swap
        "stat": f"inactive_file 1\ntotal_inactive_file {40 * MIB}\ntotal_active_file {10 * MIB}\n"}
    write(folder, **version_1)
    assert limits(text, tmp_path) == [
        ("memory/docker/x/memory.memsw.limit_in_bytes", 400, 60),
        ("memory/docker/memory.limit_in_bytes", 400, 300)]


def test_cgroup_v2_memory_limits_are_read_on_a_machine_that_also_mounts_v1(tmp_path: Path) -> None:
    write(tmp_path / "unified" / "a", max=400 * MIB, current=100 * MIB)
    (tmp_path / "unified" / "cgroup.controllers").write_text("memory\n")
    assert limits("4:cpu:/b\n0::/a\n", tmp_path) == [("unified/a/memory.max", 400, 300)]


@pytest.mark.parametrize("text", [
    "", "0::/a/gone\n", "0::/../outside\n", "0::/a/../b\n", "nonsense\n", "0:\n", "4:memory:/a\n",
])
def test_cgroup_memory_limits_without_readable_usage_are_ignored(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a", high="nonsense", max=400 * MIB)       # without memory.current
    write(tmp_path / "b", max=400 * MIB, current=0)
    assert limits(text, tmp_path) == []


class Inside:
    """A daemon in a control group namespace; the host's groups may be mounted at another folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host, self.mountinfo = folder / "ho st", folder / "mountinfo"
        self.own = self.host / "kubepods" / "besteffort" / "pod1" / "box"
        write(self.own, max=100 * MIB, current=MIB)
        patch.setattr(cgroup, "MOUNTINFO", self.mountinfo)
        self.mounts({"/": self.own, "/../../../..": self.host})

    def mounts(self, places: dict[str, Path]) -> None:
        self.mountinfo.write_text("22 1 0:21 / /proc rw shared:5 - proc proc rw\n" + "".join(
            f"{number} 22 0:26 {root} {str(point).replace(' ', chr(92) + '040')} ro,nosuid "
            "shared:9 master:4 - cgroup2 cgroup rw,nsdelegate\n"
            for number, (root, point) in enumerate(places.items(), 30)))
        cgroup._visible_top.cache_clear()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    yield Inside(tmp_path, monkeypatch)
    cgroup._visible_top.cache_clear()


def test_cgroup_chain_in_a_namespace_reaches_the_hosts_cgroups_where_they_are_mounted(
        inside: Inside) -> None:
    write(inside.host / "kubepods" / "besteffort" / "pod1", max=90 * MIB, current=MIB)
    write(inside.host / "kubepods" / "burstable" / "pod2", max=80 * MIB, current=MIB)
    write(inside.host / "kubepods", max=500 * MIB, current=MIB)

    def found(text: str) -> list[int]:
        return [limit.size // MIB for group in chain(text) if (limit := group.limit()) is not None]

    assert found("0::/\n") == [100, 90, 500]
    assert found("0::/child\n") == [100, 90, 500]
    assert found("0::/../../../burstable/pod2/box\n") == [80, 500]
    assert found("0::/../../../../system.slice/x.service\n") == []
    assert found("0::/../../../../../x\n") == []     # the kernel never shows such a path
    assert not cgroup.has_hidden_ancestors("0::/\n")


@pytest.mark.parametrize("places", [["/"], ["/../../../.."], ["/../.."], []])
def test_cgroup_chain_is_empty_for_a_cgroup_outside_the_visible_mounts(
        inside: Inside, places: list[str]) -> None:
    elsewhere = inside.mountinfo.parent / "elsewhere"
    elsewhere.mkdir()
    inside.mounts({mount: inside.own if mount == "/" else elsewhere for mount in places})
    assert chain("0::/../../burstable/pod2\n") == ()
    assert cgroup.owner("", "/../../burstable/pod2") is None


def test_cgroup_chain_is_empty_where_the_cgroup_mount_begins_above_the_own_cgroup(
        inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "ROOT", inside.host)
    inside.mounts({"/../../../..": inside.host})
    assert chain("0::/kubepods\n") == ()       # /kubepods of the namespace is no group of the host
    assert cgroup.has_hidden_ancestors("0::/\n")
    inside.mounts({"/../../../..": inside.host, "/": inside.own})
    assert chain("0::/\n")[0].folder == inside.own
    assert not cgroup.has_hidden_ancestors("0::/\n")


def test_owner_of_a_cgroup_outside_the_namespace_is_the_owner_of_the_folder(inside: Inside) -> None:
    folder = inside.host / "lab" / "alice"
    folder.mkdir(parents=True)
    assert cgroup.owner("", "/../../../../lab/alice") == os.getuid()
    if os.getuid() == 0:
        os.chown(folder, 1000, 1000)
        assert cgroup.owner("", "/../../../../lab/alice") == 1000
    folder.chmod(0o777)
    assert cgroup.owner("", "/../../../../lab/alice") == OTHERS
    assert cgroup.owner("", "/../../../../lab/bob") is None
    assert cgroup.owner("4", "/lab/alice") is None


def test_cgroup_chain_omits_cgroups_nested_deeper_than_the_maximum(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "_visible_top", lambda name: (cgroup.mount_point(name), ()))
    found = chain("0::" + "/a" * 1900)
    assert len(found) == DEPTH + 1
    assert found[-1].folder == tmp_path
    assert found[0].folder == tmp_path.joinpath(*["a"] * DEPTH)
