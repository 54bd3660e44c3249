# SPDX-License-Identifier: Apache-2.0
"""Pods that share a node's simulated card, and their state in nvshared and Kubernetes."""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from nvshared.kubelet.claims import REFUSED_CONDITION
from tests.kubernetes.node import IMAGE, NAME, Node
from tests.system import card

RESOURCE = "nvshare.com/gpu"
DRIVER = "gpu.nvshare.com"
TOLD = "/run/told"  # a file named after a pod in this folder ends the pod's program

# Host folders for pods, in place of the driver that NVIDIA's container runtime would mount.
FOLDERS = {"driver": "/usr/lib/nvshared/nvshared/lib/simulator", "card": card.FOLDER, "told": TOLD}
ENVIRONMENT = {
    "LD_LIBRARY_PATH": FOLDERS["driver"], "NVSHARE_SIM_DIR": card.FOLDER,
    "NVSHARE_SIM_MEMORY": f"{card.MEMORY}M",
}
# Pod security level "restricted", with a read-only root file system.
RESTRICTED = {
    "runAsNonRoot": True, "runAsUser": 65534, "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(
    name: str, memory: int = 16, *, annotations: Mapping[str, str] | None = None,
    security: Mapping[str, Any] | None = None, seed: int = 1, claimed: str = "",
) -> dict[str, Any]:
    """A pod that computes on `memory` MiB of the GPU until finish(), and checks the results.

    `claimed`: the name of a claim, which the pod uses in place of a share.
    """
    # `echo` writes to a pipe, so that the loop ends with SIGPIPE when the program has ended.
    program = (
        f"while [ ! -e {TOLD}/{name} ]; do sleep 0.1; echo; done | exec nvshare-workload --json "
        f"--until-told --rounds 1 --memory {memory}MiB --chunk 8MiB --cpu-ms 5 --seed {seed}"
    )
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "it", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", program],
                "env": [{"name": key, "value": value} for key, value in ENVIRONMENT.items()],
                "resources": (
                    {"claims": [{"name": "gpu"}]} if claimed else {"limits": {RESOURCE: 1}}),
                "securityContext": security or {},
                "volumeMounts": [
                    {"name": key, "mountPath": path, "readOnly": key != "card"}
                    for key, path in FOLDERS.items()
                ],
            }],
            "resourceClaims": ([{"name": "gpu", "resourceClaimName": claimed}] if claimed else []),
            "volumes": [
                {"name": key, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                for key, path in FOLDERS.items()
            ],
        },
    }


def claim(
    name: str, capacity: Mapping[str, str] | None = None, **parameters: object
) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "capacity": {"requests": capacity or {}}}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def deployment(name: str) -> dict[str, Any]:
    """A deployment of one pod() without annotations; Kubernetes replaces the pod if kubelet refuses
    it, or if its node is lost."""
    labels = {"app": name}
    spec = pod(name)["spec"] | {"restartPolicy": "Always"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


class Cluster(Node):
    def allocatable(self) -> int:
        return int(self.get("node", NAME)["status"]["allocatable"].get(RESOURCE, 0))

    @contextmanager
    def stopped(self, *units: str) -> Iterator[None]:
        """Stops these units of the device plugin while the `with` block runs.

        Waits until kubelet counts no share, and at the end until it counts ten again: a pod that
        kubelet admits during the restart of a unit fails and is not retried.
        """
        self.run("systemctl", "stop", *units)
        self.until(lambda: self.allocatable() == 0, "no share is offered")
        try:
            yield
        finally:
            self.run("systemctl", "daemon-reload")
            self.run("systemctl", "start", *units)
        self.until(lambda: self.allocatable() == 10, "ten shares are offered again")

    def phase(self, name: str) -> str:
        return self.kubectl("get", "pod", name, "--output=jsonpath={.status.phase}", check=False)

    def has_ended(self, name: str) -> bool:
        return self.phase(name) in ("Succeeded", "Failed")

    def tenant(self, name: str) -> str:
        return f"pod:default/{name}"

    def tenants(self) -> dict[str, dict[str, Any]]:
        """All tenants that nvshared lists, by their names; empty while nvshared does not run."""
        done = self.run("nvsharectl", "tenants", "--json", check=False)
        listed = json.loads(done.stdout)["tenants"] if done.returncode == 0 else []
        return {one["name"]: one for one in listed}

    def programs(self) -> int:
        found = self.tenants().items()
        return sum(one["programs"] for name, one in found if name.startswith("pod:"))

    def terms(self, name: str) -> dict[str, int]:
        terms = self.tenants().get(self.tenant(name), {"terms": []})["terms"]
        return {term["name"]: term["value"] for term in terms if term["holds"]}

    def refusals(self, name: str, reason: str = "AnnotationRefused") -> str:
        """The lines of `kubectl describe` with this reason, by default refused annotations."""
        uid = self.get("pod", name)["metadata"]["uid"]
        chosen = f"--field-selector=involvedObject.uid={uid},reason={reason}"
        return self.kubectl("get", "events", chosen, "--output=jsonpath={.items[*].message}")

    def is_refused(self, name: str) -> str:
        """The pod status's message about refused annotations; "": no annotation is refused."""
        said = self.get("pod", name)["status"].get("conditions", ())
        return "".join(one["message"] for one in said
                       if one["type"] == REFUSED_CONDITION and one["status"] == "True")

    def last_said(self, unit: str, words: str) -> tuple[float, str]:
        """Returns the time and text of the last journal line of a unit with these words.

        Waits for a first such line: a line may reach the journal after its effect is visible.
        """
        command = shlex.join([
            "journalctl", f"--unit={unit}", "--output=json", "--lines=1", f"--grep={words}"])
        entry = json.loads(self.until(
            lambda: self.output("sh", "-c", f"{command} || true"), f"{unit} logs: {words}"))
        return int(entry["__REALTIME_TIMESTAMP"]) / 1e6, entry["MESSAGE"]

    def shares(self, name: str) -> bool:
        found = self.tenants().get(self.tenant(name))
        return found is not None and found["programs"] == 1

    def start_pods(self, *pods: dict[str, Any]) -> None:
        """Creates pods and returns when their programs use the GPU."""
        self.apply(*pods)
        for one in pods:
            name = one["metadata"]["name"]
            self.until(partial(self.shares, name), f"{name} uses the GPU")

    def finish(self, *names: str) -> None:
        """Ends the programs of pods, and fails unless their results were right."""
        for name in names:
            self.write(f"{TOLD}/{name}", "")
        for name in names:
            self.until(partial(self.has_ended, name), f"{name} has ended")
            said = self.kubectl("logs", "--tail=3", name)
            self.run("rm", f"{TOLD}/{name}")
            assert self.phase(name) == "Succeeded", said
            assert '"right": true' in said
