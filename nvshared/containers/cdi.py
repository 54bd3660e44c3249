# SPDX-License-Identifier: Apache-2.0
"""The CDI specification nvshare.com/gpu: with it, a container runtime gives a container GPUs that
are shared. Docker, Podman, containerd, CRI-O, nerdctl and Apptainer (1.5) read such files.

NVIDIA's toolkit describes the driver's files and device nodes as nvidia.com/gpu. Our devices have
its edits for the same card, and the library, a preload file, and the folder of nvshared's socket.
A mounted /etc/ld.so.preload preloads it, since images and users set LD_PRELOAD themselves.
Folders are mounted, not files: a mounted file would stay the old one after an upgrade or restart.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nvshared import kept, library
from nvshared.errors import AlreadyRunning, NotPermitted, NvshareError
from nvshared.names import DEFAULT_SOCKET, KUBELET_STATE, SOCKET_VARIABLE

# Paths in a container.
LIBRARY = "/usr/lib/nvshare"
SOCKETS = "/run/nvshare"
PRELOAD = "/etc/ld.so.preload"
LINE = f"{LIBRARY}/libnvshare.so\n"
OPTIONS = ["ro", "nosuid", "nodev", "rbind"]
# The folders in which runtimes look; a later one has precedence. NVIDIA's kind; our kind and file.
STATIC, DYNAMIC = Path("/etc/cdi"), Path("/var/run/cdi")
NVIDIA = "nvidia.com/gpu"
KIND = "nvshare.com/gpu"
FILE = "nvshare.com-gpu.json"
STATE = Path("/var/lib/nvshare-containers")     # not below /run, which is mounted noexec
CARDS = Path("/proc/driver/nvidia/gpus")
NODE = re.compile(r"/dev/nvidia([0-9]+)")
# NVIDIA's names of whole cards; a name such as 0:1 or MIG-... is of a part of one.
WHOLE = re.compile(r"all|[0-9]+|GPU-[0-9a-fA-F-]+")
SETTLED = 0.5                           # seconds
HINT = "make one with NVIDIA's toolkit: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"

Edits = Mapping[str, Any]               # containerEdits of CDI


@dataclass(frozen=True, slots=True)
class Share:
    """A container's parts besides the GPU. `state`: our folder on the host, see prepare()."""

    socket: Path
    state: Path

    @property
    def variables(self) -> dict[str, str]:
        return {SOCKET_VARIABLE: f"{SOCKETS}/{self.socket.name}", "NVSHARE_REQUIRED": "1"}

    @property
    def mounts(self) -> dict[str, Path]:
        """Read-only mounts: folders of the host by paths in the container."""
        return {
            SOCKETS: self.socket.parent, LIBRARY: self.state / "library",
            PRELOAD: self.state / "ld.so.preload"}

    @property
    def edits(self) -> Edits:
        return {
            "env": [f"{name}={value}" for name, value in self.variables.items()],
            "mounts": [{"containerPath": there, "hostPath": str(here), "options": OPTIONS}
                       for there, here in self.mounts.items()]}


def simulated(gpus: int, variables: Mapping[str, str], mounts: Mapping[Path, bool]) -> str:
    """The specification, as of NVIDIA's toolkit, for simulated GPUs. `mounts`: folders of the host,
    which a container has at the same paths, and whether the container may write there."""
    edits = {
        "env": [f"{name}={value}" for name, value in variables.items()],
        "mounts": [{"containerPath": str(path), "hostPath": str(path), "options": [
            "rw" if writes else "ro", *OPTIONS[1:]]} for path, writes in mounts.items()]}
    indices = [str(one) for one in range(gpus)]
    names = {"all": ",".join(indices), **dict(zip(indices, indices, strict=True))}
    return document("0.5.0", {      # a device without edits would be refused
        name: {"env": [f"CUDA_VISIBLE_DEVICES={seen}"]} for name, seen in names.items()
    }, edits, NVIDIA)


class Given(NamedTuple):
    """The devices and edits in the toolkit's files of one folder."""

    version: str
    edits: Edits                        # for each container with one of the devices
    devices: Mapping[str, Edits]        # by name


