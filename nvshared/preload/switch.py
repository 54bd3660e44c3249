# SPDX-License-Identifier: Apache-2.0
"""Enables and disables the library, and checks that only root can replace its file.

Root's programs run the library, so only root may write to its file and the folders above that."""

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from nvshared import library as installed
from nvshared.errors import InvalidArgs, NvshareError
from nvshared.preload import listing, trial
from nvshared.preload.tree import Tree, unreadable

FORBIDDEN = set(" \t\n:#$")             # characters that have a special meaning in the list


class Unguarded(NvshareError):
    """A user other than root can change the library."""


def check_guarded(tree: Tree, library: Path) -> None:
    """Checks that only root can change `library`, a path in the system `tree`.

    Raises Unguarded, NvshareError if the file is missing, InvalidArgs for FORBIDDEN characters."""
    if bad := sorted(FORBIDDEN & set(str(library))):
        raise InvalidArgs(f"{str(library)!r} cannot stand in the list, it has a {bad[0]!r}",
                          "install the library elsewhere")
    if not tree.has(library):
        raise NvshareError(f"there is no {tree.outside(library)}",
                           "install libnvshare, or name another with --library")
    for step in tree.steps(library):
        path = tree.outside(step)
        # The kernel ignores permissions of links: the folder's decide which users may replace it.
        try:
            if not path.is_symlink():
                _check_one(path)
        except OSError as error:
            raise unreadable(error) from error


def _check_one(path: Path) -> None:
    status = path.stat()
    # A file of this process's user is allowed, too, because an image may be built without root.
    if status.st_uid not in (0, os.geteuid()):
        reason = f"it belongs to uid {status.st_uid}"
    elif status.st_mode & stat.S_IWOTH:
        reason = "all users may write it"
    elif status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
        reason = f"the group {status.st_gid} may write it"
    else:
        return
    raise Unguarded(
        f"the library would be in every program, and others than root can change {path}: {reason}",
        "install the library where only root can write, such as /usr/lib")


# Links to the library in these folders are preferred: a link's path is the same for new versions.
STABLE = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"))


class State(NamedTuple):
    place: str                          # path of the list as this process, not the Tree, sees it
    entries: tuple[str, ...]            # entries that are libnvshare.so
    others: tuple[str, ...]             # entries of other libraries
    fault: str                          # what is wrong with `entries`; "": no fault

    def as_dict(self) -> dict[str, Any]:
        return {
            "enabled": bool(self.entries), "list": self.place,
            "entries": list(self.entries), "others": list(self.others), "fault": self.fault}


def find(tree: Tree, named: Path | None) -> Path:
    """The library's path in the system: `named` by the user, or the installed one.

    Raises NvshareError if none is installed, InvalidArgs if `named` is not absolute."""
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
        raise NvshareError(f"there is no {path} in {tree.top}",
                           "name the library's path in that system with --library")
    return path


def read_state(tree: Tree) -> State:
    found = listing.entries(listing.read(tree))
    entries = tuple(entry for entry in found if listing.ours(entry))
    others = tuple(entry for entry in found if not listing.ours(entry))
    return State(str(tree.outside(listing.LIST)), entries, others, _fault(tree, entries))


def enable(tree: Tree, library: Path) -> tuple[trial.TrialResult, ...]:
    """Adds the library to the list after checks and trials. Returns the trials' results.

    If /bin/true fails with the new list, restores the old one, as after every NvshareError."""
    listing.writable(tree)              # checked first, because trials take long
    check_guarded(tree, library)
    baseline = trial.baseline_stderr(tree)
    tried = tuple(trial.run(tree, library, baseline))
    before = listing.change(tree, lambda data: listing.with_library(data, library))
    try:
        trial.check(tree, None, baseline)
    except trial.Unloadable:
        listing.change(tree, lambda _: before)
        raise
    return tried


def disable(tree: Tree) -> bool:
    """Removes every libnvshare.so from the list. False: it had none. Raises NvshareError."""
    before = listing.change(tree, listing.without_library)
    return any(listing.ours(entry) for entry in listing.entries(before))


def _fault(tree: Tree, entries: tuple[str, ...]) -> str:
    if len(entries) > 1:
        return f"it is in the list {len(entries)} times"
    for entry in entries:
        if "/" not in entry or "$" in entry:
            continue                    # the loader searches its own folders for this entry
        path = Path("/", entry)
        try:
            check_guarded(tree, path)
            trial.check(tree, path)
        except NvshareError as error:
            return error.message
    return ""
