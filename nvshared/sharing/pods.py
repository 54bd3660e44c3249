# SPDX-License-Identifier: Apache-2.0
"""Names of this machine's pods. Their tenants go by UIDs, which the kernel knows.

nvshare-kubelet sends the names of all pods whenever one of them changes. Terms of a pod are stored
under its UID, because a later pod may have the same name.
"""

from collections.abc import Mapping
from typing import NamedTuple

from nvshared.machine.tenant import Kind


class Pod(NamedTuple):
    """The names of one pod."""

    namespace: str
    name: str
    containers: Mapping[str, str]       # names by container id

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pods:
    """Pods with known names, by tenant: pod:UID."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._tenants: dict[str, str] = {}      # by the name shown: pod:NAMESPACE/NAME

    def use(self, pods: Mapping[str, Pod]) -> list[str]:
        """Replaces all pods. Returns the tenants whose names have changed."""
        every = self._pods.keys() | pods.keys()
        changed = [name for name in every if self._pods.get(name) != pods.get(name)]
        self._pods = dict(pods)
        self._tenants = {self.shown(tenant): tenant for tenant in pods}
        return sorted(changed)

    def pod(self, tenant: str) -> Pod | None:
        """Returns the names of the pod that the tenant is; None: no pod, or names are unknown."""
        return self._pods.get(tenant)

    def shown(self, tenant: str) -> str:
        """Returns the displayed name: pod:NAMESPACE/NAME for a known pod, else the tenant."""
        pod = self._pods.get(tenant)
        return tenant if pod is None else f"{Kind.POD}:{pod}"

    def meant(self, name: str) -> str:
        """Returns the tenant with this displayed name, else the name itself."""
        return self._tenants.get(name, name)
