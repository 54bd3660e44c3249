# SPDX-License-Identifier: Apache-2.0
"""The wheel and the packages contain all files, and the installed library is found."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILED = {
    "nvshared/lib/libnvshare.so", "nvshared/lib/nvshare-workload",
    "nvshared/lib/simulator/libcuda.so.1", "nvshared/lib/simulator/libnvidia-ml.so.1",
}
NOT_SOURCE = shutil.ignore_patterns("build*", "dist", ".*", "__pycache__", "*.egg-info")


def setuptools_is_too_old() -> bool:
    try:
        found = version("setuptools")
    except PackageNotFoundError:
        return True
    return tuple(map(int, found.split(".")[:2])) < (70, 1)


def build(kind: str, source: Path, folder: Path, **environment: str) -> Path:
    """Builds an "sdist" or a "wheel" of a source folder into `folder` and returns its path."""
    script = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=source, check=True, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, **environment})
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, built from the sources alone."""
    if setuptools_is_too_old():
        pytest.skip("setuptools here is older than 70.1, which pyproject.toml asks for")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "source", ignore=NOT_SOURCE)
    with tarfile.open(build("sdist", folder / "source", folder)) as sdist:
        sdist.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    # make compiles only files that are newer than the objects of the checkout.
    shutil.copytree(ROOT / "libhook" / "build", folder / "libhook")
    (folder / "setup.cfg").write_text(f"[build]\nbuild_temp = {folder}\n")
    return build("wheel", source, folder, CFLAGS="-O0", DIST_EXTRA_CONFIG=f"{folder}/setup.cfg")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/usr/share of a system with the packages, as far as pages link to it."""
    share = tmp_path_factory.mktemp("share")
    subprocess.run(["make", "-s", "-f", "packaging/install.mk", f"BUILT={share}", f"{share}/doc",
                    f"PYTHON={sys.executable}"], cwd=ROOT, check=True)
    (share / "doc").rename(share / "built")
    for folder in re.findall(r"^build/packaging/doc/(.+)$", (
            ROOT / "packaging/debian/nvshared.docs").read_text(), re.MULTILINE):
        (share / "doc/nvshared").mkdir(parents=True, exist_ok=True)
        (share / "built" / folder).rename(share / "doc/nvshared" / folder)
    shutil.copytree(ROOT / "packaging/examples", share / "doc/nvshared/examples")
    for folder in ("grafana", "prometheus"):
        shutil.copytree(ROOT / "packaging" / folder, share / "nvshared" / folder)
    return share / "doc/nvshared"


def test_installed_pages_link_only_to_installed_files(installed: Path) -> None:
    pages = [*installed.glob("*.md"), *installed.glob("docs/**/*.md")]
    links = [(page, link) for page in pages
             for link in re.findall(r"\]\(([^)\s#]+)", page.read_text()) if "://" not in link]
    assert len(links) > 100
    dead = [(page.name, link) for page, link in links if not (page.parent / link).exists()]
    assert dead == []
    files = {path for path in (installed / "docs").rglob("*") if path.is_file()}
    assert files - {*pages} <= {(page.parent / link).resolve() for page, link in links}


def test_installed_pages_name_a_file_of_the_source_that_packages_lack(installed: Path) -> None:
    text = (installed / "README.md").read_text()
    assert "| contributors | contributing (`CONTRIBUTING.md`), " in text
    assert "an example (`packaging/kubernetes/examples/library.yaml`)." in (
        installed / "docs/kubernetes.md").read_text()


def test_both_packages_install_the_pages_without_dead_links() -> None:
    rpm = (ROOT / "packaging/rpm/nvshared.spec").read_text()
    (files,) = re.findall(r"^%doc (.+)$", rpm, re.MULTILINE)
    debian = (ROOT / "packaging/debian/nvshared.docs").read_text().split()
    assert {file for file in files.split() if file != "packaging/examples"} - {
        "CHANGELOG.md"} == {*debian}


def test_source_distribution_has_the_pages_that_its_front_page_links_to(source: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]+)", (source / "README.md").read_text())
    assert [link for link in links if "://" not in link and not (source / link).exists()] == []


def test_source_distribution_has_every_source_file_of_the_library(source: Path) -> None:
    def sources(root: Path) -> set[Path]:
        paths = {path.relative_to(root) for path in (root / "libhook").rglob("*")}
        return {path for path in paths if (path.suffix or path.name == "Makefile")
                and not {"tests", "__pycache__"} & {*path.parts}
                and not path.parts[1].startswith("build")}

    assert sources(source) == sources(ROOT)


def test_wheel_of_one_architecture_has_every_module_and_compiled_file(wheel: Path) -> None:
    assert re.fullmatch(r"nvshared-[\w.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "nvshared").rglob("*.py")}
    assert names >= modules | COMPILED
    strays = {name for name in names if not name.startswith("nvshared")}
    assert not strays
