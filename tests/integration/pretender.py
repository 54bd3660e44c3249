# SPDX-License-Identifier: Apache-2.0
"""Creates control groups below a delegated group, as a hostile user would:

    python -m tests.integration.pretender SOCKET UUID UID GROUP

It enters GROUP as root and becomes the user UID. Each line on stdin has the folders of a path in
hexadecimal: the program creates these groups below GROUP/.., enters the last, sends HELLO to the
daemon and prints "was there". For the line "steal" it waits for a turn as a client with memory
until stdin is closed, and prints the number of bytes of other clients that it received.
"""

import os
import select
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from nvshared.hook.protocol import Type
from nvshared.units import MIB
from tests.integration.fakehook import PATIENCE, Hook
from tests.records import decode_order

MUCH = 40 * MIB


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


def steal(path: str, uuid: bytes, ends: Callable[[], bool]) -> int:
    """Number of nonzero bytes in files that came with LOAD; obeys all orders meanwhile."""
    hook = Hook(path, uuid)
    hook.hello()
    hook.allocate(MUCH)
    hook.want()
    stolen = 0
    while not ends():
        if not select.select([hook.socket], [], [], 0.05)[0]:
            continue
        packet, descriptors, _, _ = socket.recv_fds(hook.socket, 4096, 80)
        if not packet:
            break
        order = decode_order(packet)
        for descriptor in descriptors:
            if order.type is Type.LOAD:
                try:
                    found = os.pread(descriptor, MIB, 0)
                except OSError:
                    found = b"?"        # unreadable, but still a descriptor of another client
                stolen += len(found) - found.count(0)
            os.close(descriptor)
        hook.obey(order)
        if order.type is Type.STOP:
            hook.want()
    return stolen


def main() -> None:
    path, uuid, uid, group = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    become(uid, Path(group))
    top = Path(group).parent
    for line in sys.stdin:
        if line == "steal\n":
            print("waits", flush=True)
            print(steal(path, uuid, lambda: bool(select.select([sys.stdin], [], [], 0)[0])))
            return
        go_to(top, [*map(bytes.fromhex, line.split())])
        hook = Hook(path, uuid)
        hook.socket.settimeout(PATIENCE)
        hook.hello()
        hook.close()
        print("was there", flush=True)


if __name__ == "__main__":
    main()
