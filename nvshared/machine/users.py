# SPDX-License-Identifier: Apache-2.0
"""Questions to the database of users and groups: /etc/passwd, or a directory such as LDAP.

Each function may block for as long as the directory takes: sharing/directory.py calls them in
threads. A directory that is out of reach looks like one without the user."""

import grp
import os
import pwd
from contextlib import suppress

LAST = (1 << 32) - 2                    # the kernel's last user id


def name(uid: int) -> str | None:
    """The name of a user; None: no user has the number, or the name means another user."""
    with suppress(KeyError):
        found = pwd.getpwuid(uid).pw_name
        if is_clear(found) and number(found) == uid:
            return found
    return None


def number(name: str) -> int | None:
    with suppress(KeyError, ValueError):    # ValueError: a NUL, or a character that is no text
        return pwd.getpwnam(name).pw_uid
    return None


def group(name: str) -> int | None:
    with suppress(KeyError, ValueError):
        return grp.getgrnam(name).gr_gid
    return None


def groups(uid: int) -> frozenset[int] | None:
    """The numbers of a user's groups; None: no user has the number."""
    with suppress(KeyError):
        found = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(found.pw_name, found.pw_gid))
    return None


def is_clear(name: str) -> bool:
    """Whether a name can be shown and written for a user: other names could mean something else."""
    return name.isprintable() and bool(name) and not name.isdecimal() and not set(name) & set("/*?")
