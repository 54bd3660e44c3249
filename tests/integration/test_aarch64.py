# SPDX-License-Identifier: Apache-2.0
"""Programs built for aarch64 take turns. An emulator runs the programs, the library and the
simulated driver; the daemon runs on the processor of the machine itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Site
from tests.integration.fakehook import PATIENCE

ARM = "aarch64-linux-gnu"

pytestmark = pytest.mark.skipif(
    shutil.which(f"{ARM}-gcc") is None or shutil.which("qemu-aarch64") is None,
    reason="no cross compiler and emulator for aarch64 (gcc-aarch64-linux-gnu, qemu-user)")


@pytest.fixture(scope="module")
def build() -> Path:
    make = ["make", "-s", "-j2", "-C", str(ROOT / "libhook"), f"CC={ARM}-gcc"]
    subprocess.run([*make, "BUILD=build-aarch64", "hook", "simulator", "workload"], check=True)
    return ROOT / "libhook" / "build-aarch64"


def emulated(site: Site, build: Path, *options: str) -> subprocess.Popen[str]:
    """A program with the library. Its simulated card has the UUID of the daemon's card, but another
    file, because the locks in that file have different layouts on the two architectures."""
    card = site.folder / "aarch64"
    card.mkdir(exist_ok=True)
    variables = {
        **{k: v for k, v in site.environment.items() if k.startswith("NVSHARE_")},
        "LD_PRELOAD": str(build / "libnvshare.so"),
        "LD_LIBRARY_PATH": str(build / "simulator"),
        "NVSHARE_SIM_DIR": str(card),
        "NVSHARE_SOCKET": str(site.socket),
    }
    settings = [part for pair in variables.items() for part in ("-E", "=".join(pair))]
    process = subprocess.Popen(
        ["qemu-aarch64", "-L", f"/usr/{ARM}", *settings, str(build / "nvshare-workload"), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    site.started.append(process)
    return process


# builds all programs for aarch64 and emulates that processor
@pytest.mark.long
def test_two_programs_that_do_not_fit_take_turns_on_aarch64(site: Site, build: Path) -> None:
    trace = str(site.folder / "trace")
    site.start("--tq", "200ms", "--capacity", "48MiB", "--trace", trace)
    options = ("--memory", "32MiB", "--chunk", "4MiB", "--steps", "6", "--kernel-us", "20000")
    programs = [emulated(site, build, *options, "--seed", seed) for seed in ("1", "2")]
    for program in programs:
        output, _ = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0, output
        assert "right" in output
        assert "unshared" not in output
    orders = [line.get("order") for line in site.trace()]
    assert {"run", "stop", "evict", "load"} <= set(orders)
