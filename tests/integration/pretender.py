# SPDX-License-Identifier: Apache-2.0
"""Creates control groups below a delegated group, as a hostile user would:

    python -m tests.integration.pretender SOCKET UUID UID GROUP

It enters GROUP as root and becomes the user UID. Each line on stdin has the folders of a path in
hexadecimal: the program creates these groups below GROUP/.., enters the last, sends HELLO to the
daemon and prints "was there".
"""

import os
import sys
from pathlib import Path

from tests.integration.fakehook import PATIENCE, Hook


def become(uid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    os.chdir("/")                       # the user may be unable to enter the checkout
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def go_to(top: Path, folders: list[bytes]) -> None:
    """Enters a cgroup, made if absent, folder by folder: its path may exceed PATH_MAX."""
    here = Path.cwd()
    os.chdir(top)
    for name in map(os.fsdecode, folders):
        Path(name).mkdir(exist_ok=True)
        os.chdir(name)
    Path("cgroup.procs").write_text(str(os.getpid()))
    os.chdir(here)


def main() -> None:
    path, uuid, uid, group = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    become(uid, Path(group))
    top = Path(group).parent
    for line in sys.stdin:
        go_to(top, [*map(bytes.fromhex, line.split())])
        hook = Hook(path, uuid)
        hook.socket.settimeout(PATIENCE)
        hook.hello()
        hook.close()
        print("was there", flush=True)


if __name__ == "__main__":
    main()
