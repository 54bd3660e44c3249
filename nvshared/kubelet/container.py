# SPDX-License-Identifier: Apache-2.0
"""What a container gets that shares a GPU: the library, the way to nvshared, and the GPU.

The library is preloaded by a line in a mounted /etc/ld.so.preload. LD_PRELOAD would replace that
of the image (many bring jemalloc or tcmalloc), and the pod's own would replace ours: the pod would
run unshared. Programs wait where nvshared does not answer (NVSHARE_REQUIRED), for the same reason.

Folders are mounted, not files: an upgrade puts another library there, and a restart another
socket, which a container that has the old file would never see. /etc/ld.so.preload is a file by
necessity, and is never replaced. All of it is read-only.

All of that, and the GPU, comes by CDI devices where the container runtime heeds them. Where it
does not, it comes by mounts and variables, and NVIDIA_VISIBLE_DEVICES asks NVIDIA's container
runtime for the GPU.
"""

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvshared import library
from nvshared.errors import AlreadyRunning, NotPermitted, NvshareError
from nvshared.kubelet.cdi import VISIBLE, Folders, replace
from nvshared.names import SOCKET_VARIABLE

# In a container.
LIBRARY = "/usr/lib/nvshare"
SOCKETS = "/run/nvshare"
PRELOAD = "/etc/ld.so.preload"
LINE = f"{LIBRARY}/libnvshare.so\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """For one container."""

    variables: dict[str, str]
    mounts: tuple[tuple[str, Path], ...]        # in the container, on the host; read-only
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Containers:
    """Makes the answers."""

    socket: Path
    state: Path                         # our folder on the host, with what is mounted
    cdi: Folders

    def learn(self, cards: Iterable[str]) -> None:
        """Writes the CDI file for these cards. Raises NotPermitted."""
        self.cdi.write(cards, self._variables, self._mounts)

    def answer(self, cards: Sequence[str], *, by_cdi: bool) -> Answer:
        """For a container that gets these cards."""
        if by_cdi and (devices := self.cdi.devices(cards)):
            return Answer({}, (), devices)
        return Answer(self._variables | {VISIBLE: ",".join(cards)}, self._mounts)

    @property
    def _variables(self) -> dict[str, str]:
        return {SOCKET_VARIABLE: f"{SOCKETS}/{self.socket.name}", "NVSHARE_REQUIRED": "1"}

    @property
    def _mounts(self) -> tuple[tuple[str, Path], ...]:
        return (
            (SOCKETS, self.socket.parent),
            (LIBRARY, self.state / "library"),
            (PRELOAD, self.state / "ld.so.preload"),
        )


def prepare(state: Path) -> int:
    """Puts what is mounted into our folder. Returns a descriptor that keeps others out of it.

    Raises NvshareError; AlreadyRunning if another nvshare-kubelet uses the folder.
    """
    source = library.hook()
    try:
        state.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AlreadyRunning(
                f"another nvshare-kubelet uses {state}", "one serves all GPUs of a node"
            ) from None
        folder = state / "library"
        folder.mkdir(exist_ok=True)
        replace(folder / "libnvshare.so", source.read_bytes())
        line = state / "ld.so.preload"
        if not line.exists():           # never replaced: containers have this very file
            replace(line, LINE.encode())
    except PermissionError as error:
        raise NotPermitted(
            f"cannot write to {error.filename or state}: {error.strerror}", "run it as root"
        ) from error
    except OSError as error:
        raise NvshareError(f"cannot write to {state}: {error.strerror}") from error
    for path, mode in ((state, 0o755), (folder, 0o755), (line, 0o644)):
        path.chmod(mode)                # whatever our umask is: containers run as anybody
    return lock
