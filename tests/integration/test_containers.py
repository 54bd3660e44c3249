# SPDX-License-Identifier: Apache-2.0
"""Containers of Podman on simulated cards, with nothing but --device nvshare.com/gpu."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from conftest import no_bus
from nvshared.containers import cdi
from nvshared.control import Daemon as Control
from nvshared.control.snapshot import ClientSnapshot
from nvshared.units import MIB
from tests import pages
from tests.integration.conftest import BUILD, ROOT, SIMULATOR, Site, wait_until
from tests.integration.podman import WORK, Machine, root_file_system, why_not

pytestmark = pytest.mark.skipif(bool(why_not() or no_bus()), reason=why_not() or no_bus())

COMPOSE = ROOT / "packaging" / "examples" / "containers" / "compose.yaml"
FIRST = 100_000                         # user id of the user namespace's root
WORKLOAD = f"{WORK}/nvshare-workload"
LARGE = (WORKLOAD, "--memory", "140MiB", "--chunk", "20MiB", "--kernel-us", "5000", "--steps", "6")
SMALL = (WORKLOAD, "--memory", "8MiB", "--chunk", "8MiB", "--until-told", "--rounds", "1")


@pytest.fixture
def machine(small_site: Site, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(small_site, tmp_path)
    made.nvidias(card0="first", all="every", **{"GPU-0a": "first", "0:1": "a MIG device"})
    yield made
    made.close()


@pytest.fixture
def root() -> Iterator[Path]:
    """A root file system in a folder that all users may enter."""
    with TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield root_file_system(Path(name) / "image")


def test_two_containers_that_do_not_fit_together_take_turns_and_compute_right(
    machine: Machine, root: Path
) -> None:
    machine.site.start("--tq", "200ms", "--trace", str(machine.site.folder / "trace"))
    said = machine.nvsharectl("containers", "refresh")
    assert "--device nvshare.com/gpu=all\n" in said
    assert "0:1" not in said
    started = [machine.podman(root=root, command=(*LARGE, "--seed", seed)) for seed in (1, 2)]
    for one in started:
        out, _ = one.communicate()
        assert one.returncode == 0, out
        assert "right: all 7 chunks" in out
    assert len({line["client"] for line in machine.site.lines(report="turn-ended")}) == 2


def test_container_on_the_simulated_gpu_of_a_trial_computes_right(
    machine: Machine, root: Path
) -> None:
    state = Path(machine.site.environment["NVSHARE_SIM_DIR"])
    machine.site.start()
    text = cdi.simulated(1, {"LD_LIBRARY_PATH": str(SIMULATOR), "NVSHARE_SIM_DIR": str(state)},
                         {BUILD: False, state: True})
    machine.inside("sh", "-c", 'rm /run/cdi/*; printf %s "$1" >/run/cdi/nvshare-trial.json', "sh",
                   text)
    assert "gpu=0\n" in machine.nvsharectl("containers", "refresh")
    _, _, _, _, device, _, _, *options = pages.block("docs/trial.md", "docker run").split()
    options[-1] = "1"                   # second
    process = machine.podman(
        root=root, command=(BUILD / "nvshare-workload", *options), device=device)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert "hold what the CPU computes" in out


def named(control: Control, name: str) -> ClientSnapshot | None:
    return next((one for one in control.snapshot().clients if one.name == name), None)


def wait_for(control: Control, name: str, process: subprocess.Popen[str]) -> ClientSnapshot:
    """The client that called itself so, once it is there."""
    wait_until(lambda: named(control, name) is not None or process.poll() is not None)
    found = named(control, name)
    assert found is not None, process.communicate()[0]
    return found


@pytest.mark.parametrize("isolation", [
    ("--user", "1000:1000", "--read-only", "--ipc", "private", "--cap-drop", "all"),
    ("--pid", "host", "-e", "LD_PRELOAD=/usr/lib/libc.so.6.none"),
    ("--uidmap", f"0:{FIRST}:65536", "--gidmap", f"0:{FIRST}:65536"),
], ids=["own user and read-only", "host's processes and own LD_PRELOAD", "user namespace"])
def test_isolated_container_shares_the_gpu_on_the_terms_of_its_environment(
    machine: Machine, root: Path, bus: str, isolation: tuple[str, ...]
) -> None:
    namespaced = "--uidmap" in isolation
    if namespaced:                      # the namespace's root must enter and change the image
        subprocess.run(["chown", "-R", f"{FIRST}:{FIRST}", root], check=True)
    machine.site.start("--bus", bus)
    machine.nvsharectl("containers", "refresh")
    terms = {"NVSHARE_NAME": "mine", "NVSHARE_MEMORY_LIMIT": "64MiB", "NVSHARE_COMPUTE_LIMIT": "50",
             "NVSHARE_WEIGHT": "0"}
    variables = [part for name, value in terms.items() for part in ("-e", f"{name}={value}")]
    process = machine.podman(
        *isolation, *variables, root=root, command=SMALL, device="nvshare.com/gpu=0")
    with Control(bus) as control:
        client = wait_for(control, "mine", process)
    assert client.tenant.startswith("container:")
    assert client.uid == {"--user": 1000, "--uidmap": FIRST}.get(isolation[0], 0)
    assert tuple(client.terms.values())[:3] == (64 * MIB, 50, 100)
    out, _ = process.communicate("")
    assert process.returncode == 0, out
    assert "NVSHARE_WEIGHT=0 is invalid: give a whole number from 1 to 100" in out


@pytest.mark.long
def test_container_gets_only_read_only_mounts_and_the_line_that_preloads(
    machine: Machine, root: Path
) -> None:
    machine.nvsharectl("containers", "refresh")
    (root / "etc" / "ld.so.preload").write_text("/usr/lib/of-the-image.so\n")
    script = "cat /etc/ld.so.preload; env; for it in /run/nvshare /usr/lib/nvshare /etc; do " \
        "(: >$it/ld.so.preload) && echo wrote $it; done; id"
    process = machine.podman(root=root, command=("sh", "-c", script), device="nvshare.com/gpu=0")
    out, _ = process.communicate()
    assert out.startswith("/usr/lib/nvshare/libnvshare.so\n")
    assert "CARD=first\n" in out
    assert "uid=0" in out
    assert "wrote" not in out


@pytest.mark.long
def test_running_container_outlives_an_upgrade_and_a_removed_specification_is_refused_by_name(
    machine: Machine, root: Path, bus: str
) -> None:
    machine.site.start("--bus", bus)
    machine.nvsharectl("containers", "refresh")
    library = "/var/lib/nvshare-containers/library/libnvshare.so"
    # An earlier version: the same with a few bytes behind it.
    machine.inside("sh", "-c", f"cp {library} /run/old; echo old >>/run/old; mv /run/old {library}")
    old = machine.podman("-e", "NVSHARE_NAME=old", root=root, command=SMALL)
    with Control(bus) as control:
        client = wait_for(control, "old", old)
        machine.nvsharectl("containers", "refresh")
        assert "libnvshare.so (deleted)" in Path(f"/proc/{client.pid}/maps").read_text()
        new = machine.podman("-e", "NVSHARE_NAME=new", root=root, command=SMALL)
        wait_for(control, "new", new)
    for one in (old, new):
        out, _ = one.communicate("")
        assert one.returncode == 0, out
    machine.nvidias(card0="first")      # a card was removed: its device is, too
    assert "is not current" in machine.nvsharectl("containers", check=False)
    assert "gpu=all" not in machine.nvsharectl("containers", "refresh")
    machine.inside("rm", "/run/cdi/nvidia.yaml")
    said = machine.nvsharectl("containers", "refresh")
    assert "No CDI specification of nvidia.com/gpu is in /etc/cdi or /var/run/cdi." in said
    assert "nvidia-ctk cdi generate" in said
    out, _ = machine.podman(root=root, command=SMALL).communicate()
    assert "nvshare.com/gpu=all" in out


@pytest.mark.long
def test_containers_are_limited_and_shown_by_name_and_those_that_do_not_share_are_named(
    machine: Machine, root: Path, bus: str
) -> None:
    machine.site.start("--bus", bus)
    machine.nvsharectl("containers", "refresh")
    started = [machine.podman("-e", f"NVSHARE_NAME={name}", root=root, command=SMALL, name=name)
               for name in ("ollama", "comfyui")]
    with Control(bus) as control:
        tenants = [wait_for(control, name, process).tenant
                   for name, process in zip(("ollama", "comfyui"), started, strict=True)]
        for line in pages.block("docs/containers.md", "nvsharectl limit container").splitlines():
            machine.nvsharectl(*line.split()[1:], bus=bus)
        assert control.tenant(tenants[0]).value("memory-limit") == 8 << 30
        assert control.tenant(tenants[1]).value("compute-limit") == 50
    short = f"container:ollama={tenants[0].partition(':')[2][:12]}"
    assert short in machine.nvsharectl("clients", bus=bus)
    assert short in machine.nvsharectl("tenants", bus=bus)
    unshared = machine.podman(
        root=root, command=SMALL, name="selfish", device="nvidia.com/gpu=all")
    words = "was started without nvshare's device"
    wait_until(lambda: words in machine.nvsharectl("doctor", "--json", bus=bus, check=False)
               or unshared.poll() is not None)
    said = json.loads(machine.nvsharectl("doctor", "--json", bus=bus, check=False))["findings"]
    (found,) = [one for one in said if words in one["words"]]
    assert "in the container selfish (container:" in found["words"]
    assert "start it with --device nvshare.com/gpu=all" in found["advice"]
    for one in (*started, unshared):
        out, _ = one.communicate("")
        assert one.returncode == 0, out


def test_limit_for_a_containers_name_holds_for_the_next_container_of_that_name(
    machine: Machine, root: Path, bus: str
) -> None:
    variables = {"PATH": f"{machine.commands()}:{os.environ['PATH']}"}
    with (machine.site.folder / "nvshared.conf").open("a") as file:
        file.write("[tenant container:trainer]\ncompute-limit = 50\n")
    daemon = machine.site.start("--bus", bus, **variables)
    machine.nvsharectl("containers", "refresh")
    machine.nvsharectl("limit", "container:trainer", "--memory", "64MiB", bus=bus)
    for seen in ("first", "second"):
        process = machine.podman(
            "-e", f"NVSHARE_NAME={seen}", root=root, command=SMALL, name="trainer")
        with Control(bus) as control:
            client = wait_for(control, seen, process)
            assert client.tenant == "container:trainer"
            tenant = control.tenant("container:trainer")
            assert tenant.programs == 1
            assert tenant.value("memory-limit") == 64 * MIB
            assert tenant.value("compute-limit") == 50
        said = json.loads(machine.nvsharectl("clients", "--json", bus=bus))["clients"]
        assert [one["tenant"] for one in said] == ["container:trainer"]
        if seen == "second":            # a new daemon knows the name before it decides
            daemon.kill()
            daemon.wait()
            machine.site.start("--bus", bus, **variables)
            with Control(bus) as control:
                wait_until(lambda: named(control, "second") is not None)
                assert control.tenant("container:trainer").programs == 1
        out, _ = process.communicate("")
        assert process.returncode == 0, out


@pytest.mark.long
def test_services_of_the_example_compose_file_share_the_gpu_on_their_terms(
    machine: Machine, root: Path, bus: str
) -> None:
    machine.site.start("--bus", bus, PATH=f"{machine.commands()}:{os.environ['PATH']}")
    machine.nvsharectl("containers", "refresh")
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    started = {}
    for service in services.values():
        (device,) = service["devices"]
        variables = [part for pair in service.get("environment", {}).items()
                     for part in ("-e", "=".join(pair))]
        name = service["container_name"]
        started[f"container:{name}"] = machine.podman(
            *variables, root=root, command=SMALL, name=name, device=device)
    with Control(bus) as control:
        wait_until(lambda: {one.tenant for one in control.snapshot().clients} >= started.keys()
                   or any(one.poll() is not None for one in started.values()))
        found = {one.tenant: one.terms for one in control.snapshot().clients}
    assert {name: (terms["memory-limit"] >> 30, terms["compute-limit"], terms["weight"])
            for name, terms in found.items()} == {
        "container:ollama": (0, 100, 100), "container:comfyui": (16, 100, 50),
        "container:notebook": (0, 50, 100)}
    for process in started.values():
        out, _ = process.communicate("")
        assert process.returncode == 0, out
        assert "invalid" not in out
