# SPDX-License-Identifier: Apache-2.0
"""Creates the listening socket, and removes it at the end.

A killed daemon leaves its socket file. Check and removal happen under a lock on the directory, so
that two daemons that start at the same time do not remove each other's socket."""

import errno
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

from nvshared.errors import AlreadyRunning, InvalidArgs, NotPermitted, NvshareError
from nvshared.locks import locked

MODE = 0o666                            # any user's program may ask for the GPU
BACKLOG = 256                           # longest queue of connections, as in nvshared.socket
PATH_LONGEST = 107                      # sun_path without its final zero


class Listening:
    """A bound and listening SOCK_SEQPACKET socket; `close` removes its file."""

    def __init__(self, path: Path) -> None:
        """Raises AlreadyRunning, NotPermitted, InvalidArgs or NvshareError with the path."""
        self.path = path
        if len(os.fsencode(path)) > PATH_LONGEST:
            raise InvalidArgs(
                f"the socket path {path} is longer than the {PATH_LONGEST} bytes a socket's may be",
                "choose a shorter one with --socket")
        try:
            self._folder_made = _make_folder(path.parent)
            with locked(path.parent):
                self.found_stale = _remove_stale(path)  # True: an earlier daemon was killed
                self.socket = _bind(path)
                self._inode = path.stat().st_ino
        except OSError as error:
            words = f"the socket {path} cannot be made: {error.strerror or error}"
            other = "choose another path with --socket"
            if isinstance(error, PermissionError):
                raise NotPermitted(words, f"run nvshared as root, or {other}") from error
            raise NvshareError(words, other) from error

    def close(self) -> None:
        """Removes the socket's file, if it is still ours, and the folder, if we made it."""
        self.socket.close()
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
            if self._folder_made:
                self.path.parent.rmdir()
        except FileNotFoundError:
            return                      # another process has removed the file
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _make_folder(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o755, parents=True)
    except FileExistsError:
        return False
    folder.chmod(0o755)                 # despite the umask: every user must reach the socket
    return True


def _remove_stale(path: Path) -> bool:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(kind):
        raise InvalidArgs(
            f"{path} exists and is no socket", "remove it, or choose another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return True
        except FileNotFoundError:
            return False
        except (BlockingIOError, InterruptedError):
            pass                        # the socket's queue is full, so a process listens
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:     # a process listens on a socket of another type
                raise
    raise AlreadyRunning(
        f"another nvshared listens on {path}",
        "stop it (systemctl stop nvshared), or choose another path with --socket")


def _bind(path: Path) -> socket.socket:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening.bind(str(path))
        path.chmod(MODE)
        listening.listen(BACKLOG)
        stack.pop_all()                 # no call has failed, so the socket stays open
    return listening
