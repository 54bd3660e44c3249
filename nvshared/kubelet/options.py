# SPDX-License-Identifier: Apache-2.0
"""The command line of nvshare-kubelet."""

import argparse
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from nvshared import __version__, names
from nvshared.errors import InvalidArgs
from nvshared.kubelet.annotations import Classes
from nvshared.kubelet.card import Replicas
from nvshared.parser import Parser, absolute

KUBELET = "/var/lib/kubelet"
KUBECONFIG = "/etc/kubernetes/kubelet.conf"
NODE_VARIABLE = "NODE_NAME"
CDI = "/var/run/cdi"
SETTINGS_LABEL, SETTINGS_DEFAULT = "nvshare.com/config", "default"
AUTO, ON, OFF = names.MODES
RUNTIMES = tuple(map(Path, (
    "/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/run/crio/crio.sock"
)))
USUAL, MOST = 10, 1000                  # default and maximum number of shares of a GPU
CLASS = r"[a-z0-9-]+(?:\.[a-z0-9-]+)*"  # pattern of a PriorityClass's name
LARGEST_VALUE = 1 << 31                 # largest absolute value of a PriorityClass

DESCRIPTION = """\
Offers this machine's GPUs to Kubernetes as nvshare.com/gpu: each to several pods,
which share it. It runs beside kubelet and nvshared. While nvshared does not
answer, its shares are unhealthy and no pod gets one.
"""

EPILOG = """\
Usually systemd runs it:       systemctl enable --now nvshare-kubelet
and a pod asks for a share:    resources: {limits: {nvshare.com/gpu: 1}}

examples:
  nvshare-kubelet --replicas 4
      four pods for each GPU
  nvshare-kubelet --replicas 10 --replicas 1=0
      ten, and GPU 1 is not shared
  nvshare-kubelet --dra
      pods ask by a ResourceClaim, for a part of a GPU's memory and time
"""

Options = argparse.Namespace


