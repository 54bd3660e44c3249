# SPDX-License-Identifier: Apache-2.0
"""A purge of the package ends well whatever cannot be removed, and says what stays."""

import os
import subprocess
from pathlib import Path

import pytest

POSTRM = Path(__file__).parents[2] / "packaging" / "debian" / "nvshared.postrm"
FAILING = {
    "userdel": ("the user nvshare stays: userdel failed", 'echo "user nvshare does not exist"'),
    "groupdel": ("the group nvshare stays: groupdel failed", "echo no"),
    "rm": ("/var/lib/nvshare stays: it could not be removed", 'echo "Device or resource busy"'),
}


@pytest.mark.parametrize("name", FAILING)
def test_purge_ends_well_and_says_what_stays_when_a_step_fails(tmp_path: Path, name: str) -> None:
    for program in ("rm", "getent", "userdel", "groupdel"):     # nothing here is to be removed
        words = f"{FAILING[name][1]} >&2; exit 1" if program == name else "exit 0"
        (tmp_path / program).write_text(f'#!/bin/sh\necho "$@" >>"$0.log"\n{words}\n')
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(
        ["sh", str(POSTRM), "purge"], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert FAILING[name][0] in done.stderr.splitlines()
    for program in ("rm", "userdel", "groupdel"):               # each step was tried
        assert "nvshare" in (tmp_path / f"{program}.log").read_text()
