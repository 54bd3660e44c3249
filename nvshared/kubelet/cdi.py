# SPDX-License-Identifier: Apache-2.0
"""CDI, the Container Device Interface: files that tell a container runtime what a device is.

We write one. It has a device for each card, nvshare.com/gpu=UUID, and one for whoever gets the
card by NVIDIA's own device, nvshare.com/gpu=shared. All of them add the library and the way to
nvshared. Nothing in it is of one container, so it stays while we are away: containers that start
anew meanwhile find it, and nothing is left behind by those that end.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nvshared.errors import NotPermitted

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


def replace(path: Path, content: bytes) -> None:
    """All at once: somebody may be reading the old one."""
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
