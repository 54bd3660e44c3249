# SPDX-License-Identifier: Apache-2.0
"""Who could put another file in a library's place.

What stands in /etc/ld.so.preload runs in every program of root. So the file, and
every folder on the way to it, may be written by root alone.
"""

import os
import stat
from pathlib import Path

from nvshared.errors import InvalidArgs, NvshareError
from nvshared.preload.tree import Tree, unreadable

FORBIDDEN = set(" \t\n:#$")             # each means something in the list


class Unguarded(NvshareError):
    """Somebody else than root can write it."""


def check(tree: Tree, library: Path) -> None:
    """`library` is a path of the system.

    Raises Unguarded with who could write what, NvshareError if there is none, InvalidArgs for a
    path that cannot stand in the list.
    """
    if bad := sorted(FORBIDDEN & set(str(library))):
        raise InvalidArgs(
            f"{str(library)!r} cannot stand in the list, it has a {bad[0]!r}",
            "install the library elsewhere",
        )
    if not tree.has(library):
        raise NvshareError(
            f"there is no {tree.outside(library)}",
            "install libnvshare, or name another with --library")
    for step in tree.steps(library):
        path = tree.outside(step)
        # A link is as safe as the folder that it lies in.
        try:
            if not path.is_symlink():
                _check_one(path)
        except OSError as error:
            raise unreadable(error) from error


def _check_one(path: Path) -> None:
    status = path.stat()
    # An image may be made by a user who is its root.
    if status.st_uid not in (0, os.geteuid()):
        who = f"it belongs to uid {status.st_uid}"
    elif status.st_mode & stat.S_IWOTH:
        who = "everybody may write it"
    elif status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
        who = f"the group {status.st_gid} may write it"
    else:
        return
    raise Unguarded(
        f"the library would be in every program, and others than root can change {path}: {who}",
        "install the library where only root can write, such as /usr/lib",
    )
