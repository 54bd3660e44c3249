# SPDX-License-Identifier: Apache-2.0
"""Commands of README.md and docs/ work as printed, on simulated cards with a bus of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import no_bus
from nvshared.control import Daemon as Control
from nvshared.settings.config import load
from tests import pages
from tests.bus.service import private_bus
from tests.integration.conftest import BUILD, ROOT, Site
from tests.integration.programs import PRELUDE

PAGE_PID = "4711"
# torchrun starts two such programs, one for each GPU. This test checks only that the command starts
# them with the library; test_gangs.py checks that their turns are simultaneous.
TRAIN = PRELUDE + '''
address = c_uint64()
call("cuMemAlloc_v2", byref(address), 8 * MIB)
put(address.value, b"x" * MIB)
assert get(address.value, MIB) == b"x" * MIB
assert "libnvshare.so" in open("/proc/self/maps").read()
print("trained")
'''
TORCHRUN = '''#!/bin/sh
[ "$1" = --nproc-per-node=2 ] && python "$2" && python "$2"
'''
# Run in place of a Jupyter kernel: prints LD_PRELOAD and the arguments.
LAUNCHER = 'import os, sys; print(os.environ["LD_PRELOAD"], sys.argv[1:])'

pytestmark = pytest.mark.skipif(bool(no_bus()), reason=no_bus())


@dataclass
class Machine:
    """A user's folder with train.py, and the environment of the commands."""

    folder: Path
    environment: dict[str, str]
    pid: int                            # pid of a program that shares the GPU

    def run(self, line: str) -> str:
        """The output of a command, which must succeed. Replaces PAGE_PID by the program's pid."""
        command = re.sub(rf"(?<![:\w]){PAGE_PID}\b", str(self.pid), line.partition(" #")[0])
        done = subprocess.run(
            ["sh", "-ec", command], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def machine(site: Site) -> Iterator[Machine]:
    """A daemon on a private bus in place of the system's bus, and a running program."""
    tools = site.folder / "tools"
    tools.mkdir()
    for name, module in (("nvsharectl", "nvshared.cli.main"), ("nvshared", "nvshared.__main__")):
        (tools / name).write_text(
            f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.argv[0] = \'{name}\'; '
            f'from {module} import main; sys.exit(main())" "$@"\n')
    (tools / "torchrun").write_text(TORCHRUN)
    for name in ("python", "python3"):
        (tools / name).symlink_to(sys.executable)
    for path in tools.iterdir():
        if not path.is_symlink():
            path.chmod(0o755)
    (site.folder / "train.py").write_text(TRAIN)
    (site.folder / "ipykernel_launcher.py").write_text(LAUNCHER)
    with private_bus() as bus:
        system = {"DBUS_SYSTEM_BUS_ADDRESS": bus.address}
        site.start("--bus", "system", "--state-dir", str(site.folder / "state"), **system)
        environment = {
            **site.environment, **system, "NVSHARE_SOCKET": str(site.socket),
            "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        }
        program = subprocess.Popen(
            [str(BUILD / "nvshare-workload"), "--memory", "8MiB", "--until-told", "--rounds", "1"],
            env={**environment, "LD_PRELOAD": str(BUILD / "libnvshare.so")}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        site.started.append(program)
        assert program.stdout is not None
        assert "8.0 MiB" in program.stdout.readline()
        yield Machine(site.folder, environment, program.pid)


def test_commands_of_users_in_readme_succeed(machine: Machine) -> None:
    said = ""
    for line in pages.block("README.md", "nvsharectl run").splitlines():
        if not line.startswith("nvsharectl top"):       # tests/bus/test_top.py
            said += machine.run(line)
    assert said.count("trained") == 2
    assert said.count("nvshare-workload") >= 1


def test_commands_of_administrators_in_readme_succeed(machine: Machine) -> None:
    *lines, last = pages.block("README.md", "nvsharectl set-tq").splitlines()
    for line in lines:
        machine.run(line)
    # The last command changes the whole machine: test_preload.py runs it in its own system.
    assert last.startswith("nvsharectl preload enable ")
    client, = json.loads(machine.run("nvsharectl --json"))["clients"]
    assert client["suspended"]


@pytest.mark.parametrize("lines", [
    pages.block("docs/engines.md", "nvsharectl run --name trainer"),
    pages.block("docs/engines.md", "export PYTHONPATH"),
])
def test_commands_in_engines_md_start_programs_that_can_release_a_turn(
    machine: Machine, lines: str
) -> None:
    for name in ("train", "rollout"):
        saver = "from torch_memory_saver import torch_memory_saver as saver\nsaver.pause()\n"
        released = "import nvshared.program\nassert nvshared.program.release()\n"
        (machine.folder / f"{name}.py").write_text(
            TRAIN + released + (saver if "adapters" in lines else ""))
    here = lines.replace("/usr/lib/nvshared", str(ROOT))
    said = machine.run("; ".join(line.partition(" #")[0] for line in here.splitlines()))
    assert said.count("trained") == lines.count("nvsharectl run")


def example() -> tuple[str, str]:
    """The two commands by which docs/engines.md runs its example, with this checkout's files."""
    lines = pages.block("docs/engines.md", "cp -r").replace("/usr/lib/nvshared", str(ROOT))
    copy, run = lines.replace("/usr/share/doc/nvshared", str(ROOT / "packaging")).splitlines()
    return copy, run


def test_example_in_engines_md_takes_turns_and_computes_the_same_as_alone(machine: Machine) -> None:
    copy, run = example()
    machine.run(copy)
    said = machine.run(f"{run} --rounds 2")
    for role in ("trainer", "rollout"):
        assert re.search(rf"^{role}: all \d{{3}} MiB are as computed alone$", said, re.MULTILINE)
        assert len(re.findall(rf"^round [12], {role}: hand-over in ", said, re.MULTILINE)) == 2
    gpu, *_ = json.loads(machine.run("nvsharectl --json"))["gpus"]
    assert gpu["turns"] >= 4            # the engines' memory exceeds the card's


@pytest.mark.parametrize(("command", "reason"), [
    ("nvsharectl run -- python3 -IS", "Python finds no module nvshared.program"),
    ("python3", "start it with nvsharectl run"),
    ("NVSHARE_SIM_GPUS=0 nvsharectl run -- python3", "there is no GPU"),
])
def test_example_in_engines_md_without_a_needed_part_ends_with_its_name(
    machine: Machine, command: str, reason: str
) -> None:
    copy, run = example()
    machine.run(copy)
    done = subprocess.run(
        ["sh", "-c", run.replace("nvsharectl run -- python3", command)], cwd=machine.folder,
        env=machine.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not shutil.which("busctl"), reason="there is no busctl on this machine")
def test_busctl_command_in_readme_sets_the_quantum(machine: Machine) -> None:
    machine.run(pages.block("README.md", "busctl call"))
    assert {gpu["tq"] for gpu in json.loads(machine.run("nvsharectl --json"))["gpus"]} == {30}


def test_commands_for_a_lab_server_in_docs_succeed(machine: Machine) -> None:
    blocks = [
        pages.block("docs/lab-server.md", "nvsharectl clients"),
        pages.block("docs/lab-server.md", "nvsharectl tenants"),
        pages.block("docs/idle-notebooks.md", "nvsharectl clients"),
        pages.block("docs/idle-notebooks.md", "nvsharectl priority user:alice background"),
        pages.block("docs/engines.md", "nvsharectl limit 4711 --compute 70"),
        pages.block("docs/policies.md", "nvsharectl policy deadline"),
    ]
    for line in "\n".join(blocks).splitlines():
        if not line.startswith("nvsharectl top"):       # tests/bus/test_top.py
            machine.run(line)


# Commands within sentences of pages that no test here runs, each with the reason.
ELSEWHERE = {
    "nvsharectl run": "blocks of pages run it, with programs that end",
    "nvsharectl preload": "changes the whole machine; test_preload.py has one of its own",
    "nvsharectl park": "test_moving.py", "nvsharectl move": "test_moving.py",
    "nvsharectl drain --gpu": "test_moving.py",
    "nvsharectl save": "test_saving.py", "nvsharectl restore": "test_saving.py",
}


def test_commands_printed_inline_in_docs_succeed(machine: Machine) -> None:
    run = [
        command.replace("job:ID", "job:4711")
        for _, command in pages.inline() if not command.startswith(tuple(ELSEWHERE))
    ]
    assert len(run) >= 8
    with Control(machine.environment["DBUS_SYSTEM_BUS_ADDRESS"]) as control:    # as nvshare-kubelet
        control.set_pods([("8a1b2c3d-1111-2222-3333-444455556666", "lab", "train", {})])
    for command in run:
        if command.startswith("busctl") and not shutil.which("busctl"):
            continue
        machine.run(command)


def test_jupyter_kernel_with_another_ld_preload_also_loads_libnvshare(machine: Machine) -> None:
    argv = json.loads("{" + pages.block("docs/lab-server.md", '"argv"') + "}")["argv"]
    machine.environment["LD_PRELOAD"] = "libm.so.6"     # kernel.json may set it in "env"
    done = subprocess.run(
        argv, cwd=machine.folder, env=machine.environment, capture_output=True, text=True,
        check=True)
    assert "libm.so.6" in done.stdout
    assert "libnvshare.so" in done.stdout
    assert "{connection_file}" in done.stdout


def test_settings_in_docs_are_accepted(tmp_path: Path) -> None:
    for settings in (
        pages.block("docs/lab-server.md", "[tenant group:students]"),
        pages.block("docs/monitoring.md", "[nvshared]"),
        pages.block("docs/idle-notebooks.md", "[tenant unit:jupyter-*.service]"),
        pages.block("docs/idle-notebooks.md", "[tenant unit:batch-*.service]"),
    ):
        (tmp_path / "page.conf").write_text(settings)
        load(tmp_path / "page.conf", {}, {})


def offline() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", "/dev/null/x",
         "sdnotify"], capture_output=True, text=True, check=False)
    return "no package index answers" if "No matching distribution" in done.stderr else ""


@pytest.mark.long
def test_commands_without_root_in_the_install_page_share_a_simulated_gpu(
    site: Site, tmp_path: Path
) -> None:
    if why := offline():
        pytest.skip(why)
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    home.mkdir()
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(
        ".git", ".venv", "build", "*.egg-info", "__pycache__", ".hypothesis"))
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    venv, enter, install, daemon, program, status = (
        line.partition(" #")[0].strip().replace("/tmp/nvshare.sock", str(site.folder / "sock"))
        for line in pages.block("docs/install.md", "python3 -m venv").splitlines())
    simulated = pages.block("docs/install.md", "export LD_LIBRARY_PATH")
    with private_bus() as bus:
        environment["DBUS_SESSION_BUS_ADDRESS"] = bus.address

        def sh(*lines: str) -> str:
            done = subprocess.run(
                ["sh", "-ec", "\n".join(lines)], cwd=checkout, env=environment,
                capture_output=True, text=True, check=False)
            assert done.returncode == 0, (lines, done.stdout, done.stderr)
            return done.stdout

        sh(venv, enter, install)
        with (site.folder / "log").open("w") as log:
            site.started.append(subprocess.Popen(
                ["sh", "-ec", "\n".join([enter, simulated, f"exec {daemon}"])], cwd=checkout,
                env=environment, stderr=log, text=True))
        assert program.endswith(" python train.py")
        workload = str(next(home.glob("nvshare/lib/*/site-packages/nvshared/lib/nvshare-workload")))
        command = program.replace("python train.py", f"{workload} --memory 8MiB --steps 2")
        assert "right" in sh(enter, simulated, command)
        assert "Simulated GPU" in sh(enter, simulated, status)
