# SPDX-License-Identifier: Apache-2.0
"""Annotations that the admission policies refuse, and their replacement for nvidia.com/gpu.

The API server evaluates the policies itself, without a webhook.
"""

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from nvshared.kubelet.claims import MIRROR
from tests.kubernetes.cluster import RESOURCE, Cluster, deployment, pod
from tests.kubernetes.node import NAME
from tests.kubernetes.values import VALUES
from tests.system.container import Failed

SHARE = "nvshare.com/share"
WHOLE = "nvidia.com/gpu"
LIMIT = "nvshare.com/gpu-core-limit"


def taken(cluster: Cluster, texts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The annotations that the API server accepts; each is tried on a separate pod."""
    pods = [pod(f"p{number}", annotations=dict([one])) for number, one in enumerate(texts)]
    listed = {"apiVersion": "v1", "kind": "List", "items": pods}
    said = cluster.kubectl(
        "create", "--dry-run=server", "--filename=-", "--output=name", given=json.dumps(listed),
        check=False)
    return [texts[int(number)] for number in re.findall(r"^pod/p(\d+)$", said, re.MULTILINE)]


@pytest.fixture(scope="module")
def policies(cluster: Cluster, manifests: str) -> Iterator[Cluster]:
    """The admission policies for annotations and for nvidia.com/gpu are in force in this module."""
    folders = [f"--kustomize={manifests}/{name}"
               for name in ("annotations", "nvidia-gpu", "shares")]
    for folder in folders:
        cluster.kubectl("apply", folder)
    cluster.kubectl("label", "namespace", "default", f"{SHARE}=true")
    cluster.until(lambda: not taken(cluster, [(LIMIT, "x")]), "the one is in force")
    cluster.until(lambda: asked(cluster, WHOLE) == {RESOURCE: "1"}, "the other one is")
    yield cluster
    cluster.kubectl("label", "namespace", "default", f"{SHARE}-")
    for folder in folders:
        cluster.kubectl("delete", folder)
    cluster.until(lambda: taken(cluster, [(LIMIT, "x")]), "it is in force no longer")


def asked(cluster: Cluster, resource: str, labels: Mapping[str, str] | None = None) -> object:
    """Returns the admitted limits of a pod if its second container alone requests `resource`."""
    one = pod("it")
    one["metadata"]["labels"] = labels or {}
    one["spec"]["containers"].insert(0, {"name": "beside", "image": "it"})
    one["spec"]["containers"][1]["resources"] = {"limits": {resource: 1}}
    said = cluster.kubectl(
        "create", "--dry-run=server", "--filename=-", "--output=json", given=json.dumps(one))
    resources = json.loads(said)["spec"]["containers"][1]["resources"]
    assert resources["requests"] == resources["limits"]
    return resources["limits"]


@pytest.mark.parametrize("key", VALUES)
def test_policy_accepts_the_annotation_values_nvshare_kubelet_accepts(
    policies: Cluster, key: str
) -> None:
    good, bad = ([(key, text) for text in texts] for texts in VALUES[key])
    assert taken(policies, [*bad, *good]) == good


def test_unknown_annotation_of_nvshare_is_refused(policies: Cluster) -> None:
    assert not taken(policies, [("nvshare.com/gpu-memory", "4Gi"), ("nvshare.com/", "1")])
    assert len(taken(policies, [("example.com/weight", "x"), ("nvshare.company/x", "x")])) == 2


def test_invalid_annotation_on_a_running_pod_is_refused_and_the_old_value_holds(
    policies: Cluster
) -> None:
    policies.start_pods(pod("it", annotations={LIMIT: "35"}))
    policies.until(lambda: policies.terms("it") == {"compute-limit": 35}, "it is read")
    with pytest.raises(Failed, match=f"{LIMIT}: give a whole number from 1 to 100"):
        policies.kubectl("annotate", "--overwrite", "pod", "it", f"{LIMIT}=350")
    assert policies.terms("it") == {"compute-limit": 35}
    assert not policies.refusals("it")
    policies.finish("it")


def test_pod_with_an_older_invalid_annotation_can_be_changed(
    policies: Cluster, manifests: str
) -> None:
    policies.kubectl("delete", f"--kustomize={manifests}/annotations")
    policies.until(lambda: taken(policies, [(LIMIT, "x")]), "nothing is refused")
    policies.start_pods(pod("it", annotations={LIMIT: "x"}))
    policies.kubectl("apply", f"--kustomize={manifests}/annotations")
    policies.until(lambda: not taken(policies, [(LIMIT, "x")]), "it is refused again")
    policies.kubectl("label", "pod", "it", "some=label")
    with pytest.raises(Failed, match="denied request"):
        policies.kubectl("annotate", "--overwrite", "pod", "it", f"{LIMIT}=y")
    policies.kubectl("annotate", "--overwrite", "pod", "it", f"{LIMIT}=35")
    policies.until(lambda: policies.terms("it") == {"compute-limit": 35}, "it is put right")
    policies.finish("it")


def test_nvidia_com_gpu_becomes_a_share_in_a_labelled_namespace(policies: Cluster) -> None:
    assert asked(policies, WHOLE) == {RESOURCE: "1"}
    assert asked(policies, WHOLE, {SHARE: "false"}) == {WHOLE: "1"}
    assert asked(policies, RESOURCE) == {RESOURCE: "1"}
    policies.kubectl("label", "--overwrite", "namespace", "default", f"{SHARE}=no")
    policies.until(lambda: asked(policies, WHOLE) == {WHOLE: "1"}, "it means a whole one again")
    policies.kubectl("label", "--overwrite", "namespace", "default", f"{SHARE}=true")


@pytest.mark.parametrize(("annotations", "chosen"), [
    ({"gpu-fraction": "0.5"}, "beside"),
    ({"gpu-memory": "64", "gpu-fraction-container-name": "it"}, "it"),
    ({"nvidia.com/container.it.gpu-memory.request": "64Mi"}, "it"),
])
def test_pod_of_kai_scheduler_gets_a_share_in_a_labelled_namespace(
    policies: Cluster, annotations: dict[str, str], chosen: str
) -> None:
    one = pod("it", annotations=annotations)
    one["spec"]["schedulerName"] = "kai-scheduler"
    one["spec"]["containers"][0]["resources"] = {}
    one["spec"]["containers"].insert(0, {"name": "beside", "image": "it"})

    def made(**labels: str) -> tuple[str, dict[str, object]]:
        one["metadata"]["labels"] = labels
        spec = json.loads(policies.kubectl(
            "create", "--dry-run=server", "--filename=-", "--output=json", given=json.dumps(one)
        ))["spec"]
        found = {each["name"]: each["resources"]["limits"] for each in spec["containers"]
                 if each["resources"]}
        return spec["schedulerName"], found

    policies.until(
        lambda: made() == ("default-scheduler", {chosen: {RESOURCE: "1"}}), "it asks for one")
    assert made(**{SHARE: "false"}) == ("kai-scheduler", {})


def test_pod_that_requests_nvidia_com_gpu_runs_with_a_share_instead(policies: Cluster) -> None:
    one = pod("it")
    one["spec"]["containers"][0]["resources"] = {"limits": {WHOLE: 1}}
    policies.until(lambda: asked(policies, WHOLE) == {RESOURCE: "1"}, "the policy is in force")
    policies.start_pods(one)
    policies.finish("it")


@pytest.mark.parametrize("resource", [RESOURCE, WHOLE])
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_policy_refuses_pods_of_a_deployment_with_two_shares_per_container(
    policies: Cluster, resource: str, kind: str
) -> None:
    """A ReplicaSet would create a new pod for each pod that kubelet refuses, many in a second."""
    policies.until(lambda: asked(policies, WHOLE) == {RESOURCE: "1"}, "the policy is in force")
    one = deployment("it")
    template = one["spec"]["template"]["spec"]
    (container,) = template["containers"]
    container["resources"] = {}
    many = container | {"name": "many", "resources": {"limits": {resource: 2}}}
    template[kind] = [*template.get(kind, ()), many]
    policies.apply(one)

    def said() -> str:
        conditions = policies.get("deployment", "it")["status"].get("conditions", ())
        return "".join(one.get("message", "") for one in conditions)

    policies.until(lambda: "each share of a container is another GPU" in said(), "it is refused")
    assert "of many" in said()
    assert policies.get("pods")["items"] == []


def test_policy_refuses_mirror_pods_not_created_by_kubelet(policies: Cluster) -> None:
    one = pod("static", annotations={MIRROR: "0a" * 16})
    one["spec"]["nodeName"] = NAME
    create = ("create", "--dry-run=server", "--filename=-", "--output=name")
    given = json.dumps(one)
    policies.until(
        lambda: not policies.kubectl(*create, given=given, check=False), "a user's is refused")
    with pytest.raises(Failed, match="kubelet alone makes the mirrors of static pods"):
        policies.kubectl(*create, given=given)
    owner = policies.get("node", NAME)["metadata"]
    one["metadata"]["ownerReferences"] = [{
        "apiVersion": "v1", "kind": "Node", "name": NAME, "uid": owner["uid"], "controller": True,
    }]
    given = json.dumps(one)
    kubelet = (f"--as=system:node:{NAME}", "--as-group=system:nodes")
    assert policies.kubectl(*create, *kubelet, given=given) == "pod/static\n"
