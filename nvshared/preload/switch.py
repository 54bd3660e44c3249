# SPDX-License-Identifier: Apache-2.0
"""Adds the library to /etc/ld.so.preload, or removes it; root's programs run the library.

So only root may be able to write to its file and the folders above that. The list is replaced
atomically, under a lock on its folder. Blanks, line ends and colons separate names; a # begins a
comment. (glibc, at least up to 2.36, may take words of a second comment for names.) Lines without
libnvshare.so are kept byte for byte."""

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from nvshared import library as installed
from nvshared.errors import InvalidArgs, NotPermitted, NvshareError
from nvshared.kept import replace
from nvshared.locks import locked
from nvshared.preload import trial
from nvshared.preload.tree import Tree, unreadable

LIST = Path("/etc/ld.so.preload")
MODE = 0o644                            # mode of a new list, which programs of all users must read
LABEL = "security.selinux"
LABELLED_ALIKE = Path("/etc/ld.so.cache")

_NAMES = re.compile(rb"[^ \t:]+")


def entries(data: bytes) -> list[str]:
    return [os.fsdecode(name) for line in data.splitlines()
            for name in _NAMES.findall(line.partition(b"#")[0])]


def ours(entry: str) -> bool:
    return entry.rpartition("/")[2] == installed.HOOK


def with_library(data: bytes, library: Path) -> bytes:
    """The list with `library` once, at the end, as other libraries may need to be first."""
    if [entry for entry in entries(data) if ours(entry)] == [str(library)]:
        return data
    rest = without_library(data)
    gap = b"" if not rest or rest.endswith(b"\n") else b"\n"
    return rest + gap + os.fsencode(library) + b"\n"


def without_library(data: bytes) -> bytes:
    kept = []
    for line in data.splitlines(keepends=True):
        names, mark, comment = line.partition(b"#")
        found = _NAMES.findall(names.strip())
        others = [name for name in found if not ours(os.fsdecode(name))]
        if len(others) == len(found):
            kept.append(line)
        elif others or mark:
            words = [b" ".join(others)] if others else []
            end = mark + comment if mark else line[len(line.rstrip(b"\r\n")):]
            kept.append(b" ".join(words) + (b" " if words and mark else b"") + end)
    return b"".join(kept)


def read(tree: Tree) -> bytes:
    """The bytes of the list; empty if the file does not exist. Raises NvshareError."""
    path = _list_path(tree)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _error(path, error, "read") from error


def change(tree: Tree, edit: Callable[[bytes], bytes]) -> bytes:
    """Replaces the list by edit(list), or removes it if that is blank. Returns the old list.

    Raises NotPermitted, NvshareError."""
    path = _list_path(tree)
    try:
        with locked(path.parent) as folder:
            before = read(tree)
            after = edit(before)
            if after == before:
                return before
            if after.strip():
                _replace(tree, path, after)
            else:
                path.unlink(missing_ok=True)
            os.fsync(folder)
    except OSError as error:
        raise _error(path, error, "written") from error
    return before


def _list_path(tree: Tree) -> Path:
    return tree.outside(tree.resolve(LIST))


def _replace(tree: Tree, path: Path, data: bytes) -> None:
    def prepare(descriptor: int) -> None:
        if path.exists():
            status = path.stat()
            os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, status.st_mode & 0o7777)
        else:
            os.fchmod(descriptor, MODE)
        _label(tree, path, descriptor)

    replace(path, data, prepare)


def _label(tree: Tree, path: Path, descriptor: int) -> None:
    """Copies the SELinux label of the old list, or of /etc/ld.so.cache, to the new list."""
    example = path if path.exists() else tree.outside(LABELLED_ALIKE)
    try:
        os.setxattr(descriptor, LABEL, os.getxattr(example, LABEL))
    except OSError as error:
        # The list gets no label if the example, its label, label support or permission is missing.
        if error.errno not in (errno.ENOENT, errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
            raise


def _error(path: Path, error: OSError, what: str) -> NvshareError:
    if isinstance(error, PermissionError):
        hint = "run it with sudo" if os.geteuid() else ""
        return NotPermitted(f"{path} cannot be {what}: {error.strerror}", hint)
    hint = {
        errno.ENOSPC: "the disk is full; the list is as it was. Make room and try again",
        errno.EDQUOT: "the quota is used up; the list is as it was. Make room and try again",
        errno.EROFS: "the list is as it was. Make the file system writable: mount -o remount,rw /",
        errno.ENOENT: "is --root the top folder of a system?",
    }.get(error.errno or 0, "the list is as it was")
    return NvshareError(f"{path} cannot be {what}: {error.strerror or error}", hint)


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


# The loaders of 32-bit programs, of x86 and of Arm.
LOADERS_32_BIT = (Path("/lib/ld-linux.so.2"), Path("/lib/ld-linux-armhf.so.3"))
IN_32_BIT = (
    "32-bit programs, which cannot use the GPUs through it, print an error of ld.so when they "
    "start (wrong ELF class: ELFCLASS64, ignored), and run as before")


def runs_32_bit(tree: Tree) -> bool:
    """Whether 32-bit programs can run on the system: they cannot load the library."""
    return any(map(tree.has, LOADERS_32_BIT))


class ListState(NamedTuple):
    place: str                          # path of the list as this process, not the Tree, sees it
    entries: tuple[str, ...]            # entries that are libnvshare.so
    others: tuple[str, ...]             # entries of other libraries
    fault: str                          # the fault of `entries`; "": none

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


def read_state(tree: Tree) -> ListState:
    found = entries(read(tree))
    libraries = tuple(entry for entry in found if ours(entry))
    others = tuple(entry for entry in found if not ours(entry))
    return ListState(str(tree.outside(LIST)), libraries, others, _fault(tree, libraries))


def enable(tree: Tree, library: Path) -> tuple[trial.TrialResult, ...]:
    """Adds the library to the list after checks and trials. Returns the trials' results.

    If /bin/true fails with the new list, restores the old one, as after every NvshareError."""
    path = _list_path(tree)             # checked first, because trials take long
    if not os.access(path.parent, os.W_OK | os.X_OK):
        code = errno.EACCES if path.parent.is_dir() else errno.ENOENT
        if path.parent.is_dir() and os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            code = errno.EROFS
        raise _error(path, OSError(code, os.strerror(code)), "written")
    check_guarded(tree, library)
    baseline = trial.baseline_stderr(tree)
    tried = tuple(trial.run(tree, library, baseline))
    before = change(tree, lambda data: with_library(data, library))
    try:
        trial.check(tree, None, baseline)
    except trial.Unloadable:
        change(tree, lambda _: before)
        raise
    return tried


def disable(tree: Tree) -> bool:
    """Removes every libnvshare.so from the list. False: it had none. Raises NvshareError."""
    before = change(tree, without_library)
    return any(ours(entry) for entry in entries(before))


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
