# SPDX-License-Identifier: Apache-2.0
"""A pod of high priority gets the card before a background pod, which keeps running."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster, pod
from tests.kubernetes.test_device_plugin import MOST_OF_IT, first_process
from tests.system import card

DROP_IN = "/etc/systemd/system/nvshare-kubelet.service.d/classes.conf"
CLASSES = {"batch": -10, "urgent": 1000}


@pytest.fixture(scope="module")
def classes(cluster: Cluster) -> Iterator[Cluster]:
    """nvshare-kubelet maps two PriorityClasses to priorities of clients."""
    with cluster.stopped("nvshare-kubelet"):
        cluster.write(DROP_IN, (
            "[Service]\nExecStart=\nExecStart=/usr/bin/nvshare-kubelet"
            " --priority-class ..-1=background --priority-class urgent=high\n"))
    made = [{
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
        "value": value, "preemptionPolicy": "Never",
    } for name, value in CLASSES.items()]
    cluster.apply(*made)
    yield cluster
    cluster.kubectl("delete", "priorityclass", *CLASSES)
    with cluster.stopped("nvshare-kubelet"):
        cluster.run("rm", DROP_IN)


def of_class(name: str, seed: int) -> dict[str, Any]:
    """A pod of this PriorityClass that fills more than half of the card."""
    one = pod(name, MOST_OF_IT, seed=seed)
    one["spec"]["priorityClassName"] = name
    return one


def client(cluster: Cluster, name: str) -> dict[str, Any]:
    (found,) = [one for one in card.clients(cluster) if one["tenant"] == cluster.tenant(name)]
    return found


def test_high_priority_pod_gets_the_card_from_a_background_pod_without_data_loss(
    classes: Cluster, record_property: Callable[[str, object], None]
) -> None:
    classes.start_pods(of_class("batch", 1))
    classes.until(lambda: classes.terms("batch") == {"priority": 1}, "it is in the background")
    process = first_process(classes, "batch")
    classes.until(lambda: client(classes, "batch")["turns"] > 0, "it computes")
    classes.start_pods(of_class("urgent", 2))
    classes.until(lambda: classes.terms("urgent") == {"priority": 3}, "it is urgent")
    classes.until(lambda: client(classes, "urgent")["turns"] > 0, "it has the card")
    waited = client(classes, "urgent")["waited_usec"]
    record_property("seconds that the urgent pod waited for the card", waited / 1e6)
    classes.finish("urgent")
    turns = client(classes, "batch")["turns"]
    classes.until(
        lambda: client(classes, "batch")["turns"] > turns
        or client(classes, "batch")["state"] == "running", "the other goes on")
    assert first_process(classes, "batch") == process
    (status,) = classes.get("pod", "batch")["status"]["containerStatuses"]
    assert status["restartCount"] == 0
    classes.finish("batch")
