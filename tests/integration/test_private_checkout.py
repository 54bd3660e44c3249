# SPDX-License-Identifier: Apache-2.0
"""Tests that run programs of other users pass in a checkout that other users may not enter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT

# For the command only, hides the checkout behind a folder of mode 0700 at the same place.
PRIVATE = '''
set -e
mount --bind "$1" "$2"
mount -t tmpfs -o mode=0700 private "$1"
for entry in "$2"/* "$2"/.[a-z]*; do
    place=$1/${entry##*/}
    if [ -d "$entry" ]; then mkdir "$place"; else : >"$place"; fi
    mount --bind "$entry" "$place"
done
cd "$1"
shift 2
! setpriv --reuid=65534 --clear-groups test -x tests
exec "$@"
'''


def may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True, check=False).returncode == 0


@pytest.mark.long                       # runs other tests again
@pytest.mark.skipif(not may_mount(), reason="only root can mount, outside of most containers")
def test_programs_of_users_without_access_to_the_checkout_run(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", PRIVATE, "sh", str(ROOT), str(tmp_path),
         sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "other_user",
         "tests/integration"],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
