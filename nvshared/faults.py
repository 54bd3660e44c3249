# SPDX-License-Identifier: Apache-2.0
"""The table of all faults that nvshared can know of itself and of its GPUs.

D-Bus (Faults), nvsharectl status, top and doctor, the metric nvshare_fault, the alerts, the
journal, the choice of a GPU for a program and the node's health in Kubernetes take faults from
here. To add one: a row of KINDS, a call of Faults.set() where it is noticed, its alert
(packaging/prometheus/alerts.yml), its line in docs/monitoring.md, and a case of
tests/integration/test_faults.py."""

import logging
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

LOGGED_EVERY = 600.0                    # seconds between two logged begins: users cause some faults

logger = logging.getLogger(__name__)


class Severity(StrEnum):
    CRITICAL = "critical"               # programs cannot use the GPU, or fail
    WARNING = "warning"                 # sharing goes on, with a disadvantage


CRITICAL, WARNING = Severity


class FaultKind(NamedTuple):
    """One row of the table; {gpu} in `summary` and `remedy` stands for the GPU's index."""

    severity: Severity
    summary: str                        # a sentence without full stop
    remedy: str                         # an administrator's action; a sentence without full stop
    of_gpu: bool = False                # it is a fault of one GPU; False: of nvshared as a whole
    avoided: bool = False               # balance, moves and Kubernetes place no program on the GPU
    reported: bool = False              # another part of nvshared reports it over D-Bus
    logged: bool = False                # the module that notices it logs its begin and end


KINDS: dict[str, FaultKind] = {
    "gpu-lost": FaultKind(
        CRITICAL, "the driver does not find GPU {gpu} any more, and its programs get errors",
        "see dmesg for the Xid, end its programs (nvsharectl clients) and reboot, or stop nvshared "
        "and reset the GPU (nvidia-smi --gpu-reset); if it was taken out for good: "
        "nvsharectl forget-gpu {gpu}", of_gpu=True, avoided=True),
    "gpu-unreliable": FaultKind(
        CRITICAL, "the driver has reported an error of GPU {gpu} that no program causes",
        "end its programs (nvsharectl clients) and reboot, or stop nvshared, reset the GPU "
        "(nvidia-smi --gpu-reset), start nvshared, and say so: nvsharectl forget-gpu {gpu}",
        of_gpu=True, avoided=True),
    "gpu-silent": FaultKind(
        CRITICAL, "NVML does not answer questions about GPU {gpu}",
        "see what nvidia-smi and dmesg say; the fault ends when NVML answers", of_gpu=True,
        avoided=True),
    "gpu-exclusive": FaultKind(
        CRITICAL, "GPU {gpu} lets one process use it at a time (compute mode)",
        "allow several: nvidia-smi -i {gpu} -c DEFAULT", of_gpu=True, avoided=True),
    "gpu-mig": FaultKind(
        WARNING, "GPU {gpu} is divided (MIG), and nvshared shares whole GPUs",
        "if no program needs MIG, disable it: nvidia-smi -i {gpu} -mig 0, and restart nvshared",
        of_gpu=True, avoided=True),
    "gpu-contested": FaultKind(
        CRITICAL, "another daemon manages GPU {gpu}, too, so its memory is promised twice",
        "stop one of the two daemons", of_gpu=True),
    "gpu-unshared": FaultKind(
        WARNING, "programs use GPU {gpu} without sharing it: others lack their memory, and they "
        "take no turns", "restart them with: nvsharectl run -- PROGRAM; for containers see: "
        "nvsharectl doctor", of_gpu=True),
    "disk-unusable": FaultKind(
        WARNING, "no memory goes to the disk",
        "after the repair nvshared uses the disk within a minute; or set disk = off"),
    "helper-failing": FaultKind(
        WARNING, "nvshare-checkpoint does not work, so no program can be parked or moved",
        "see: systemctl status nvshare-checkpoint.socket, and "
        "journalctl -u 'nvshare-checkpoint@*'"),
    "library-refused": FaultKind(
        WARNING, "programs whose libnvshare.so is of another version are refused",
        "update nvshared and libnvshare together, and restart these programs"),
    "state-unwritable": FaultKind(
        WARNING, "settings made now are forgotten if nvshared ends",
        "make room on the disk, or let nvshared write to the folder: it writes them within "
        "seconds"),
    "state-unread": FaultKind(
        WARNING, "part of what nvshared kept over its restart is not in force",
        "see the file that was put aside (.aside-N), make settings that it held again, and "
        "restart nvshared", logged=True),
    "history-unwritten": FaultKind(
        WARNING, "the history of usage is not written",
        "make room on the disk, or let nvshared write to the file: it tries again each minute",
        logged=True),
    "settings-refused": FaultKind(
        WARNING, "the changed settings are wrong: the old ones hold, and the next start fails",
        "correct them, see with: nvshared --check; then: systemctl reload nvshared", logged=True),
    "bus-lost": FaultKind(
        WARNING, "nvshared is not on the message bus, so nvsharectl and Kubernetes do not reach it",
        "start the message bus (systemctl start dbus): nvshared comes back by itself",
        logged=True),
    "socket-removed": FaultKind(
        CRITICAL, "programs that start do not find nvshared, and use the GPUs unshared",
        "where nvshared was started by hand, end it and start it again; else: "
        "systemctl restart nvshared.socket nvshared.service"),
    "tenants-hidden": FaultKind(
        WARNING, "what is set for units, jobs, containers and pods does not hold",
        "mount /proc with gid=GROUP, too, and give nvshared.service that group "
        "(SupplementaryGroups=GROUP); in a container: mount the host's /sys/fs/cgroup, read-only, "
        "at /host/sys/fs/cgroup, too; and restart nvshared", logged=True),
    "few-descriptors": FaultKind(
        WARNING, "fewer programs can connect than max-clients says",
        "raise LimitNOFILE= (systemctl edit nvshared), or set a lower max-clients, and restart "
        "nvshared", logged=True),
    "metrics-unserved": FaultKind(
        WARNING, "the metrics are not served, so no alert can fire",
        "end the program that has the port (ss -ltnp), or set another one (metrics in "
        "nvshared.conf) and restart nvshared: it tries again each ten seconds"),
    "kubelet-unreached": FaultKind(
        WARNING, "nvshare-kubelet does not reach kubelet, so pods get no shares of GPUs",
        "see what nvshare-kubelet and kubelet log", reported=True, logged=True),
}


