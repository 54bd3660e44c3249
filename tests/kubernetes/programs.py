# SPDX-License-Identifier: Apache-2.0
"""The programs of Kubernetes that a node needs: their paths and versions."""

import os
import re
import shutil
import subprocess
from pathlib import Path

FOLDER_VARIABLE = "NVSHARE_KUBERNETES"
# Programs used in place of Debian 12's if the folder has them: Debian's do not support CDI.
RUNTIME = ("containerd", "containerd-shim-runc-v2")
NAMES = (
    "kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "etcd", "kubectl",
)

BESIDES = ("helm",)                     # optional: without helm, tests of helm are skipped


def find() -> dict[str, Path]:
    path = os.pathsep.join((os.environ.get(FOLDER_VARIABLE, ""), os.environ.get("PATH", "")))
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
