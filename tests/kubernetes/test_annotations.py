# SPDX-License-Identifier: Apache-2.0
"""Annotations of a pod become its terms, with a real API server and kubelet's identity."""

import time
from collections.abc import Callable

from nvshared.units import MIB
from tests.kubernetes.cluster import Cluster, pod


def test_annotations_of_a_running_pod_are_terms_until_the_pod_is_deleted(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    cluster.start_pods(pod("it", annotations={"nvshare.com/weight": "300"}))
    cluster.until(lambda: cluster.terms("it") == {"weight": 300}, "the first one is read")
    began = time.time()
    cluster.kubectl(
        "annotate", "pod", "it", "nvshare.com/gpu-core-limit=35",
        "nvshare.com/gpu-memory-limit=64", "nvshare.com/weight-")
    ended = time.time()
    wanted = {"compute-limit": 35, "memory-limit": 64 * MIB}
    cluster.until(lambda: cluster.terms("it") == wanted, "the others are read")
    when, _ = cluster.last_said("nvshare-kubelet", "memory-limit is 67108864 now")
    record_property("seconds from the start of kubectl annotate to its terms", when - began)
    record_property("seconds from its end", when - ended)
    cluster.kubectl("annotate", "--overwrite", "pod", "it", "nvshare.com/gpu-core-limit=x")
    cluster.until(lambda: "cannot be 'x'" in cluster.refusals("it"), "the reason is an event")
    cluster.until(lambda: "cannot be 'x'" in cluster.is_refused("it"), "and in its status")
    assert cluster.terms("it") == wanted
    cluster.kubectl("annotate", "--overwrite", "pod", "it", "nvshare.com/gpu-core-limit=36")
    cluster.until(lambda: cluster.is_refused("it") == "", "which says no more than is so")
    assert cluster.terms("it") == wanted | {"compute-limit": 36}
    cluster.kubectl("delete", "pod", "it", "--wait=false")
    cluster.until(lambda: not any(
        name.startswith("pod:") for name in cluster.tenants()), "nothing is left of it")


def test_memory_limit_annotation_applies_to_the_first_allocation(cluster: Cluster) -> None:
    cluster.apply(pod("large", 64, annotations={"nvshare.com/gpu-memory-limit": "32"}))
    cluster.until(lambda: cluster.has_ended("large"), "it has ended")
    assert "out of memory" in cluster.kubectl("logs", "large")