def parser() -> argparse.ArgumentParser:
    """Makes the parser. The manual page is generated from it, too."""
    made = Parser(
        prog="nvshare-kubelet", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--version", action="version", version=f"nvshare-kubelet {__version__}")
    made.add_argument(
        "--replicas", metavar="[GPU=]N", action="append", default=[],
        help="how many pods may share each GPU, or the GPU of this index, UUID or PCI "
             "address; 0: the GPU is not offered; may be given several times (default: 10)")
    made.add_argument(
        "--priority-class", dest="classes", metavar="CLASS=PRIORITY", action="append", default=[],
        help="the priority (background, normal, high) that pods of a PriorityClass have, unless an "
             "annotation or a claim gives another one; CLASS is a name, or a range of values such "
             "as 1000.. or ..-1; may be given several times, and the last that fits counts")
    made.add_argument(
        "--foreign-annotations", dest="foreign", action="store_true",
        help="the annotations gpu-fraction, gpu-memory and nvidia.com/container.NAME.gpu-memory"
             ".limit and .request limit a pod's GPU memory, too")
    made.add_argument(
        "--dra", action="store_true",
        help="serve claims of DRA (device class gpu.nvshare.com) in place of the device plugin; "
             "needs Kubernetes 1.34 and a container runtime that supports CDI devices")
    made.add_argument(
        "--cdi", choices=(AUTO, ON, OFF), default=AUTO,
        help="whether the container runtime supports CDI devices; auto: ask the runtime "
             "(default: auto)")
    made.add_argument(
        "--cdi-folder", metavar="DIR", type=absolute, default=Path(CDI),
        help=f"folder in which the container runtime finds CDI files, and ours is written "
             f"(default: {CDI})")
    made.add_argument(
        "--runtime", metavar="PATH", type=lambda text: (absolute(text),), default=RUNTIMES,
        help="the container runtime's socket (default: the running kubelet's, or else all "
             f"existing ones of {', '.join(map(str, RUNTIMES))})")
    made.add_argument(
        "--kubelet", metavar="DIR", type=absolute,
        help=f"kubelet's folder, its --root-dir (default: the running kubelet's, or else "
             f"{KUBELET})")
    made.add_argument(
        "--socket", metavar="PATH", type=absolute,
        default=os.environ.get(names.SOCKET_VARIABLE) or names.DEFAULT_SOCKET,
        help=f"where nvshared listens; its folder is mounted into containers "
             f"(default: {names.DEFAULT_SOCKET}; environment: {names.SOCKET_VARIABLE})")
    made.add_argument(
        "--state", metavar="DIR", type=absolute, default=Path(names.KUBELET_STATE),
        help=f"folder of the library that containers mount (default: {names.KUBELET_STATE})")
    made.add_argument(
        "--bus", metavar="BUS", default=os.environ.get(names.BUS_VARIABLE) or "system",
        help=f"nvshared's message bus: system, session or an address (default: system; "
             f"environment: {names.BUS_VARIABLE})")
    made.add_argument(
        "--kubeconfig", metavar="FILE", type=absolute, default=Path(KUBECONFIG),
        help=f"kubelet's kubeconfig, to reach the API server, which has the annotations of pods; "
             f"in a pod, its service account is used instead (default: {KUBECONFIG})")
    made.add_argument(
        "--node", metavar="NAME",
        default=os.environ.get(NODE_VARIABLE) or socket.gethostname().lower(),
        help=f"this node's name in Kubernetes (default: the host's; environment: {NODE_VARIABLE})")
    made.add_argument(
        "--settings", metavar="DIR", type=absolute,
        help=f"folder of files with more options (--replicas, --priority-class, "
             f"--foreign-annotations): the file holds that the node's label {SETTINGS_LABEL} "
             f"names, or else the file {SETTINGS_DEFAULT}; a change holds within a minute")
    made.add_argument(
        "--ready", action="store_true",
        help="exit with 0 if the nvshare-kubelet that uses the folder --state is ready: kubelet "
             "has its shares and has told the API server; else print why not")
    return made


def parse(arguments: Sequence[str] | None) -> Options:
    """Parses the command line. Raises InvalidArgs."""
    given = parser().parse_args(arguments)
    given.replicas = replicas(given.replicas)
    given.classes = priority_classes(given.classes)
    return given


def priority_classes(given: Sequence[str]) -> Classes:
    """Parses the values of --priority-class. Raises InvalidArgs."""
    found: list[tuple[str | range, int]] = []
    for text in given:
        which, _, meant = text.rpartition("=")
        values = re.fullmatch(r"(-?\d{1,10})?\.\.(-?\d{1,10})?", which, re.ASCII)
        if meant not in names.PRIORITIES or not (values or re.fullmatch(CLASS, which, re.ASCII)):
            raise InvalidArgs(
                f"--priority-class cannot be {text!r}",
                f"give NAME=PRIORITY or FROM..TO=PRIORITY; priorities: "
                f"{', '.join(names.PRIORITIES)}")
        named = which if values is None else range(
            int(values[1] or -LARGEST_VALUE), int(values[2] or LARGEST_VALUE) + 1)
        found.append((named, names.PRIORITIES[meant]))
    return found


def replicas(given: Sequence[str]) -> Replicas:
    """Parses the values of --replicas. Raises InvalidArgs."""
    found = [("", USUAL)]
    for text in given:
        name, equals, number = text.rpartition("=")
        if not re.fullmatch(r"\d{1,4}", number, re.ASCII) or int(number) > MOST or (
                equals and not name):
            raise InvalidArgs(
                f"--replicas cannot be {text!r}",
                f"give a number from 0 to {MOST}, or that of one GPU, such as 0=4")
        found.append((name, int(number)))
    return sorted(found, key=lambda one: bool(one[0]))  # single GPUs last: the last match counts
