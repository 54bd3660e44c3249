#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a container image of a folder: an archive as `docker load` and `ctr images import` take it.

No builder and no registry is needed. What is mounted below the folder is left out.
"""

import argparse
import hashlib
import json
import os
import platform
import tarfile
from collections.abc import Collection, Sequence
from pathlib import Path

NAMES = {".config": "config.json", ".layer": "layer.tar", ".manifest": "manifest.json"}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def make(
    name: str, root: Path, archive: Path, command: Sequence[str], without: Collection[Path] = ()
) -> None:
    """`without`: below the folder, and not in the image."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for folder, folders, files in os.walk(root):
            here = Path(folder)
            folders[:] = sorted(one for one in folders if here / one not in without)
            for one in (*folders, *sorted(files)):
                path = here / one
                if path not in without:
                    tar.add(path, path.relative_to(root), recursive=False)
            folders[:] = [one for one in folders if not (here / one).is_mount()]
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = archive.with_suffix(".config")
    config.write_text(json.dumps({
        "architecture": ARCHITECTURES[platform.machine()], "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {"Cmd": list(command), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
    }))
    manifest = archive.with_suffix(".manifest")
    manifest.write_text(json.dumps([
        {"Config": NAMES[".config"], "RepoTags": [name], "Layers": [NAMES[".layer"]]},
    ]))
    with tarfile.open(archive, "w") as tar:
        for path in (config, layer, manifest):
            tar.add(path, NAMES[path.suffix])
            path.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="such as nvshared:0.1.0")
    parser.add_argument("root", type=Path)
    parser.add_argument("archive", type=Path)
    parser.add_argument("command", nargs="*", default=["/bin/sh"], help="what it runs by itself")
    parser.add_argument("--without", type=Path, action="append", default=[])
    given = parser.parse_args()
    make(given.name, given.root, given.archive, given.command, given.without)
