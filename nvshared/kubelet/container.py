# SPDX-License-Identifier: Apache-2.0
"""What a container gets that shares a GPU: the library, the way to nvshared, and the GPU.

The library is preloaded by a line in a mounted /etc/ld.so.preload. LD_PRELOAD would replace that
of the image (many bring jemalloc or tcmalloc), and the pod's own would replace ours: the pod would
run unshared. Programs wait where nvshared does not answer (NVSHARE_REQUIRED), for the same reason.

Folders are mounted, not files: an upgrade puts another library there, and a restart another
socket, which a container that has the old file would never see. /etc/ld.so.preload is a file by
necessity, and is never replaced. All of it is read-only.

All of that, and the GPU, comes by devices of CDI (Container Device Interface: files that tell a
container runtime what a device is) where the container runtime supports them. Where it does not, it
comes by mounts and variables, and NVIDIA_VISIBLE_DEVICES asks NVIDIA's container runtime for the
GPU. Our one CDI file has a device for each card, nvshare.com/gpu=UUID, and one for containers that
get the card by NVIDIA's own device, nvshare.com/gpu=shared. Nothing in it is of one container, so
it stays while nvshare-kubelet is away: containers that start anew meanwhile find it, and nothing is
left behind by those that end.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshared import library
from nvshared.errors import AlreadyRunning, NotPermitted, NvshareError
from nvshared.names import SOCKET_VARIABLE

# In a container.
LIBRARY = "/usr/lib/nvshare"
SOCKETS = "/run/nvshare"
PRELOAD = "/etc/ld.so.preload"
LINE = f"{LIBRARY}/libnvshare.so\n"
# Of CDI.
STATIC = Path("/etc/cdi")
NVIDIA = "nvidia.com/gpu"
KIND = "nvshare.com/gpu"
SHARED = "shared"
FILE = "nvshare.com-gpu.json"
VERSION = "0.3.0"                       # of the format: the first that every runtime knows
VISIBLE = "NVIDIA_VISIBLE_DEVICES"      # asks NVIDIA's container runtime for cards
VOID = "void"                           # not to add any: images of CUDA say "all"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the runtime looks; we write to one of them."""

    ours: Path
    others: Sequence[Path] = (STATIC,)

    @property
    def file(self) -> Path:
        """Ours."""
        return self.ours / FILE

    def write(
        self, cards: Iterable[str], variables: Mapping[str, str],
        mounts: Iterable[tuple[str, Path]],
    ) -> None:
        """Has there be devices for these cards. Raises NotPermitted."""
        devices = {SHARED: VOID} | {card: card for card in cards}
        text = json.dumps({
            "cdiVersion": VERSION, "kind": KIND,
            "devices": [
                {"name": name, "containerEdits": {"env": [f"{VISIBLE}={seen}"]}}
                for name, seen in devices.items()
            ],
            "containerEdits": {
                "env": [f"{name}={value}" for name, value in variables.items()],
                "mounts": [
                    {"containerPath": there, "hostPath": str(here),
                     "options": ["ro", "nosuid", "nodev", "rbind"]}
                    for there, here in mounts
                ],
            },
        }, indent=1)
        try:
            self.file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace(self.file, text.encode())
        except OSError as error:
            raise NotPermitted(
                f"cannot write to {self.file.parent}: {error.strerror}", "run it as root"
            ) from error

    def devices(self, cards: Sequence[str]) -> tuple[str, ...]:
        """Those that give a container these cards; none where only variables can do that."""
        if self._are_nvidias(cards):
            return f"{KIND}={SHARED}", *(f"{NVIDIA}={card}" for card in cards)
        return (f"{KIND}={cards[0]}",) if len(cards) == 1 else ()

    def _are_nvidias(self, cards: Sequence[str]) -> bool:
        """Whether NVIDIA's toolkit has written devices for all of them."""
        texts = []
        for path in (path for folder in (*self.others, self.ours) for path in folder.glob("*")):
            if path.suffix in (".json", ".yaml"):
                with suppress(OSError):     # it was just replaced, or names no card for anybody
                    texts.append(path.read_text(errors="replace"))
        theirs = [text for text in texts if re.search(rf"\bkind\"?:\s*\"?{NVIDIA}\b", text)]
        return all(
            any(re.search(rf"\bname\"?:\s*\"?{re.escape(card)}(?![\w-])", text) for text in theirs)
            for card in cards
        )


@dataclass(frozen=True, slots=True)
class Containers:
    """Says what they get."""

    socket: Path
    state: Path                         # our folder on the host, with what is mounted
    cdi: Folders

    def learn(self, cards: Iterable[str]) -> None:
        """Writes the CDI file for these cards. Raises NotPermitted."""
        self.cdi.write(cards, self._variables, self._mounts)

    def answer(self, cards: Sequence[str], *, by_cdi: bool) -> dict[str, Any]:
        """A container's that gets these cards, as fields of ContainerAllocateResponse."""
        if by_cdi and (devices := self.cdi.devices(cards)):
            return {"cdi_devices": [{"name": name} for name in devices]}
        return {
            "envs": self._variables | {VISIBLE: ",".join(cards)},
            "mounts": [
                {"container_path": there, "host_path": str(here), "read_only": True}
                for there, here in self._mounts
            ],
        }

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


def replace(path: Path, content: bytes) -> None:
    """All at once: somebody may be reading the old one."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