def document(version: str, devices: Mapping[str, Edits], edits: Edits, kind: str = KIND) -> str:
    """The text of a specification, such as our file."""
    return json.dumps({
        "cdiVersion": version, "kind": kind,
        "devices": [{"name": name, "containerEdits": one} for name, one in devices.items()],
        "containerEdits": edits}, indent=1)


def merged(given: Given, share: Share, cards: Sequence[tuple[str, str]] = ()) -> str:
    """The text of our file for NVIDIA's devices of whole cards. `cards`: the number of the device
    node and the UUID of each card, in the order of NVML's indices."""
    devices = {name: one for name, one in given.devices.items() if WHOLE.fullmatch(name)}
    by_node = {nodes[0]: one for name, one in devices.items()
               if name != "all" and len(nodes := _nodes(one)) == 1}
    for index, (node, uuid) in enumerate(cards):
        for name in (str(index), uuid):
            if node in by_node:         # the toolkit may have been told to write names of one kind
                devices.setdefault(name, by_node[node])
    return document(given.version, devices, _joined([given.edits, share.edits]))


def _nodes(edits: Edits) -> list[str]:
    found = (NODE.fullmatch(str(one.get("path"))) for one in edits.get("deviceNodes") or ())
    return [match[1] for match in found if match]


def _joined(all_edits: Iterable[Edits]) -> Edits:
    """All edits, joined: lists one after the other; of other values (intelRdt), the first."""
    joined: dict[str, Any] = {}
    for edits in all_edits:
        for key, value in edits.items():
            if isinstance(value, list):
                before = joined.setdefault(key, [])
                before += [one for one in value if one not in before]
            else:
                joined.setdefault(key, value)
    return joined


def read(folders: Sequence[Path] = (STATIC, DYNAMIC)) -> Given | None:
    """NVIDIA's files of the last folder that has such a file; None: no folder has one.

    Raises NvshareError for a file of NVIDIA's that cannot be read."""
    for folder in reversed(folders):
        if found := list(_nvidias(folder)):
            devices: dict[str, Edits] = {}
            for one in found:
                for device in one.get("devices") or ():
                    devices.setdefault(str(device["name"]), device.get("containerEdits") or {})
            version = max((str(one.get("cdiVersion") or "0.5.0") for one in found), key=_version)
            return Given(
                version, _joined(one.get("containerEdits") or {} for one in found), devices)
    return None


