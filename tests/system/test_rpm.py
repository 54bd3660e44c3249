# SPDX-License-Identifier: Apache-2.0
"""The RPM spec: it can be read, and its scripts do what Debian's do.

Packages are built from it by `make rpm`; here is what can be asked of it without
a system that has rpm for its package manager.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.packages import ROOT

LIBRARY = "/usr/lib64/libnvshare.so"
LISTS = {
    "alone": (f"{LIBRARY}\n", None),
    "by name": ("libnvshare.so\n", None),
    "with a token": ("/usr/$LIB/libnvshare.so\n", None),
    "by its older folder": ("/lib64/libnvshare.so\n", None),
    "first": (f"{LIBRARY}\n/usr/lib64/libz.so.1\n", "/usr/lib64/libz.so.1\n"),
    "beside another": (f"/opt/libx.so {LIBRARY}\n", "/opt/libx.so\n"),
    "somebody else's": ("/opt/lib/libnvshare.so\n", "/opt/lib/libnvshare.so\n"),
}

pytestmark = pytest.mark.skipif(
    shutil.which("rpmspec") is None, reason="there is no rpmspec on this machine"
)


@pytest.fixture(scope="module")
def spec() -> str:
    """The spec with its macros expanded."""
    path = ROOT / "packaging" / "rpm" / "nvshared.spec"
    done = subprocess.run(
        ["rpmspec", "--parse", "--define", "_libdir /usr/lib64", path],
        capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_is_of_this_version(spec: str) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert re.search(rf"^Version:\s+{re.escape(version[1])}$", spec, re.M)


@pytest.mark.parametrize("name", LISTS)
def test_the_line_is_gone_before_the_library_is(spec: str, tmp_path: Path, name: str) -> None:
    written, left = LISTS[name]
    found = re.search(r"^%preun -n libnvshare\n(.*?)^%", spec, re.M | re.S)
    assert found is not None
    preload = tmp_path / "ld.so.preload"
    preload.write_text(written)
    script = found[1].replace("/etc/ld.so.preload", str(preload))
    subprocess.run(["sh", "-e", "-c", script, "preun", "0"], check=True)
    assert (preload.read_text().strip() if preload.exists() else None) == (left and left.strip())
    assert [path.name for path in tmp_path.iterdir()] == (["ld.so.preload"] if left else [])
