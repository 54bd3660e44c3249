# SPDX-License-Identifier: Apache-2.0
"""The wheel and the packages contain all files, and the installed library is found."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from nvshared import __version__
from nvshared.cli.completion import SHELLS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPILED = {
    "nvshared/lib/libnvshare.so", "nvshared/lib/nvshare-workload",
    "nvshared/lib/simulator/libcuda.so.1", "nvshared/lib/simulator/libnvidia-ml.so.1",
}
with_make = pytest.mark.skipif(
    not shutil.which("make"), reason="there is no make on this machine")
NOT_SOURCE = shutil.ignore_patterns("build*", "dist", ".*", "__pycache__", "*.egg-info")


def setuptools_is_too_old() -> bool:
    try:
        found = version("setuptools")
    except PackageNotFoundError:
        return True
    return tuple(map(int, found.split(".")[:2])) < (70, 1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, built from the sources alone."""
    if setuptools_is_too_old():
        pytest.skip("setuptools here is older than 70.1, which pyproject.toml asks for")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT, folder / "source", ignore=NOT_SOURCE)
    make_sdist = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", make_sdist], cwd=folder / "source", check=True)
    (sdist,) = folder.glob("*.tar.gz")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
         "--wheel-dir", folder, sdist],
        env={**os.environ, "CFLAGS": "-O0"},            # a quick compilation suffices
        check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, as pip lays them out."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder,
         wheel],
        check=True)
    return folder


def test_wheel_of_one_architecture_has_every_module_and_compiled_file(wheel: Path) -> None:
    assert re.fullmatch(r"nvshared-[\w.]+-py3-none-linux_\w+\.whl", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "nvshared").rglob("*.py")}
    assert names >= modules | COMPILED
    strays = {name for name in names if not name.startswith("nvshared")}
    assert not strays


def test_installed_package_finds_the_packaged_library(installed: Path) -> None:
    script = "from nvshared import library; print(library.hook(), library.workload())"
    done = subprocess.run([sys.executable, "-c", script],
                          env={**os.environ, "PYTHONPATH": str(installed)}, cwd=installed,
                          capture_output=True, text=True, check=True)
    hook, workload = map(Path, done.stdout.split())
    assert hook == installed / "nvshared" / "lib" / "libnvshare.so"
    assert os.access(workload, os.X_OK)


def test_installed_commands_print_their_version(installed: Path) -> None:
    for command in PROJECT["project"]["scripts"]:
        done = subprocess.run([installed / "bin" / command, "--version"],
                              env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True,
                              text=True, check=True)
        assert done.stdout == f"{command} {__version__}\n"


def made(shell: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """make builds the completion that packages bring, into a folder below `folder`."""
    given = [f"{name}={value}" for name, value in variables.items()]
    (folder / "vendor").mkdir()         # argcomplete is in the test's environment
    return subprocess.run(
        ["make", "--no-print-directory", "--file=packaging/install.mk", f"BUILT={folder}", *given,
         f"{folder}/completions/{shell}"],
        cwd=ROOT, capture_output=True, text=True, check=False)


@with_make
@pytest.mark.parametrize("shell", SHELLS)
def test_packages_install_completions_for_each_shell(shell: str, tmp_path: Path) -> None:
    done = made(shell, tmp_path, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    printed = subprocess.run(
        [sys.executable, "-c", "from nvshared.cli.main import main; main()", "completion", shell],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "nvsharectl" in printed
    assert (tmp_path / "completions" / shell).read_text() == printed


@with_make
def test_install_of_an_empty_completion_fails(tmp_path: Path) -> None:
    done = made("bash", tmp_path, PYTHON="true")
    assert done.returncode != 0
    assert "The completion for bash is empty" in done.stderr
    assert not (tmp_path / "completions" / "bash").exists()


DEBIANS_TOOL = """\
#!/bin/sh
for package in nvshared libnvshare; do
    : >../${package}_2_amd64.deb
    case "$DEB_BUILD_OPTIONS" in
        *noautodbgsym*) ;;
        *) : >../$package-dbgsym_2_amd64.deb ;;
    esac
done
"""


def put_tool(path: Path, script: str) -> None:
    """A command that stands in for Debian's."""
    path.write_text(script)
    path.chmod(0o755)


@with_make
@pytest.mark.parametrize("uid", [0, 1000])
def test_missing_build_dependencies_are_installed_by_root_or_named(
        tmp_path: Path, uid: int) -> None:
    put_tool(tmp_path / "dpkg-checkbuilddeps", "#!/bin/sh\necho missing: dh-python >&2; exit 1\n")
    put_tool(tmp_path / "id", f"#!/bin/sh\necho {uid}\n")
    put_tool(tmp_path / "apt-get", "#!/bin/sh\necho apt-get $*\n")
    done = subprocess.run(
        ["make", "--no-print-directory", "--file=packaging/packaging.mk", "needs-deb"], cwd=ROOT,
        check=False, capture_output=True, text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "missing: dh-python" in done.stderr
    assert (done.returncode == 0) == (uid == 0)
    if uid:
        assert "apt-get build-dep ./packaging" in done.stderr
        assert done.stdout == ""
    else:
        assert done.stdout.splitlines()[-1].startswith("apt-get -qq build-dep -y")


@with_make
def test_package_build_leaves_only_the_two_packages(tmp_path: Path) -> None:
    """No packages with debugging symbols, and no files of earlier builds."""
    wheels, dist, tools = tmp_path / "wheels", tmp_path / "dist", tmp_path / "tools"
    for folder in (wheels, dist, tools, tmp_path / "deb"):
        folder.mkdir()
    for name in ("complete", "one.whl"):
        (wheels / name).touch()
    put_tool(tools / "dpkg-buildpackage", DEBIANS_TOOL)
    put_tool(tools / "dpkg-checkbuilddeps", "#!/bin/sh\n")
    (dist / "theirs_1_all.deb").touch()
    for old in (dist / "nvshared_1_amd64.deb", tmp_path / "deb" / "libnvshare-dbgsym_1_amd64.deb"):
        old.touch()
    subprocess.run(
        ["make", "--no-print-directory", "--file=packaging/packaging.mk", "deb",
         f"PACKAGED={tmp_path}", f"DIST={dist}"],
        cwd=ROOT, check=True, capture_output=True,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "DEB_BUILD_OPTIONS": ""})
    assert sorted(path.name for path in dist.iterdir()) == [
        "libnvshare_2_amd64.deb", "nvshared_2_amd64.deb", "theirs_1_all.deb"]


def test_dependencies_are_pinned_with_a_comment_that_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    needs = PROJECT["project"]["dependencies"]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        needs = needs + extra
    assert needs
    for need in needs:
        (line,) = [line for line in lines if f'"{need}",' in line]
        assert ">=" in need, need
        assert "#" in line, f"{need} stands there without a reason"
