# SPDX-License-Identifier: Apache-2.0
"""nvsharectl and the metrics name pods as soon as their programs are clients."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.kubernetes.cluster import Cluster, pod
from tests.system import card

CONF = "/etc/nvshare/nvshared.conf.d/metrics.conf"
SCRAPE = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9402').read().decode())"
LABELS = {'tenant="pod:default/it"', 'namespace="default"', 'pod="it"', 'container="it"'}


@pytest.fixture
def _metrics(cluster: Cluster) -> Iterator[None]:
    with cluster.stopped("nvshared"):
        cluster.write(CONF, "[nvshared]\nmetrics = 127.0.0.1:9402\n")
    yield
    with cluster.stopped("nvshared"):
        cluster.run("rm", CONF)


@pytest.mark.usefixtures("_metrics")
def test_pod_is_shown_by_namespace_and_name_as_soon_as_its_program_is_a_client(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    cluster.apply(pod("it"))
    cluster.until(lambda: cluster.programs() == 1, "its program uses the GPU")
    came, line = cluster.last_said("nvshared", "came")
    record_property("what it was called when it came", line)
    cluster.until(lambda: cluster.shares("it"), "nvsharectl tenants shows its name")

    def labelled() -> bool:
        lines = cluster.output("python3", "-c", SCRAPE).splitlines()
        (info,) = (line for line in lines if line.startswith("nvshare_client_info{"))
        return set(info[info.index("{") + 1:info.index("}")].split(",")) >= LABELS

    cluster.until(labelled, "the metrics have its names")
    record_property("seconds from then to names in metrics, at most", time.time() - came)
    for unit in ("nvshared", "nvshare-kubelet"):
        with cluster.stopped(unit):
            pass
        cluster.until(lambda: cluster.shares("it"), f"it is known after a restart of {unit}")
    (client,) = card.clients(cluster)
    assert client["name"] == "default/it"
    cluster.finish("it")
