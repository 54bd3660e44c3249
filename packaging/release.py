#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a release of the current commit twice, each time from a new clone, and compares.

Leaves in dist/release-VERSION the tarball, packages, images and chart, SHA256SUMS of them, and
nvshared-VERSION.spdx.json, a bill of materials. Exit status 1 if the two builds differ, or the
checkout has changes that are not committed.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "release"
WHEELS = Path("build", "packages", "wheels")
SITE = "https://nvshare.com/spdx"       # a name, not an address: SPDX wants one for each document


def git(*words: str, cwd: Path = ROOT) -> str:
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True,
                          check=True).stdout.strip()


def make(target: str, *options: str) -> Callable[[Path, Path, int], None]:
    """A part that packaging/packaging.mk makes."""

    def run(source: Path, into: Path, _: int) -> None:
        done = subprocess.run(
            ["make", "--no-print-directory", "--file=packaging/packaging.mk", target,
             f"DIST={into}", f"PYTHON={sys.executable}", *options],
            cwd=source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
        if done.returncode:
            raise SystemExit(f"make {target} failed:\n" + done.stdout[-4000:])

    return run


def source_tarball(source: Path, into: Path, time: int) -> None:
    name = f"nvshared-{version(source)}"
    packed = subprocess.run(["git", "archive", "--format=tar", f"--prefix={name}/", "HEAD"],
                            cwd=source, capture_output=True, check=True).stdout
    (into / f"{name}.tar.gz").write_bytes(gzip.compress(packed, mtime=time))


def chart(source: Path, into: Path, time: int) -> None:
    """As `helm package` does, with links followed: the chart's files are those of kustomize."""
    folder = source / "packaging" / "kubernetes" / "chart"
    plain = into / "chart.tar"
    with tarfile.open(plain, "w", dereference=True) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = tar.gettarinfo(str(path), f"nvshared/{path.relative_to(folder)}")
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mtime, entry.mode = time, 0o644
                with path.open("rb") as file:
                    tar.addfile(entry, file)
    (into / f"nvshared-chart-{version(source)}.tgz").write_bytes(
        gzip.compress(plain.read_bytes(), mtime=time))
    plain.unlink()


PARTS: dict[str, Callable[[Path, Path, int], None]] = {
    "source": source_tarball, "chart": chart, "deb": make("deb"),
    "rpm": make("rpm", "RPMFLAGS=--nodeps"), "image": make("image")}


def version(source: Path) -> str:
    found = re.search(r'^__version__ = "(.+?)"', (source / "nvshared/__init__.py").read_text(),
                      re.MULTILINE)
    assert found is not None
    return found[1]


def build(name: str, commit: str, parts: Sequence[str], time: int) -> Path:
    """Builds the parts from a new clone; returns the folder with what was made."""
    source, made = WORK / name / "source", WORK / name / "made"
    shutil.rmtree(WORK / name, ignore_errors=True)
    made.mkdir(parents=True)
    git("clone", "--quiet", "--no-local", str(ROOT), str(source))
    git("checkout", "--quiet", "--detach", commit, cwd=source)
    if (ROOT / WHEELS / "complete").exists():       # fetched before, by their hashes
        shutil.copytree(ROOT / WHEELS, source / WHEELS)
    for part in parts:
        print(f"{name} build: {part}", flush=True)
        PARTS[part](source, made, time)
    return made


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def vendored(text: str) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of each package in packaging/vendored.txt."""
    return re.findall(r"^([\w-]+)==([\w.]+) \\\n\s+--hash=sha256:([0-9a-f]{64})$", text,
                      re.MULTILINE)


def materials(number: str, commit: str, time: int, files: dict[str, str],
              packed: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """The bill of materials of a release, as SPDX 2.3. `files`: SHA-256 by name."""
    licences = {"argcomplete": "Apache-2.0", "nvidia-ml-py": "BSD-3-Clause",
                "prometheus-client": "Apache-2.0"}

    def package(name: str, of: str, digest: str, licence: str, address: str) -> dict[str, Any]:
        sums = [{"algorithm": "SHA256", "checksumValue": digest}] if digest else []
        return {
            "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", f"{name}-{of}"),
            "name": name, "versionInfo": of, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence,
            "copyrightText": "NOASSERTION", "checksums": sums,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": address}]}

    ours = package("nvshared", number, "", "Apache-2.0", f"pkg:generic/nvshared@{number}")
    ours["sourceInfo"] = f"git commit {commit}"
    made = [package(name, number, digest, "Apache-2.0",
                    f"pkg:generic/{name}@{number}?checksum=sha256:{digest}")
            for name, digest in files.items()]
    others = [package(name, of, digest, licences[name], f"pkg:pypi/{name}@{of}")
              for name, of, digest in packed]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", ours["SPDXID"])]
    relations += [(ours["SPDXID"], "CONTAINS", one["SPDXID"]) for one in others]
    relations += [(one["SPDXID"], "GENERATED_FROM", ours["SPDXID"]) for one in made]
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"nvshared-{number}", "documentNamespace": f"{SITE}/nvshared-{number}-{commit}",
        "creationInfo": {
            "created": datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: packaging/release.py"]},
        "packages": [ours, *others, *made],
        "relationships": [
            {"spdxElementId": one, "relationshipType": what, "relatedSpdxElement": other}
            for one, what, other in relations]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="these alone; else all")
    parts = parser.parse_args().parts or list(PARTS)
    if git("status", "--porcelain"):
        print("there are changes that are not committed: a release is of a commit", file=sys.stderr)
        return 1
    commit, time = git("rev-parse", "HEAD"), int(git("log", "-1", "--format=%ct"))
    os.environ |= {"SOURCE_DATE_EPOCH": str(time), "TZ": "UTC", "LC_ALL": "C.UTF-8"}
    os.umask(0o022)
    first, second = (build(name, commit, parts, time) for name in ("first", "second"))
    found, again = digests(first), digests(second)
    if differing := sorted(name for name in found.keys() | again.keys()
                           if found.get(name) != again.get(name)):
        print(f"two builds differ: {', '.join(differing)}; compare {first} and {second}",
              file=sys.stderr)
        return 1
    number = version(ROOT)
    into = ROOT / "dist" / f"release-{number}"
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(first, into)
    bill = materials(number, commit, time, found,
                     vendored((ROOT / "packaging/vendored.txt").read_text()))
    (into / f"nvshared-{number}.spdx.json").write_text(json.dumps(bill, indent=1) + "\n")
    sums = digests(into)
    (into / "SHA256SUMS").write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
    shutil.rmtree(WORK)
    print(f"{into.relative_to(ROOT)}: two builds are equal")
    print("".join(f"  {name}\n" for name in sorted([*sums, "SHA256SUMS"])), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
