# SPDX-License-Identifier: Apache-2.0
"""The archive that packaging/kubernetes/image.py makes is an OCI image, for each architecture.

In tests/kubernetes, containerd imports such an archive.
"""

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

MAKE = Path(__file__).parents[2] / "packaging" / "kubernetes" / "image.py"
NAME = "localhost/it:1.0"


class Image:
    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            files = [(one.name, tar.extractfile(one)) for one in tar]
            self.files = {name: file.read() for name, file in files if file is not None}

    def blob(self, described: dict[str, Any]) -> bytes:
        kind, _, digest = described["digest"].partition(":")
        content = self.files[f"blobs/{kind}/{digest}"]
        assert hashlib.new(kind, content).hexdigest() == digest
        assert len(content) == described["size"]
        return content


@pytest.fixture
def image(tmp_path: Path) -> Image:
    roots = []
    for name in ("amd64", "arm64"):
        root = tmp_path / name
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "it").write_text(name)
        (root / "bin" / "it").chmod(0o755)
        (root / "bin" / "too").symlink_to("it")
        roots.append(f"{name}={root}")
    archive = tmp_path / "it.tar"
    subprocess.run(
        [sys.executable, MAKE, "--user=65534", NAME, archive, ",".join(roots), "/bin/it", "now"],
        check=True)
    return Image(archive)


def test_image_has_files_and_command_for_each_architecture(image: Image) -> None:
    assert json.loads(image.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (top,) = json.loads(image.files["index.json"])["manifests"]
    assert top["annotations"]["io.containerd.image.name"] == NAME
    found = {}
    for described in json.loads(image.blob(top))["manifests"]:
        manifest = json.loads(image.blob(described))
        config = json.loads(image.blob(manifest["config"]))
        (layer,) = manifest["layers"]
        plain = gzip.decompress(image.blob(layer))
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
        assert config["config"]["Cmd"] == ["/bin/it", "now"]
        assert config["config"]["User"] == "65534"
        assert config["architecture"] == described["platform"]["architecture"]
        with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            assert {(one.uid, one.gid) for one in tar} == {(0, 0)}
            assert tar.getmember("bin/it").mode == 0o755
            assert tar.getmember("bin/too").linkname == "it"
            file = tar.extractfile("bin/it")
            assert file is not None
            found[config["architecture"]] = file.read().decode()
    assert found == {"amd64": "amd64", "arm64": "arm64"}
