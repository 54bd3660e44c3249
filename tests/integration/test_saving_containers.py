# SPDX-License-Identifier: Apache-2.0
"""A container of Podman is checkpointed, removed and restored with a parked program."""

import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvshared.control import Daemon as Control
from tests.integration.conftest import BUILD, SIMULATOR, Site, Start, kill, wait_until
from tests.integration.test_saving import missing

LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
SYSTEM = Path("/lib/x86_64-linux-gnu")
LOADER = Path("/lib64/ld-linux-x86-64.so.2")

Podman = Callable[..., str]


def lacking() -> str:
    for name in ("podman", "runc"):
        if shutil.which(name) is None:
            return f"there is no {name}"
    return missing() or ("" if LOADER.exists() else "the container's files are those of x86-64")


pytestmark = [
    pytest.mark.long, pytest.mark.skipif(bool(lacking()), reason=lacking() or "it can be done")]


def image(folder: Path) -> Path:
    """An archive of a root file system with the program and the libraries that it needs."""
    program = folder / "steps"
    subprocess.run(["gcc", Path(__file__).with_name("steps.c"), "-o", program,
                    SIMULATOR / "libcuda.so.1"], check=True)
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as tar:
        files = {program: "bin/steps", LOADER: str(LOADER)[1:],
                 BUILD / "libnvshare.so": "lib/x86_64-linux-gnu/libnvshare.so",
                 SIMULATOR / "libcuda.so.1": "lib/x86_64-linux-gnu/libcuda.so.1"}
        files |= {SYSTEM / name: f"lib/x86_64-linux-gnu/{name}" for name in LIBRARIES}
        for path, name in files.items():
            tar.add(path.resolve(), name)
        for name in ("proc", "sys", "dev", "etc", "run", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return archive


@pytest.fixture
def site(own_site: Site) -> Site:
    return own_site


@pytest.fixture
def podman(tmp_path: Path, short_path: Path) -> Iterator[Podman]:
    tools = tmp_path / "tools"
    tools.mkdir()
    if found := os.environ.get("NVSHARE_CRIU"):
        (tools / "criu").symlink_to(found)
    command = ["podman", "--root", str(tmp_path / "store"), "--runroot", str(short_path / "run"),
               "--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}

    def run(*words: object) -> str:
        done = subprocess.run([*command, *map(str, words)], env=environment, text=True,
                              capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("import", image(tmp_path), "localhost/steps:1")
    yield run
    subprocess.run([*command, "rm", "--force", "--time", "0", "one"], env=environment, check=False)


def test_parked_program_of_an_exported_container_continues_after_its_import(
    site: Site, start: Start, podman: Podman, tmp_path: Path
) -> None:
    work, archive = tmp_path / "work", tmp_path / "one.tar.gz"
    work.mkdir()
    control = start()

    def step(number: int) -> str:
        (work / f"step-{number}").touch()
        answer = work / f"out-{number}"
        wait_until(answer.exists)
        return answer.read_text()

    def clients(control: Control) -> list[str]:
        return [one.state for one in control.snapshot().clients]

    # The simulated driver knows processes by their numbers in the container, so it has the host's.
    podman("run", "--detach", "--name", "one", "--pid", "host", "--network", "none",
           "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000",
           "--security-opt", "seccomp=unconfined",
           "--volume", f"{site.environment['NVSHARE_SIM_DIR']}:/cards",
           "--volume", f"{work}:/work", "--volume", f"{site.socket.parent}:/run/nvshare",
           "--env", "NVSHARE_SIM_DIR=/cards", "--env", "LD_PRELOAD=libnvshare.so",
           "--env", "NVSHARE_SOCKET=/run/nvshare/sock", "localhost/steps:1", "/bin/steps", "/work")
    assert step(0) == "0"
    control.park(control.snapshot().clients[0].id)
    assert clients(control) == ["parked"]
    kill(site.started[-1])
    time.sleep(0.5)                     # the library notices that its connection has ended
    podman("container", "checkpoint", "--export", archive, "--file-locks", "--tcp-established",
           "one")
    podman("rm", "--force", "one")
    control = start()
    assert clients(control) == []
    podman("container", "restore", "--import", archive, "--file-locks", "--tcp-established")
    wait_until(lambda: clients(control) == ["parked"])
    assert step(1) == "0"
