# SPDX-License-Identifier: Apache-2.0
"""The requirements of a container that shares a GPU: the library, nvshared's socket, and the GPU.

A mounted /etc/ld.so.preload preloads the library, since images and pods set LD_PRELOAD themselves.
Folders are mounted, not files: a mounted file would stay the old one after an upgrade or restart.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvshared import library
from nvshared.errors import AlreadyRunning, NotPermitted, NvshareError
from nvshared.names import SOCKET_VARIABLE

# Paths in a container.
LIBRARY = "/usr/lib/nvshare"
SOCKETS = "/run/nvshare"
PRELOAD = "/etc/ld.so.preload"
LINE = f"{LIBRARY}/libnvshare.so\n"
# CDI: the folder of administrators' files, NVIDIA's kind; our kind, our device and our file.
STATIC = Path("/etc/cdi")
NVIDIA = "nvidia.com/gpu"
KIND = "nvshare.com/gpu"
SHARED = "shared"
FILE = "nvshare.com-gpu.json"
VERSION = "0.3.0"                       # version of the CDI format that every runtime reads
VISIBLE = "NVIDIA_VISIBLE_DEVICES"      # requests GPUs from NVIDIA's container runtime
VOID = "void"                           # requests no GPU; CUDA images set "all"


@dataclass(frozen=True, slots=True)
class Containers:
    socket: Path
    state: Path                         # our folder on the host; containers mount its files
    cdi: Path                           # the folder where our CDI file is written
    others: Sequence[Path] = (STATIC,)  # further folders in which runtimes look for CDI files

    def write_cdi_file(self, cards: Iterable[str]) -> None:
        """Writes our CDI file with a device for each of these GPUs. Raises NotPermitted.

        Containers that restart while nvshare-kubelet does not run need the file."""
        devices = {SHARED: VOID} | {card: card for card in cards}
        text = json.dumps({
            "cdiVersion": VERSION, "kind": KIND,
            "devices": [
                {"name": name, "containerEdits": {"env": [f"{VISIBLE}={seen}"]}}
                for name, seen in devices.items()],
            "containerEdits": {
                "env": [f"{name}={value}" for name, value in self._variables.items()],
                "mounts": [
                    {"containerPath": there, "hostPath": str(here),
                     "options": ["ro", "nosuid", "nodev", "rbind"]}
                    for there, here in self._mounts.items()]},
        }, indent=1)
        try:
            self.cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace(self.cdi / FILE, text.encode())
        except OSError as error:
            raise NotPermitted(
                f"cannot write to {self.cdi}: {error.strerror}", "run it as root") from error

    def devices(self, cards: Sequence[str]) -> list[str]:
        """CDI devices that give a container these GPUs; empty if only environment variables do."""
        if self._nvidias_devices().issuperset(cards):
            return [f"{KIND}={SHARED}", *(f"{NVIDIA}={card}" for card in cards)]
        return [f"{KIND}={cards[0]}"] if len(cards) == 1 else []

    def response(self, cards: Sequence[str], *, by_cdi: bool) -> dict[str, Any]:
        """The fields of ContainerAllocateResponse for a container with these GPUs."""
        if by_cdi and (devices := self.devices(cards)):
            return {"cdi_devices": [{"name": name} for name in devices]}
        return {
            "envs": self._variables | {VISIBLE: ",".join(cards)},
            "mounts": [
                {"container_path": there, "host_path": str(here), "read_only": True}
                for there, here in self._mounts.items()]}

    def _nvidias_devices(self) -> set[str]:
        """The names in CDI files of NVIDIA's toolkit, among them those of its devices."""
        names = set[str]()
        for path in (path for folder in (*self.others, self.cdi) for path in folder.glob("*")):
            if path.suffix in (".json", ".yaml"):
                with suppress(OSError):     # the file was just replaced, or is unreadable
                    text = path.read_text(errors="replace")
                    if re.search(rf"\bkind\"?:\s*\"?{NVIDIA}\b", text):
                        names |= set(re.findall(r"\bname\"?:\s*\"?([\w-]+)", text))
        return names

    @property
    def _variables(self) -> dict[str, str]:
        return {SOCKET_VARIABLE: f"{SOCKETS}/{self.socket.name}", "NVSHARE_REQUIRED": "1"}

    @property
    def _mounts(self) -> dict[str, Path]:
        return {
            SOCKETS: self.socket.parent, LIBRARY: self.state / "library",
            PRELOAD: self.state / "ld.so.preload"}


def prepare(state: Path) -> int:
    """Copies what containers mount to `state`. Returns a lock of `state`. Raises NvshareError."""
    source = library.hook()
    folder, line = state / "library", state / "ld.so.preload"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AlreadyRunning(
                f"another nvshare-kubelet uses {state}", "one serves all GPUs of a node") from None
        replace(folder / "libnvshare.so", source.read_bytes())
        if not line.exists():           # never replaced: containers have it mounted
            replace(line, LINE.encode())
        for path, mode in ((state, 0o755), (folder, 0o755), (line, 0o644)):
            path.chmod(mode)            # regardless of our umask: any user must be able to read
    except PermissionError as error:
        raise NotPermitted(
            f"cannot write to {error.filename or state}: {error.strerror}", "run it as root"
        ) from error
    except OSError as error:
        raise NvshareError(f"cannot write to {state}: {error.strerror}") from error
    return lock


def replace(path: Path, content: bytes) -> None:
    """Replaces a file atomically: another process may be reading it."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