def _version(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", text)]


def _nvidias(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*")):
        if path.suffix not in (".json", ".yaml") or path.name == FILE:
            continue
        try:
            text = path.read_text()
        except FileNotFoundError:       # replaced just now
            continue
        except (OSError, ValueError) as error:
            raise NvshareError(f"{path} cannot be read: {error}") from error
        if re.search(rf"\bkind[\"']?:\s*[\"']?{NVIDIA}\b", text):
            yield _parsed(path, text)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        if path.suffix == ".json":
            found = json.loads(text)
        else:
            import yaml

            found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except ImportError as error:
        raise NvshareError(
            f"{path} is YAML, and Python's package yaml is missing",
            "install python3-yaml, or have it in JSON: nvidia-ctk cdi generate --format=json "
            "--output=/etc/cdi/nvidia.json, and remove the other") from error
    except Exception as error:          # yaml.YAMLError is known only where yaml is
        raise NvshareError(f"{path} is damaged: {error}", HINT) from error
    try:
        if found["kind"] == NVIDIA and all(one["name"] for one in found["devices"]):
            return dict(found)
    except (KeyError, TypeError):
        pass
    raise NvshareError(f"{path} is no specification of {NVIDIA}", HINT)


def cards(folder: Path = CARDS) -> list[tuple[str, str]]:
    """Number of the device node and UUID of each card, by PCI address, as NVML's indices are."""
    found = []
    for path in sorted(folder.glob("*/information")):
        with suppress(OSError):         # the card was removed just now
            said = dict(re.findall(r"^(\w[\w ]*):\s+(\S+)", path.read_text(), re.M))
            if "Device Minor" in said and WHOLE.fullmatch(said.get("GPU UUID", "")):
                found.append((said["Device Minor"], said["GPU UUID"]))
    return found


class DeviceOffer(NamedTuple):
    """Devices for containers. `missing`: the reason for an empty offer; "": there are devices."""

    devices: tuple[str, ...] = ()
    missing: str = ""
    hint: str = ""
    current: bool = True                # our file says the same as NVIDIA's files

    @property
    def path(self) -> Path:
        return DYNAMIC / FILE


def offer() -> DeviceOffer:
    """The devices in our file, and whether that file is current. Raises NvshareError."""
    try:
        text = (DYNAMIC / FILE).read_text()
        devices = tuple(f"{KIND}={one['name']}" for one in json.loads(text)["devices"])
    except (OSError, ValueError, LookupError, TypeError):
        text, devices = "", ()
    given = read()
    if given is None and not is_kubelets():
        return _nothing()._replace(devices=devices, current=not devices)
    current = bool(text) if given is None or is_kubelets() else text == _text(given)
    return DeviceOffer(devices, current=current)


def _nothing() -> DeviceOffer:
    return DeviceOffer((), f"no CDI specification of {NVIDIA} is in {STATIC} or {DYNAMIC}", HINT)


def _text(given: Given) -> str:
    return merged(given, Share(Path(DEFAULT_SOCKET), STATE), cards())


def is_kubelets() -> bool:
    """Whether nvshare-kubelet runs here, which writes the file. Takes no lock, so that a plugin
    that is just starting gets it."""
    try:
        inode = (Path(KUBELET_STATE) / "lock").stat().st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    return re.search(rf"FLOCK .*:{inode} 0 EOF", locks) is not None


def refresh() -> DeviceOffer:
    """Writes our file, or removes it where no file of NVIDIA's is left. Raises NvshareError.

    Returns once NVIDIA's files have not changed for SETTLED seconds: systemd starts no unit for a
    change while the unit that it would start for it still runs."""
    while True:
        before = _stamps()
        made = _refresh()
        time.sleep(SETTLED)
        if _stamps() == before:
            return made


def _refresh() -> DeviceOffer:
    if is_kubelets():
        return offer()
    given = read()
    if given is None:
        remove()
        return _nothing()
    os.close(prepare(STATE, waits=True))
    write(DYNAMIC, _text(given))
    return offer()


def _stamps() -> list[tuple[str, int, int]]:
    """A value that differs after each change of a file that is not ours."""
    found = []
    for path in (path for folder in (STATIC, DYNAMIC) for path in sorted(folder.glob("*"))):
        with suppress(OSError):         # it was removed just now
            if FILE not in path.name:
                found.append((str(path), path.stat().st_ino, path.stat().st_mtime_ns))
    return found


def write(folder: Path, text: str) -> None:
    """Writes our file, if it has changed. Raises NotPermitted."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace(folder / FILE, text.encode())
    except OSError as error:
        raise NotPermitted(
            f"cannot write to {folder}: {error.strerror}", "run it as root") from error


def remove() -> None:
    """Removes our file: runtimes then refuse our devices by name. Raises NotPermitted."""
    try:
        (DYNAMIC / FILE).unlink(missing_ok=True)
    except OSError as error:
        raise NotPermitted(
            f"cannot remove {DYNAMIC / FILE}: {error.strerror}", "run it as root") from error


def prepare(state: Path, *, waits: bool = False) -> int:
    """Copies the files that containers mount to `state`. Returns a lock of `state`.

    `waits`: until another process has released its lock.
    Raises NvshareError."""
    source = library.hook()
    folder, line = state / "library", state / "ld.so.preload"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(lock)
            raise AlreadyRunning(
                f"another nvshare-kubelet uses {state}", "one serves all GPUs of a node") from None
        replace(folder / "libnvshare.so", source.read_bytes())
        replace(line, LINE.encode())    # stays the same file, as containers have it mounted,
                                        # unless a crash or a full disk has spoilt it
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
    """Replaces a file that every user may read, unless it has this content already."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    kept.replace(path, content, lambda descriptor: os.fchmod(descriptor, 0o644))
