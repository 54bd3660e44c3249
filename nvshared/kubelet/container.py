# SPDX-License-Identifier: Apache-2.0
"""What a container gets that shares a GPU: the library, the way to nvshared, and the GPU.

The library is preloaded by a line in a mounted /etc/ld.so.preload. LD_PRELOAD would replace that
of the image (many bring jemalloc or tcmalloc), and the pod's own would replace ours: the pod would
run unshared. Programs wait where nvshared does not answer (NVSHARE_REQUIRED), for the same reason.

Folders are mounted, not files: an upgrade puts another library there, and a restart another
socket, which a container that has the old file would never see. /etc/ld.so.preload is a file by
necessity, and is never replaced. All of it is read-only.

The GPU comes by NVIDIA's own ways: NVIDIA_VISIBLE_DEVICES for its container runtime, or its CDI
device. Only the administrator knows whether the container runtime heeds CDI devices: containerd
1.6 drops them without a word.
"""

import fcntl
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nvshared import library
from nvshared.errors import AlreadyRunning, NotPermitted, NvshareError
from nvshared.names import SOCKET_VARIABLE

# In a container.
LIBRARY = "/usr/lib/nvshare"
SOCKETS = "/run/nvshare"
PRELOAD = "/etc/ld.so.preload"
LINE = f"{LIBRARY}/libnvshare.so\n"

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"


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
    by_cdi: bool = False
    cdi_folders: Sequence[Path] = field(default=CDI_FOLDERS)

    def answer(self, cards: Sequence[str]) -> Answer:
        """For a container that gets these cards. Raises NvshareError if CDI does not know one."""
        cdi = tuple(f"{CDI_KIND}={card}" for card in cards) if self.by_cdi else ()
        if self.by_cdi:
            self._check(cards)
        return Answer(
            {
                SOCKET_VARIABLE: f"{SOCKETS}/{self.socket.name}",
                "NVSHARE_REQUIRED": "1",
                # Images of CUDA say "all", which NVIDIA's runtime would do beside CDI.
                "NVIDIA_VISIBLE_DEVICES": "void" if cdi else ",".join(cards),
            },
            (
                (SOCKETS, self.socket.parent),
                (LIBRARY, self.state / "library"),
                (PRELOAD, self.state / "ld.so.preload"),
            ),
            cdi,
        )

    def _check(self, cards: Sequence[str]) -> None:
        texts = []
        for path in (path for folder in self.cdi_folders for path in folder.glob("*")):
            if path.suffix in (".json", ".yaml"):
                with suppress(OSError):     # it was just replaced, or names no card for anybody
                    texts.append(path.read_text(errors="replace"))
        ours = [text for text in texts if re.search(rf"\bkind\"?:\s*\"?{CDI_KIND}\b", text)]
        for card in cards:
            named = re.compile(rf"\bname\"?:\s*\"?{re.escape(card)}\b")
            if not any(map(named.search, ours)):
                raise NvshareError(
                    f"no CDI file in {' or '.join(map(str, self.cdi_folders))} has "
                    f"{CDI_KIND}={card}",
                    "nvidia-ctk cdi generate makes one; or leave --cdi out",
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
        _replace(folder / "libnvshare.so", source.read_bytes())
        line = state / "ld.so.preload"
        if not line.exists():           # never replaced: containers have this very file
            _replace(line, LINE.encode())
    except PermissionError as error:
        raise NotPermitted(
            f"cannot write to {error.filename or state}: {error.strerror}", "run it as root"
        ) from error
    except OSError as error:
        raise NvshareError(f"cannot write to {state}: {error.strerror}") from error
    for path, mode in ((state, 0o755), (folder, 0o755), (line, 0o644)):
        path.chmod(mode)                # whatever our umask is: containers run as anybody
    return lock


def _replace(path: Path, content: bytes) -> None:
    """All at once: programs may be loading the old one."""
    if path.is_file() and path.read_bytes() == content:
        return
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
