# SPDX-License-Identifier: Apache-2.0
"""Who could put another file in a library's place.

What stands in /etc/ld.so.preload runs in every program of root. So the file, and
every folder on the way to it, may be written by root alone.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshared import library as installed
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.preload import listing, trial
from nvshared.preload.tree import Tree, unreadable

FORBIDDEN = set(" \t\n:#$")             # each means something in the list


class Unguarded(NvshareError):
    """Somebody else than root can write it."""


def check_guarded(tree: Tree, library: Path) -> None:
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


# A link in one of these is what an administrator would name; it stays when versions change.
STABLE = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))


@dataclass(frozen=True, slots=True)
class State:
    """How things stand; `as_dict` is what --json prints."""

    place: str                          # of the list, for us
    entries: tuple[str, ...]            # of libnvshare.so in the list
    others: tuple[str, ...]             # entries of other libraries
    fault: str                          # why what is in the list cannot be right, or ""

    @property
    def enabled(self) -> bool:
        """The list has the library."""
        return bool(self.entries)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "enabled": self.enabled, "list": self.place,
            "entries": list(self.entries), "others": list(self.others), "fault": self.fault,
        }


def find(tree: Tree, named: Path | None) -> Path:
    """The library's path in the system: what the user named, or where it was installed.

    Raises NvshareError if it was not, InvalidArgs for a name that is no absolute path.
    """
    if named is not None:
        path = named.absolute() if tree.running else named
        tree.outside(path)
        return path
    path = installed.hook().resolve()
    for folder in STABLE:
        link = folder / path.name
        if tree.has(link) and tree.resolve(link) == tree.resolve(path):
            return link
    if not tree.has(path):
        raise NvshareError(
            f"there is no {path} in {tree.top}",
            "name the library's path in that system with --library",
        )
    return path


def look(tree: Tree) -> State:
    """How things stand. Raises NvshareError if the list cannot be read."""
    found = listing.entries(listing.read(tree))
    entries = tuple(entry for entry in found if listing.ours(entry))
    others = tuple(entry for entry in found if not listing.ours(entry))
    return State(
        str(tree.outside(listing.PLACE)), entries, others, _fault(tree, entries),
    )


def enable(tree: Tree, library: Path) -> tuple[trial.Tried, ...]:
    """Checks, tries, writes, and looks whether programs still start. Returns what was tried.

    Raises NvshareError, and then the list is as it was.
    """
    listing.writable(tree)              # nobody should wait for a trial that leads to nothing
    check_guarded(tree, library)
    usual = trial.complaints(tree)
    tried = tuple(trial.run(tree, library, usual))
    before = listing.change(tree, lambda data: listing.with_library(data, library))
    try:
        trial.start(tree, usual)
    except trial.Unloadable:
        listing.change(tree, lambda _: before)
        raise
    return tried


def disable(tree: Tree) -> bool:
    """Takes the library out, wherever it lay; asks nothing. False: it was not in the list.

    Raises NvshareError if the list cannot be written.
    """
    before = listing.change(tree, listing.without_library)
    return any(listing.ours(entry) for entry in listing.entries(before))


def _fault(tree: Tree, entries: tuple[str, ...]) -> str:
    """What is wrong with what the list has."""
    if len(entries) > 1:
        return f"it is in the list {len(entries)} times"
    for entry in entries:
        if "/" not in entry or "$" in entry:
            continue                    # the loader searches for it
        path = Path("/", entry)
        try:
            check_guarded(tree, path)
            trial.check(tree, path)
        except NvshareError as error:
            return error.message
    return ""
