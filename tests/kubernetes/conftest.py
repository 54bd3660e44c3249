# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Kubernetes tests: a node with shared GPUs, made once for all tests.

`make test-kubernetes` writes the tests, their outcomes and Kubernetes' versions to bench/results.
"""

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nvshared import __version__
from tests.kubernetes import node, programs
from tests.kubernetes.cluster import Cluster
from tests.system import card
from tests.system.conftest import built, install, leave_out
from tests.system.packages import Packages
from tests.system.tree import KUBELETS, NoTree

__all__ = ["built"]

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "packaging" / "kubernetes"
MAKE_IMAGE = MANIFESTS / "image.py"
VERSIONS = pytest.StashKey[dict[str, str]]()
TESTS = pytest.StashKey[dict[str, dict[str, object]]]()

# Files of the image of all containers; a pod's sandbox runs `sleep` from it.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIBRARIES = "lib/x86_64-linux-gnu"
FILES = {
    "bin/sh": "bin/dash", "bin/sleep": "bin/sleep",
    "lib64/ld-linux-x86-64.so.2": f"{LIBRARIES}/ld-linux-x86-64.so.2",
    f"{LIBRARIES}/libc.so.6": f"{LIBRARIES}/libc.so.6",
    "bin/nvshare-workload": str(ROOT / "libhook/build/nvshare-workload"),
}


@contextmanager
def prepared(config: pytest.Config, folder: Path) -> Iterator[Cluster]:
    """A Kubernetes node with a simulated card, without nvshared."""
    try:
        tree = node.tree()
    except NoTree as error:
        leave_out(config, str(error))
    root, image = folder / "image", folder / "it.tar"
    for path, source in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / source, root / path)
    subprocess.run(
        [sys.executable, MAKE_IMAGE, node.IMAGE, image, f"amd64={root}", "/bin/sleep", "infinity"],
        check=True)
    if "helm" not in programs.find():
        programs.fetch()                # the node has the programs that are there at its start
    found = programs.find()
    with Cluster(tree, found, programs.runtime()) as made:
        config.stash[VERSIONS] = {name: programs.version(path) for name, path in found.items()} | {
            "containerd": made.output("containerd", "--version").split()[-1],
            "runc": made.output("runc", "--version").split()[2],
            "linux": platform.release(),
            "nvshared": subprocess.run(
                ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT,
                capture_output=True, text=True, check=False).stdout.strip() or __version__,
        }
        made.lay_ground()
        made.import_image(image)
        made.start_kubernetes()
        card.plug_in(made)
        yield made


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, built: Packages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One node with a simulated card, whose administrator has followed docs/kubernetes.md."""
    with prepared(request.config, tmp_path_factory.mktemp("images")) as made:
        install(made, built)
        made.run("apt-get", "install", "-y", *KUBELETS)
        made.run("systemctl", "enable", "--now", "nvshared", "nvshare-kubelet")
        made.until(lambda: made.allocatable() == 10, "ten shares are offered")
        yield made


@pytest.fixture(scope="session")
def images(built: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    made = subprocess.run(
        ["make", "--no-print-directory", "--file=packaging/packaging.mk", "image",
         f"DIST={folder}", f"PYTHON={sys.executable}",
         f"ARCHITECTURES={ARCHITECTURES[platform.machine()]}"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def copy_manifests(cluster: Cluster, there: str) -> str:
    """Copies packaging/kubernetes to the folder `there` of the node."""
    for path in sorted(MANIFESTS.rglob("*")):
        place = f"{there}/{path.relative_to(MANIFESTS)}"
        if path.is_symlink():           # links in the chart's folder to kustomize's files
            cluster.run("mkdir", "-p", str(Path(place).parent))
            cluster.run("ln", "-sfn", str(path.readlink()), place)
        elif path.is_file():
            cluster.copy(path, place)
    return there


@pytest.fixture(scope="session")
def imported(cluster: Cluster, images: Path) -> None:
    for path in sorted(images.glob("*.tar")):
        cluster.import_image(path)


@pytest.fixture(scope="session")
def helm() -> None:
    if "helm" not in programs.find() and (why := programs.fetch()):
        pytest.skip(f"there is no helm: {why}")


@pytest.fixture(scope="session")
def manifests(cluster: Cluster) -> str:
    return copy_manifests(cluster, "/root/manifests")


@pytest.fixture(scope="module")
def cdi(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[None]:
    """Enables CDI devices in the container runtime for the tests that use this fixture."""
    version = cluster.output("containerd", "--version")
    number = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    if number is None or tuple(map(int, number.groups())) < (1, 7, 2):
        leave_out(request.config, f"{version} knows no CDI devices; another one may lie in "
                                  "the folder that has Kubernetes' programs")
    cluster.heed_cdi_devices(support=True)
    yield
    cluster.heed_cdi_devices(support=False)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Deletes the pods and deployments of each test at its end."""
    yield
    if "cluster" not in request.fixturenames:
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.kubectl(
        "delete", "deployment,pod", "--all", "--grace-period=0", "--force", "--ignore-not-found")
    cluster.until(lambda: cluster.programs() == 0, "no program is left")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Records the outcome and the duration of each test."""
    report: pytest.TestReport = (yield).get_result()    # type: ignore[attr-defined]
    if report.when == "call" or not report.passed:
        name = item.nodeid.removeprefix("tests/kubernetes/")
        item.config.stash.setdefault(TESTS, {})[name] = {
            "outcome": report.outcome, "seconds": round(report.duration, 1),
            **dict(report.user_properties),
        }


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the recorded outcomes to bench/results with --require kubernetes."""
    config = session.config
    if VERSIONS in config.stash and config.getoption("--require") == "kubernetes":
        now, versions = datetime.now(UTC), config.stash[VERSIONS]
        name = f"kubernetes-{versions['kubelet'].lstrip('v')}-{now:%Y%m%dT%H%M%S}.json"
        (ROOT / "bench" / "results" / name).write_text(json.dumps({
            "when": now.isoformat(timespec="seconds"), "versions": versions,
            "card": "simulated", "tests": config.stash.get(TESTS, {}),
        }, indent=2) + "\n")
