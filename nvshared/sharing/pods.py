# SPDX-License-Identifier: Apache-2.0
"""Names of this machine's pods. Their tenants go by UIDs, which the kernel knows.

nvshare-kubelet tells the names, of all pods at once, as often as one of them changes. What is set
for a pod is kept by its UID: another pod may come later by the same name.
"""

from collections.abc import Mapping
from typing import NamedTuple

from nvshared.machine.tenant import Kind


class Pod(NamedTuple):
    """The names of one pod."""

    namespace: str
    name: str
    containers: Mapping[str, str]       # by their ids

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
        """The names of a tenant that is a pod, once they are known."""
        return self._pods.get(tenant)

    def shown(self, tenant: str) -> str:
        """The name for people: pod:NAMESPACE/NAME, or the tenant as it is."""
        pod = self._pods.get(tenant)
        return tenant if pod is None else f"{Kind.POD}:{pod}"

    def meant(self, name: str) -> str:
        """The tenant shown by this name, or the name itself."""
        return self._tenants.get(name, name)
