# SPDX-License-Identifier: Apache-2.0
"""Reads /etc/ld.so.preload, and replaces it atomically, under a lock on its folder.

Blanks, line ends and colons separate names; a # begins a comment. (glibc, at least up to 2.36, may
take words of a second comment for names.) Lines without libnvshare.so are kept byte for byte."""

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nvshared.errors import NotPermitted, NvshareError
from nvshared.preload.tree import Tree

LIST = Path("/etc/ld.so.preload")
OURS = "libnvshare.so"
MODE = 0o644                            # mode of a new list, which programs of all users must read
LABEL = "security.selinux"
LABELLED_ALIKE = Path("/etc/ld.so.cache")

_NAMES = re.compile(rb"[^ \t:]+")


def entries(data: bytes) -> list[str]:
    return [os.fsdecode(name) for line in data.splitlines()
            for name in _NAMES.findall(line.partition(b"#")[0])]


def ours(entry: str) -> bool:
    return entry.rpartition("/")[2] == OURS


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


def writable(tree: Tree) -> None:
    """Raises NotPermitted if the list cannot be written, NvshareError if it has no folder."""
    path = _list_path(tree)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        code = errno.EACCES if path.parent.is_dir() else errno.ENOENT
        raise _error(path, OSError(code, os.strerror(code)), "written")


def change(tree: Tree, edit: Callable[[bytes], bytes]) -> bytes:
    """Replaces the list by edit(list), or removes it if that is blank. Returns the old list.

    Raises NotPermitted, NvshareError."""
    path = _list_path(tree)
    try:
        with _locked(path.parent) as folder:
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
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if path.exists():
                status = path.stat()
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), status.st_mode & 0o7777)
            else:
                os.fchmod(file.fileno(), MODE)
            _label(tree, path, file.fileno())
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _label(tree: Tree, path: Path, descriptor: int) -> None:
    """Copies the SELinux label of the old list, or of /etc/ld.so.cache, to the new list."""
    example = path if path.exists() else tree.outside(LABELLED_ALIKE)
    try:
        os.setxattr(descriptor, LABEL, os.getxattr(example, LABEL))
    except OSError as error:
        # The list gets no label if the example, its label, label support or permission is missing.
        if error.errno not in (errno.ENOENT, errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


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
