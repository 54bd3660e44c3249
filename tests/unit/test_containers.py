# SPDX-License-Identifier: Apache-2.0
"""The CDI specification of shared GPUs, names of containers, and what Apptainer needs."""

import json
import os
import re
import socket
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from nvshared import doctor, library
from nvshared.containers import apptainer, cdi, names, unshared
from nvshared.containers.cdi import Share
from nvshared.errors import NvshareError
from nvshared.machine import host

# As nvidia-ctk 1.17 writes it, shortened.
TOOLKIT = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-cdi-hook, update-ldcache, --folder, /usr/lib/x86_64-linux-gnu]
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54
    options: [ro, nosuid, nodev, bind]
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "1"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia-caps/nvidia-cap3
  name: "1:0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
  name: all
kind: nvidia.com/gpu
"""
SHARE = Share(Path("/run/nvshare/nvshare.sock"), Path("/state"))
UUIDS = [("1", "GPU-1b"), ("0", "GPU-0a")]      # by PCI address: /dev/nvidia1 comes first
# What the schema of CDI allows in 0.5.0 and in 0.6.0, which adds annotations.
EDITS = {"env": str, "deviceNodes": dict, "mounts": dict, "hooks": dict, "intelRdt": None}
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]|[A-Za-z0-9]")
ENV = re.compile(r"[^=\s]+=.*")


def check_edits(edits: dict[str, Any]) -> None:
    assert edits.keys() <= EDITS.keys()
    for key, values in edits.items():
        assert isinstance(values, list)
        assert all(isinstance(one, EDITS[key] or object) for one in values)
    assert all(map(ENV.fullmatch, edits.get("env", [])))
    for mount in edits.get("mounts", []):
        assert {"hostPath", "containerPath"} <= mount.keys() <= {
            "hostPath", "containerPath", "options", "type"}
    for hook in edits.get("hooks", []):
        assert {"hookName", "path"} <= hook.keys() <= {"hookName", "path", "args", "env", "timeout"}
    for node in edits.get("deviceNodes", []):
        assert {"path"} <= node.keys() <= {
            "path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}


def check(text: str) -> dict[str, Any]:
    """The devices of our file, by name, if the file obeys the schema."""
    said = json.loads(text)
    assert said.keys() == {"cdiVersion", "kind", "devices", "containerEdits"}
    assert said["kind"] == "nvshare.com/gpu"
    assert said["devices"]
    check_edits(said["containerEdits"])
    for one in said["devices"]:
        assert one.keys() == {"name", "containerEdits"}
        assert DEVICE.fullmatch(one["name"])
        check_edits(one["containerEdits"])
    return {one["name"]: one["containerEdits"] for one in said["devices"]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("etc", "run"):
        (tmp_path / name).mkdir()
    return tmp_path / "etc", tmp_path / "run"


@pytest.mark.parametrize("version", ["0.5.0", "0.6.0"])
def test_merged_specification_has_nvidias_edits_of_whole_cards_and_ours(
        folders: tuple[Path, Path], version: str) -> None:
    (folders[0] / "nvidia.yaml").write_text(TOOLKIT.replace("0.5.0", version))
    given = cdi.read(folders)
    assert given is not None
    text = cdi.merged(given, SHARE, UUIDS)
    devices, said = check(text), json.loads(text)
    assert said["cdiVersion"] == version
    first, second = ({"deviceNodes": [{"path": f"/dev/nvidia{node}"}]} for node in (1, 0))
    assert devices == {"0": first, "1": second, "all": {
        "deviceNodes": [*second["deviceNodes"], *first["deviceNodes"]]},
        "GPU-1b": first, "GPU-0a": second}      # no part of a card: nvshared shares whole ones
    common = said["containerEdits"]
    assert common["env"] == ["NVIDIA_VISIBLE_DEVICES=void",
                             "NVSHARE_SOCKET=/run/nvshare/nvshare.sock", "NVSHARE_REQUIRED=1"]
    assert common["deviceNodes"] == [{"path": "/dev/nvidiactl"}]
    assert [one["hookName"] for one in common["hooks"]] == ["createContainer"]
    mounts = {one["containerPath"]: one for one in common["mounts"]}
    assert mounts["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54"]["options"] == [
        "ro", "nosuid", "nodev", "bind"]
    ours = {there: one for there, one in mounts.items() if "libcuda" not in there}
    assert {there: one["hostPath"] for there, one in ours.items()} == {
        "/run/nvshare": "/run/nvshare", "/usr/lib/nvshare": "/state/library",
        "/etc/ld.so.preload": "/state/ld.so.preload"}
    assert all("ro" in one["options"] for one in ours.values())


@pytest.mark.parametrize("damage", ["", "/usr/lib/nvsh"], ids=["empty", "cut off"])
def test_preload_line_of_containers_that_a_crash_has_cut_off_is_written_again(
        tmp_path: Path, damage: str) -> None:
    os.close(cdi.prepare(tmp_path))
    line = tmp_path / "ld.so.preload"
    whole, inode = line.read_text(), line.stat().st_ino
    os.close(cdi.prepare(tmp_path))
    assert line.stat().st_ino == inode              # running containers have this very file
    line.write_text(damage)
    os.close(cdi.prepare(tmp_path))
    assert line.read_text() == whole == cdi.LINE


def test_specification_in_the_dynamic_folder_has_precedence_and_ours_is_not_read(
        folders: tuple[Path, Path]) -> None:
    assert cdi.read(folders) is None
    static, dynamic = folders
    (static / "nvidia.yaml").write_text(TOOLKIT)
    (dynamic / cdi.FILE).write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "x"}]}')
    (dynamic / "other.json").write_text('{"kind": "amd.com/gpu", "devices": [{"name": "y"}]}')
    given = cdi.read(folders)
    assert given is not None
    assert set(given.devices) == {"0", "1", "1:0", "all"}
    (dynamic / "nvidia.json").write_text(json.dumps({
        "cdiVersion": "0.6.0", "kind": "nvidia.com/gpu",
        "devices": [{"name": "GPU-0a", "containerEdits": {}}]}))
    given = cdi.read(folders)
    assert given is not None
    assert (given.version, set(given.devices)) == ("0.6.0", {"GPU-0a"})


@pytest.mark.parametrize("text", [
    "kind: nvidia.com/gpu\ndevices: [", "kind: nvidia.com/gpu\n",
    "kind: nvidia.com/gpu\ndevices: 3",
    "kind: nvidia.com/gpu\ndevices:\n- containerEdits: {}\n",
], ids=["cut", "no devices", "number", "no name"])
def test_damaged_specification_of_nvidias_is_refused_with_the_command_that_makes_one(
        folders: tuple[Path, Path], text: str) -> None:
    (folders[0] / "nvidia.yaml").write_text(text)
    with pytest.raises(NvshareError, match=r"nvidia\.yaml") as caught:
        cdi.read(folders)
    assert "nvidia-ctk cdi generate" in caught.value.hint


def test_cards_are_read_from_the_driver_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    for address, minor, uuid in (("0000:b1:00.0", 0, "GPU-0a"), ("0000:41:00.0", 1, "GPU-1b"),
                                 ("0000:c1:00.0", 2, "GPU-??")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(
            f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 47\nGPU UUID: \t {uuid}\n"
            f"Device Minor: \t {minor}\n")
    assert cdi.cards(tmp_path) == UUIDS
    assert cdi.cards(tmp_path / "none") == []


FIRST, SECOND = "a" * 64, "b" * 64


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that answer as docker and podman do."""
    for name, line in (("docker", f"{FIRST}\tollama"), ("podman", f"{SECOND}\tcomfy,also")):
        (tmp_path / name).write_text(f"#!/bin/sh\n[ \"$1\" = ps ] && printf '%s\\n' '{line}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(names, "TOOLS", ("docker", "podman"))
    return tmp_path


def test_names_of_containers_come_from_each_runtime_that_answers(
        tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = [f"container:{FIRST}", f"container:alice/{SECOND}", f"container:{'c' * 64}",
               "container:incus-box", "user:alice"]
    assert names.names_of(tenants) == {tenants[0]: "ollama", tenants[1]: "comfy"}
    (tools / "docker").write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(names, "PATIENCE", 0.2)
    assert names.names_of(tenants) == {tenants[1]: "comfy"}
    (tools / "podman").write_text("#!/bin/sh\necho broken; exit 125\n")
    assert names.names_of(tenants) == {}


@pytest.mark.parametrize(("text", "tenant"), [
    ("container:ollama", "container:ollama"), ("container:comfy", f"container:alice/{SECOND}"),
    ("container:alice/comfy", f"container:alice/{SECOND}"),
    ("container:bob/ollama", f"container:bob/{FIRST}"),
    (f"container:{FIRST[:12]}", "container:ollama"), (f"container:{FIRST}", "container:ollama"),
    (f"container:{'c' * 64}", f"container:{'c' * 64}"),
    ("container:box", "container:box"), ("user:ollama", "user:ollama"),
])
@pytest.mark.usefixtures("tools")
def test_name_of_a_container_is_resolved_to_the_tenant_that_nvshared_knows(
        text: str, tenant: str) -> None:
    assert names.resolved(text, [f"container:alice/{SECOND}", "container:box"]) == tenant


def test_names_of_containers_are_asked_of_the_socket_and_only_names_that_are_no_tenants_are_taken(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SOCKET", tmp_path / "names.sock")
    monkeypatch.setattr(names, "listed", list)      # no runtime here answers
    known = names.Names()
    assert known.known(FIRST) is None
    assert known.of(FIRST) == ""        # there is no socket
    monkeypatch.setattr(names, "FRESH", -1.0)
    wrong = [f"{'c' * 64}\talice/box", f"{'d' * 64}\t{FIRST}", f"{'e' * 64}\tall*", "x\ty", ""]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(names.SOCKET))
        listening.listen()
        listening.settimeout(60)

        def answer() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.sendall("\n".join([f"{FIRST}\ttrainer,alias", *wrong]).encode())

        for id, name in ((FIRST, "trainer"), ("c" * 64, ""), ("d" * 64, ""), ("e" * 64, "")):
            thread = Thread(target=answer)
            thread.start()
            assert known.of(id) == name
            thread.join()


def test_apptainer_gets_binds_and_variables_and_other_commands_get_none(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "hook", lambda: tmp_path / "libnvshare.so")
    given = {"APPTAINER_BIND": "/data", "NVSHARE_MEMORY_LIMIT": "8GiB", "LD_PRELOAD": "/l/x.so"}
    assert apptainer.environment("python", given) == given
    changed = apptainer.environment("/usr/bin/apptainer", given)
    assert changed == {
        **given,
        "APPTAINER_BIND": f"/data,{tmp_path}/libnvshare.so:/usr/lib/nvshare/libnvshare.so:ro,"
                          "/run/nvshare:/run/nvshare:ro",
        "APPTAINERENV_LD_PRELOAD": "/usr/lib/nvshare/libnvshare.so",
        "APPTAINERENV_NVSHARE_MEMORY_LIMIT": "8GiB",
        "APPTAINERENV_NVSHARE_SOCKET": "/run/nvshare/nvshare.sock"}
    other = apptainer.environment("singularity", {"NVSHARE_SOCKET": "/srv/x/sock"})
    assert other["SINGULARITY_BIND"].endswith(",/srv/x:/run/nvshare:ro")
    assert other["SINGULARITYENV_NVSHARE_SOCKET"] == "/run/nvshare/sock"


MOUNTED = "36 35 98:0 /library /usr/lib/nvshare ro,nosuid - ext4 /dev/sda1 rw\n"
MAP = "7f0-7f1 r-xp 00000000 fe:01 12 {}\n"
LIBC = "/lib/x86_64-linux-gnu/libc.so.6"


@pytest.mark.parametrize(("mounts", "mapped", "libc", "words", "advice"), [
    ("1 1 0:1 / / rw - overlay none rw\n", [LIBC], "2.36", "started without nvshare's device",
     "--device nvshare.com/gpu=all"),
    (MOUNTED, ["/opt/engine"], "", "statically linked", "link it dynamically"),
    (MOUNTED, ["/lib/ld-musl-x86_64.so.1"], "", "made for musl", "an image with glibc"),
    (MOUNTED, [LIBC], "2.12", "has glibc 2.12, and the library needs 2.17", "a newer image"),
    (MOUNTED, [LIBC], "2.17", "before its container had the library", "start the container again"),
    (MOUNTED, [], "", "cannot be inspected", "as root"),
    (MOUNTED, ["/a\x0c/b", LIBC], "2.17", "before its container had the library", "again"),
], ids=["no device", "static", "musl", "old glibc", "not preloaded", "another user's", "odd name"])
def test_reason_why_a_container_does_not_share_its_gpu_is_found_in_its_process(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str, mapped: list[str],
        libc: str, words: str, advice: str) -> None:
    process = tmp_path / "7"
    (process / "root/lib/x86_64-linux-gnu").mkdir(parents=True)
    (process / "mountinfo").write_text(mounts)
    (process / "maps").write_text("".join(map(MAP.format, mapped)) + "7ff-800 rw-p 0 0:0 0 [heap]\n"
                                  if mapped else "")
    if libc:
        (process / f"root{LIBC}").write_bytes(
            b"\x7fELF\0GNU C Library (Debian GLIBC) stable release version %s.\n" % libc.encode())
    monkeypatch.setattr(host, "PROCESSES", tmp_path)
    found = unshared.reason(7)
    assert words in found[0]
    assert advice in found[1]


@pytest.mark.parametrize("what", ["link", "link of a folder", "pipe", "folder"])
def test_nothing_but_a_regular_file_of_a_container_is_opened_in_the_place_of_its_libc(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """As root: a link could lead to a device of the machine, such as /dev/watchdog."""
    process = tmp_path / "7"
    path = process / f"root{LIBC}"
    outside = tmp_path / "outside/libc.so.6"
    outside.parent.mkdir()
    outside.write_bytes(b"GNU C Library (Debian GLIBC) stable release version 2.12.\n")
    (process / "root/lib").mkdir(parents=True)
    if what == "link of a folder":
        path.parent.symlink_to(outside.parent)
    else:
        path.parent.mkdir()
    match what:
        case "link":
            path.symlink_to(outside)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    (process / "mountinfo").write_text(MOUNTED)
    (process / "maps").write_text(MAP.format(LIBC))
    monkeypatch.setattr(host, "PROCESSES", tmp_path)
    assert "before its container had the library" in unshared.reason(7)[0]


@pytest.mark.parametrize(("cgroup", "found"), [
    (f"0::/system.slice/docker-{FIRST}.scope\n", f"container:{FIRST}"),
    (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{FIRST}.scope/container\n",
     f"container:1000/{FIRST}"),
    ("0::/system.slice/train.service\n", ""),
], ids=["docker", "rootless podman", "a unit"])
def test_container_of_a_process_is_found_by_its_control_group(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, found: str) -> None:
    for name, text in (("7", cgroup), (str(os.getpid()), "0::/user.slice/session-1.scope\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup").write_text(text)
    monkeypatch.setattr(host, "PROCESSES", tmp_path)
    assert unshared.container(7) == found
    assert unshared.container(8) == ""


@pytest.mark.parametrize(("offer", "grade", "words"), [
    (cdi.DeviceOffer(("nvshare.com/gpu=all",)), "ok", "docker run --device nvshare.com/gpu=all"),
    (cdi.DeviceOffer((), "no CDI specification of nvidia.com/gpu", cdi.HINT), "note", "no CDI"),
    (cdi.DeviceOffer(("nvshare.com/gpu=0",), current=False), "warning", "differs from NVIDIA's"),
], ids=["offered", "no toolkit", "stale"])
def test_doctor_says_whether_containers_can_share_gpus_where_a_runtime_is(
        monkeypatch: pytest.MonkeyPatch, offer: cdi.DeviceOffer, grade: str, words: str) -> None:
    monkeypatch.setattr(cdi, "offer", lambda: offer)
    monkeypatch.setattr("shutil.which", {"podman": "/usr/bin/podman"}.get)
    (found,) = doctor.container_findings()
    assert found.grade == grade
    assert words in found.words
    assert bool(found.advice) is (grade != "ok")
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert not list(doctor.container_findings())
