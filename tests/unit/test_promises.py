# SPDX-License-Identifier: Apache-2.0
"""D-Bus members, names and the protocol keep what an earlier minor version had."""

import json
import re
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

from nvshared import __version__
from nvshared.hook.protocol import OLDEST, VERSION
from tests import promised

ROOT = Path(__file__).parents[2]
# Loaded by its path: a package of Python's own is called packaging, too.
release = SimpleNamespace(**run_path(str(ROOT / "packaging/release.py")))


@pytest.mark.parametrize("name", promised.LISTS)
def test_kept_name_is_not_lost_before_the_next_major_version(name: str) -> None:
    lost = set(promised.kept(name)) - set(promised.LISTS[name]())
    assert not lost, (
        f"users may rely on these; only a new major version changes tests/promises/{name}.txt: "
        + "; ".join(sorted(lost)))


def test_kept_lists_are_of_the_protocols_that_the_daemon_speaks() -> None:
    for version in (OLDEST, VERSION):
        assert (promised.FOLDER / f"protocol-{version}.txt").exists()


def test_version_is_equal_in_all_files_of_a_release() -> None:
    places = {
        "packaging/debian/changelog": r"^nvshared \((\S+)\) ",
        "packaging/rpm/nvshared.spec": r"global our_version (\S+)\}",
        "packaging/kubernetes/chart/Chart.yaml": r'^(?:version|appVersion): "?([\d.]+)"?$',
        "packaging/kubernetes/images/kustomization.yaml": r'newTag: "(\S+)"',
        "packaging/kubernetes/examples/library.yaml": r"image: localhost/libnvshare:(\S+)",
        "docs/kubernetes.md": r"docker://REGISTRY/nvshare-kubelet:([\d.]+)",
    }
    for path, form in places.items():
        found = re.findall(form, (ROOT / path).read_text(), re.MULTILINE)
        assert found, path
        assert set(found) == {__version__}, path


def test_bill_of_materials_names_each_file_and_vendored_package_with_its_hash() -> None:
    packed = release.vendored((ROOT / "packaging/vendored.txt").read_text())
    assert {name for name, _, _ in packed} == {"argcomplete", "nvidia-ml-py", "prometheus-client"}
    bill = json.loads(json.dumps(release.materials("1.2.3", "c0ffee", 0, {"a.deb": "d" * 64},
                                                   packed)))
    sums = {one["name"]: one["checksums"][0]["checksumValue"]
            for one in bill["packages"] if one["checksums"]}
    assert sums == {"a.deb": "d" * 64} | {name: digest for name, _, digest in packed}
    known = {one["SPDXID"] for one in bill["packages"]} | {"SPDXRef-DOCUMENT"}
    assert {one[end] for one in bill["relationships"]
            for end in ("spdxElementId", "relatedSpdxElement")} == known
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", one) for one in known)
