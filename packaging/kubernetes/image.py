#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a container image of folders, one for each architecture: an OCI archive.

`ctr images import`, `podman load`, `skopeo copy` and `docker load` (from 25 on) take it. No builder
and no registry is needed, and nobody has to be root: in the image all files are root's.
"""

import argparse
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

KINDS = "application/vnd.oci.image"


class Blobs:
    """What an image is made of, in the archive by the hashes."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._there: set[str] = set()

    def add(self, kind: str, file: BinaryIO) -> dict[str, Any]:
        """Puts it there; returns how others refer to it."""
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if digest not in self._there:
            self.write(f"blobs/sha256/{digest}", file, size)
            self._there.add(digest)
        return {"mediaType": f"{KINDS}.{kind}", "digest": f"sha256:{digest}", "size": size}

    def add_json(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """The same for an object."""
        return self.add(kind, io.BytesIO(json.dumps(content).encode()))

    def write(self, name: str, file: BinaryIO, size: int) -> None:
        """A file of the archive."""
        entry = tarfile.TarInfo(name)
        entry.size = size
        self._archive.addfile(entry, file)


def make(
    name: str, archive: Path, roots: Mapping[str, Path], command: Sequence[str], user: str = ""
) -> None:
    """`roots`: by architecture, as Debian and Go call it."""
    with tarfile.open(archive, "w") as tar:
        blobs = Blobs(tar)
        images = [_image(blobs, *one, command, user) for one in roots.items()]
        top = blobs.add_json("index.v1+json", {
            "schemaVersion": 2, "mediaType": f"{KINDS}.index.v1+json", "manifests": images})
        tag = name.rpartition(":")[2]
        top["annotations"] = {
            "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
        for file, content in {
            "index.json": {"schemaVersion": 2, "manifests": [top]},
            "oci-layout": {"imageLayoutVersion": "1.0.0"},
        }.items():
            text = json.dumps(content).encode()
            blobs.write(file, io.BytesIO(text), len(text))


def _image(
    blobs: Blobs, architecture: str, root: Path, command: Sequence[str], user: str
) -> dict[str, Any]:
    with tempfile.TemporaryFile() as plain, tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for path in sorted(root.rglob("*")):
                tar.add(path, path.relative_to(root), recursive=False, filter=_of_root)
        plain.seek(0)
        digest = hashlib.file_digest(plain, "sha256").hexdigest()
        plain.seek(0)
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as file:
            shutil.copyfileobj(plain, file)
        packed.seek(0)
        layer = blobs.add("layer.v1.tar+gzip", packed)
    config = blobs.add_json("config.v1+json", {
        "architecture": architecture, "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {
            "Cmd": list(command), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "User": user},
    })
    return blobs.add_json("manifest.v1+json", {
        "schemaVersion": 2, "mediaType": f"{KINDS}.manifest.v1+json", "config": config,
        "layers": [layer],
    }) | {"platform": {"architecture": architecture, "os": "linux"}}


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="such as localhost/nvshared:1.0.0")
    parser.add_argument("archive", type=Path)
    parser.add_argument("roots", help="such as amd64=FOLDER,arm64=FOLDER")
    parser.add_argument("command", nargs="+", help="what it runs by itself")
    parser.add_argument("--user", default="", help="as whom (default: root)")
    given = parser.parse_args()
    pairs = (one.partition("=") for one in given.roots.split(","))
    folders = {architecture: Path(root) for architecture, _, root in pairs}
    make(given.name, given.archive, folders, given.command, given.user)