class Fault(NamedTuple):
    """A fault that lasts."""

    id: str                             # a key of KINDS
    severity: str                       # a Severity
    words: str                          # a sentence without full stop
    remedy: str
    avoided: bool = False               # as in FaultKind


class Faults:
    """The present faults of one GPU, or of nvshared as a whole."""

    def __init__(self, changed: Callable[[], None], gpu: int | None = None) -> None:
        """`changed` is called after each change. `gpu`: the GPU's index; None: of the whole."""
        self._changed, self._gpu = changed, gpu
        self._details: dict[str, str] = {}      # why the fault is there, by the fault's id
        self._logged: set[str] = set()          # ids of faults with a line for the begin alone
        self._quiet_until: dict[str, float] = {}    # when the next begin may be logged, by id

    def set(self, id: str, detail: str) -> None:
        """Begins, changes or ends a fault. `detail`: its object or cause in words; "": it ends."""
        assert KINDS[id].of_gpu is (self._gpu is not None)
        before, self._details[id] = self.detail(id), detail
        self._log(id)
        if detail != before:
            self._changed()

    def log_again(self) -> None:
        """Logs the begin of faults that last and began too soon after the last such line."""
        for id in self._details:
            self._log(id)

    def _log(self, id: str) -> None:
        """Logs the begin and the end of a fault."""
        kind, detail = KINDS[id], self.detail(id)
        if kind.logged:
            return
        if not detail and id in self._logged:
            self._logged.remove(id)
            logger.info("fault %s is over: %s", id, self._filled(kind.summary))
        elif detail and id not in self._logged and (
                time.monotonic() >= self._quiet_until.get(id, 0.0)):
            self._logged.add(id)
            self._quiet_until[id] = time.monotonic() + LOGGED_EVERY
            logger.log(
                logging.ERROR if kind.severity is CRITICAL else logging.WARNING,
                "fault %s: %s: %s; %s", id, self._filled(kind.summary), detail,
                self._filled(kind.remedy))

    def detail(self, id: str) -> str:
        """The detail of a fault; "": there is no such fault now."""
        return self._details.get(id, "")

    def avoided(self, *severities: Severity) -> str:
        """Why no program should be placed on the GPU; "": no reason of these severities."""
        return ", ".join(
            detail for id, detail in self._details.items() if detail and KINDS[id].avoided
            and KINDS[id].severity in (severities or Severity))

    def __iter__(self) -> Iterator[Fault]:
        """The faults, in the order of the table."""
        for id, kind in KINDS.items():
            if detail := self.detail(id):
                yield Fault(id, str(kind.severity), f"{self._filled(kind.summary)}: {detail}",
                            self._filled(kind.remedy), kind.avoided)

    def _filled(self, text: str) -> str:
        return text.replace("{gpu}", str(self._gpu))
