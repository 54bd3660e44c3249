# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in /etc/ld.so.preload: ours is out of it when either package is gone."""

import pytest

from tests.system.conftest import install
from tests.system.container import Container
from tests.system.packages import LIBRARY, TRIPLET, Packages

LIST = "/etc/ld.so.preload"
OTHER = f"/usr/lib/{TRIPLET}/libz.so.1"
LINK = "/usr/lib/nvshared/nvshared/lib/libnvshare.so\n"

LISTS = {
    "alone": (f"{LIBRARY}\n", None),
    "without a line's end": (LIBRARY, None),
    "by name": ("libnvshare.so\n", None),
    "with a token": ("/usr/$LIB/libnvshare.so\n", None),
    "with a token in braces": ("/usr/${LIB}/libnvshare.so\n", None),
    "by its older folder": (f"/lib/{TRIPLET}/libnvshare.so\n", None),
    "by our link": (LINK, None),
    "first": (f"{LIBRARY}\n{OTHER}\n", f"{OTHER}\n"),
    "beside another": (f"{OTHER} {LIBRARY}\n", f"{OTHER}\n"),
    "with colons": (f"{LIBRARY}:{OTHER}\n", f"{OTHER}\n"),
    "twice": (f"{LIBRARY}\n{OTHER}\nlibnvshare.so\n", f"{OTHER}\n"),
    "with a remark": (f"{LIBRARY} # shares the GPU\n", "# shares the GPU\n"),
    "below a remark": (f"# shares the GPU\n{LIBRARY}\n", "# shares the GPU\n"),
    "not at all": (f"{OTHER}\n", f"{OTHER}\n"),
}


@pytest.fixture(scope="module")
def machine(bare: Container, built: Packages) -> Container:
    """What the packages need is there; they themselves may or may not be."""
    install(bare, built)
    return bare


@pytest.mark.parametrize("name", LISTS)
def test_the_line_is_gone_and_the_rest_stays(
    machine: Container, built: Packages, name: str
) -> None:
    written, left = LISTS[name]
    machine.run("dpkg", "--install", *built.put_into(machine))
    for package in ("nvshared", "libnvshare"):
        machine.write(LIST, written, mode=0o640)
        done = machine.run("dpkg", "--remove", package)
        assert "ld.so" not in done.stdout + done.stderr
        there = machine.run("cat", LIST, check=False)
        assert (there.stdout if there.returncode == 0 else None) == left
        if left is not None:
            assert machine.output("stat", "--format=%a", LIST) == "640"
        if written == LINK:
            break                       # which leads nowhere from now on
    machine.run("dpkg", "--remove", "libnvshare")
    assert machine.run("/bin/true").stderr == ""
    machine.run("rm", "-f", LIST)
    assert machine.output("sh", "-c", "ls /etc/ld.so.preload* 2>/dev/null || true") == ""
