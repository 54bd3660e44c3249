# SPDX-License-Identifier: Apache-2.0
"""The RPM spec: packages can be built from it, and its scripts do what Debian's do.

These tests need no system with rpm as package manager. The RPM packages contain the
files of the Debian packages, at other paths.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared import __version__
from tests.system.packages import ROOT, TRIPLET, Packages

# Parts of paths in Debian packages, and the parts in RPM packages.
MOVED = {
    f"/usr/lib/{TRIPLET}/": "/usr/lib64/",
    "/lib/systemd/system/": "/usr/lib/systemd/system/",
    "/zsh/vendor-completions/": "/zsh/site-functions/",
}
# Files that each distribution adds to every package: documentation, debug links, bytecode.
BOOKS = re.compile(
    r"/usr/share/(doc|licenses|lintian|python3)/|/usr/lib/\.build-id/|/__pycache__/|/$")
LIBRARY = "/usr/lib64/libnvshare.so"
LISTS = {
    "alone": (f"{LIBRARY}\n", None),
    "by name": ("libnvshare.so\n", None),
    "with a token": ("/usr/$LIB/libnvshare.so\n", None),
    "by its older folder": ("/lib64/libnvshare.so\n", None),
    "by our link": ("/usr/lib/nvshared/nvshared/lib/libnvshare.so\n", None),
    "first": (f"{LIBRARY}\n/usr/lib64/libz.so.1\n", "/usr/lib64/libz.so.1\n"),
    "beside another": (f"/opt/libx.so {LIBRARY}\n", "/opt/libx.so\n"),
    "somebody else's": ("/opt/lib/libnvshare.so\n", "/opt/lib/libnvshare.so\n"),
}

pytestmark = pytest.mark.skipif(
    shutil.which("rpmspec") is None, reason="there is no rpmspec on this machine")


@pytest.fixture(scope="module")
def spec() -> str:
    path = ROOT / "packaging" / "rpm" / "nvshared.spec"
    done = subprocess.run(
        ["rpmspec", "--parse", "--define", "_libdir /usr/lib64", path],
        capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The packages, built as `make rpm` does."""
    if not shutil.which("rpmbuild"):
        pytest.skip("there is no rpmbuild on this machine")
    folder = tmp_path_factory.mktemp("rpms")
    done = subprocess.run(
        [
            "make", "--no-print-directory", "--file=packaging/packaging.mk", "rpm",
            "RPMFLAGS=--nodeps", f"DIST={folder}", f"PYTHON={sys.executable}",
        ],
        cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return sorted(folder.glob("*.rpm"))


def asked(question: str, package: Path) -> list[str]:
    command = ["rpm", "--query", "--package", question, str(package)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def files_of_deb(package: Path) -> set[str]:
    """Files of the Debian package, at the paths of RPM systems."""
    listed = subprocess.run(
        f"dpkg-deb --fsys-tarfile '{package}' | tar --list", shell=True,
        capture_output=True, text=True, check=True).stdout
    found = set()
    for line in listed.splitlines():
        path = line.removeprefix(".").removesuffix(".gz")
        for debian, other in MOVED.items():
            path = path.replace(debian, other)
        if not BOOKS.search(path):
            found.add(path)
    return found


def test_rpm_has_the_same_files_as_the_debian_package(rpms: list[Path], built: Packages) -> None:
    assert [package.name.split("-")[0] for package in rpms] == ["libnvshare", "nvshared"]
    for rpm, deb in zip(rpms, (built.libnvshare, built.nvshared), strict=True):
        modes = asked("--queryformat=[%{FILEMODES:perms} %{FILENAMES}\n]", rpm)
        folders = {line.split()[1] for line in modes if line.startswith("d")}
        files = {path for path in asked("--list", rpm) if not BOOKS.search(path)} - folders
        assert files == files_of_deb(deb)


def test_rpm_contains_bytecode_of_every_python_file(rpms: list[Path]) -> None:
    files = set(asked("--list", rpms[1]))
    sources = {Path(path) for path in files if path.endswith(".py") and "/share/doc/" not in path}
    assert sources
    compiled = {
        path.parent.parent / f"{path.name.split('.')[0]}.py"
        for path in map(Path, files) if path.suffix == ".pyc"
    }
    assert compiled == sources


def test_rpm_spec_has_the_version_of_the_python_package(spec: str) -> None:
    assert re.search(rf"^Version:\s+{re.escape(__version__)}$", spec, re.M)


def removed(
    spec: str, package: str, preload: Path, drained: bool = True, booted: bool = True
) -> int:
    """Runs the spec's script before a removal (%preun), and returns its exit status.

    The script does not touch this machine's services. `booted`: systemd runs; where it does not,
    as in a chroot, systemctl ignores the question for a unit's state, with status 0.
    """
    found = re.search(rf"^%preun{package}\n(.*?)^%", spec, re.M | re.S)
    assert found is not None
    script = 'systemctl() { :; }\ntimeout() { shift; "$@"; }\n'
    script += "nvsharectl() { " + ("true" if drained else "false") + "; }\n"
    script += found[1].replace("/etc/ld.so.preload", str(preload)).replace(
        "[ ! -d /run/systemd/system ]", "false" if booted else "true")
    return subprocess.run(["sh", "-e", "-c", script, "preun", "0"], check=False).returncode


@pytest.mark.parametrize("package", ["", " -n libnvshare"], ids=["nvshared", "libnvshare"])
@pytest.mark.parametrize("name", LISTS)
def test_rpm_removal_removes_the_library_from_ld_so_preload(
    spec: str, tmp_path: Path, name: str, package: str
) -> None:
    written, left = LISTS[name]
    preload = tmp_path / "ld.so.preload"
    preload.write_text(written)
    assert removed(spec, package, preload) == 0
    assert (preload.read_text().strip() if preload.exists() else None) == (left and left.strip())
    assert [path.name for path in tmp_path.iterdir()] == (["ld.so.preload"] if left else [])


def test_rpm_removal_is_refused_while_programs_are_swapped(spec: str, tmp_path: Path) -> None:
    preload = tmp_path / "ld.so.preload"
    preload.write_text(LIBRARY)
    assert removed(spec, "", preload, drained=False) == 1
    assert preload.read_text() == LIBRARY


def test_rpm_removal_succeeds_where_systemd_does_not_run(spec: str, tmp_path: Path) -> None:
    preload = tmp_path / "ld.so.preload"
    preload.write_text(LIBRARY)
    assert removed(spec, "", preload, drained=False, booted=False) == 0
    assert not preload.exists()
