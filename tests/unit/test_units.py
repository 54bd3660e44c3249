# SPDX-License-Identifier: Apache-2.0
"""systemd's units: they are valid, and no privileged socket lies where containers reach it."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvshared.containers.cdi import Share
from nvshared.kubelet.container import Containers
from nvshared.machine import checkpoint
from nvshared.names import DEFAULT_SOCKET

ROOT = Path(__file__).parents[2]
UNITS = sorted(path for path in (ROOT / "systemd").iterdir() if path.is_file())
LISTENS = re.compile(r"^Listen\w+=(/\S+)$", re.M)
HOST_PATH = re.compile(r"hostPath: \{path: ([^,}\s]+)|--volume[= ](/[^:\s]+):|-v (/[^:\s]+):")


def setting(unit: str, name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", (ROOT / "systemd" / unit).read_text(), re.M)
    return str(found)


def folders_of_containers() -> Iterator[Path]:
    """Folders of the host that containers get: by nvshare-kubelet, by manifests, by the pages."""
    containers = Containers(Share(Path(DEFAULT_SOCKET), Path("/var/lib/x")), Path("/run/cdi"))
    for mount in containers.response(["GPU-0"], by_cdi=False)["mounts"]:
        yield Path(mount["host_path"])
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "packaging" / "kubernetes").rglob("*.yaml")]
    for page in pages:
        for found in HOST_PATH.findall(page.read_text()):
            yield Path(next(filter(None, found)))


def test_folders_of_containers_contain_no_socket_but_the_one_for_everybody() -> None:
    sockets = {Path(path): unit for unit in UNITS if unit.suffix == ".socket"
               for path in LISTENS.findall(unit.read_text())}
    assert checkpoint.SOCKET in sockets
    folders = set(folders_of_containers())
    assert Path(DEFAULT_SOCKET).parent in folders
    reached = {path for path in sockets if any(path.is_relative_to(one) for one in folders)}
    assert reached == {Path(DEFAULT_SOCKET)}


def test_folder_of_the_checkpoint_socket_is_closed_to_all_but_the_daemon() -> None:
    assert setting("nvshare-checkpoint.socket", "DirectoryMode") == "0700"
    assert setting("nvshare-checkpoint.socket", "SocketMode") == "0600"
    lines = (ROOT / "systemd" / "tmpfiles.d" / "nvshare.conf").read_text().splitlines()
    assert f"d {checkpoint.SOCKET.parent} 0750 root nvshare -" in lines


def test_checkpoint_helper_ends_by_itself_and_never_during_a_command() -> None:
    limit = setting("nvshare-checkpoint@.service", "RuntimeMaxSec")
    assert limit.endswith("min")
    longest = checkpoint.KEPT_FOR + checkpoint.READY_WITHIN + checkpoint.PATIENCE
    assert 60 * int(limit.removesuffix("min")) > longest


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_units_are_valid_for_systemd(tmp_path: Path) -> None:
    folder = tmp_path / "usr" / "lib" / "systemd" / "system"
    folder.mkdir(parents=True)
    for unit in UNITS:
        shutil.copyfile(unit, folder / unit.name)
    for name in ("sysinit", "basic", "shutdown", "sockets", "multi-user"):     # systemd's own
        (folder / f"{name}.target").write_text("[Unit]\n")
    commands = re.findall(r"^Exec\w+=[+-]*(\S+)", "\n".join(map(Path.read_text, UNITS)), re.M)
    for command in commands:
        program = tmp_path / "usr" / "bin" / command
        if command.startswith("/"):
            program = tmp_path / command.lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(0o755)
    names = [unit.name.replace("@.", "@1.") for unit in UNITS]
    done = subprocess.run(
        ["systemd-analyze", f"--root={tmp_path}", "--man=no", "verify", *names],
        capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
