# SPDX-License-Identifier: Apache-2.0
"""A real API server takes the manifests, and a DaemonSet does what the package's unit does."""

import pytest

from tests.kubernetes.cluster import Cluster, pod
from tests.kubernetes.conftest import MANIFESTS
from tests.kubernetes.node import ADDRESS, HERE, NAME

IMAGE = "localhost/nvshared:1"
# No kube-proxy is there, so pods find the API server where it is. What makes no sense is refused
# by nvshare-kubelet, not by the API server.
OVERLAY = f"""
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../nvshared]
images: [{{name: nvshared, newName: localhost/nvshared, newTag: "1"}}]
patches:
- patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {{name: nvshare-kubelet, namespace: nvshare}}
    spec:
      template:
        spec:
          containers:
          - name: nvshare-kubelet
            env:
            - {{name: KUBERNETES_SERVICE_HOST, value: {ADDRESS}}}
            - {{name: KUBERNETES_SERVICE_PORT, value: "6443"}}
- patch: |
    $patch: delete
    apiVersion: admissionregistration.k8s.io/v1
    kind: ValidatingAdmissionPolicyBinding
    metadata: {{name: nvshare-annotations}}
"""


@pytest.mark.parametrize("example", sorted(path.name for path in MANIFESTS.glob("examples/*")))
def test_the_api_server_takes_an_example(cluster: Cluster, manifests: str, example: str) -> None:
    cluster.kubectl("create", "--dry-run=server", f"--filename={manifests}/examples/{example}")


def test_a_daemon_set_offers_the_shares_in_place_of_the_unit(
    cluster: Cluster, manifests: str
) -> None:
    """The image is of this very node, whose packages are those that an image would have."""
    cluster.run(
        "python3", f"{manifests}/image.py", IMAGE, "/", "/var/lib/containerd/image.tar",
        *(f"--without={path}" for path in ("/usr/share/doc", HERE, "/root")),
    )
    cluster.run(
        "ctr", "--namespace=k8s.io", "images", "import", "/var/lib/containerd/image.tar")
    cluster.write(f"{manifests}/mine/kustomization.yaml", OVERLAY)
    cluster.run("systemctl", "disable", "--now", "nvshare-kubelet")
    cluster.until(lambda: cluster.allocatable() == 0, "the unit's shares are gone")
    cluster.kubectl("label", "node", NAME, "nvidia.com/gpu.present=true")
    try:
        cluster.kubectl("apply", f"--kustomize={manifests}/mine")
        cluster.until(lambda: cluster.allocatable() == 10, "the pod's shares are there")
        cluster.start_pods(pod("it", annotations={"nvshare.com/weight": "300"}))
        cluster.until(lambda: cluster.terms("it") == {"weight": 300}, "annotations are heeded")
        cluster.kubectl("annotate", "--overwrite", "pod", "it", "nvshare.com/weight=x")
        cluster.until(lambda: "cannot be 'x'" in cluster.refusals("it"), "the reason is an event")
        cluster.finish("it")
    finally:
        cluster.kubectl("delete", f"--kustomize={manifests}/mine")
        cluster.run("systemctl", "enable", "--now", "nvshare-kubelet")
    cluster.until(lambda: cluster.allocatable() == 10, "the unit's shares are back")
