# SPDX-License-Identifier: Apache-2.0
"""What the pods of this machine are called. Their tenants go by UIDs, which the kernel knows.

nvshare-kubelet tells the names, of all pods at once, as often as one of them changes. What is set
for a pod is kept by its UID: another pod may come later by the same name.
"""

from collections.abc import Mapping
from typing import NamedTuple

from nvshared.machine.tenant import Kind


class Pod(NamedTuple):
    """The names of one."""

    namespace: str
    name: str
    containers: Mapping[str, str]       # by their ids

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pods:
    """Those whose names are known, by their tenants: pod:UID."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._tenants: dict[str, str] = {}      # by what they are shown as: pod:NAMESPACE/NAME

    def use(self, pods: Mapping[str, Pod]) -> list[str]:
        """These are all from now on. Returns the tenants whose names have changed."""
        every = self._pods.keys() | pods.keys()
        changed = [name for name in every if self._pods.get(name) != pods.get(name)]
        self._pods = dict(pods)
        self._tenants = {self.shown(tenant): tenant for tenant in pods}
        return sorted(changed)

    def pod(self, tenant: str) -> Pod | None:
        """The names of a tenant that is a pod, once they are known."""
        return self._pods.get(tenant)

    def shown(self, tenant: str) -> str:
        """What people are shown: pod:NAMESPACE/NAME, or the tenant as it is."""
        pod = self._pods.get(tenant)
        return tenant if pod is None else f"{Kind.POD}:{pod}"

    def meant(self, name: str) -> str:
        """The tenant that is shown as this, or what goes by this name already."""
        return self._tenants.get(name, name)
