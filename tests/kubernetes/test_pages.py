# SPDX-License-Identifier: Apache-2.0
"""Each command of docs/kubernetes.md and docs/strategies.md works as printed, on a separate node.

The commands are taken from the pages; one that no test runs makes the last test fail.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kubernetes import programs
from tests.kubernetes.cluster import Cluster, claim, deployment, pod
from tests.kubernetes.conftest import ROOT, copy_manifests, prepared
from tests.kubernetes.node import HERE, NAME
from tests.kubernetes.test_manifests import SERVER
from tests.system.packages import Packages

WORK = "/root/nvshared"                 # where the administrator has the sources
PAGES = ("kubernetes.md", "strategies.md")
RAN: set[tuple[str, str]] = set()       # (page, command) of the commands that a test has run


def sections(page: str) -> dict[str, list[str]]:
    """The commands of a documentation page, by the heading of their section."""
    found: dict[str, list[str]] = {}
    heading, fenced = "", False
    for line in (ROOT / "docs" / page).read_text().splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            heading = line.lstrip("# ")
        elif line.startswith("    ") and not fenced:
            found.setdefault(heading, []).append(line.strip())
    return found


@pytest.fixture(scope="module")
def there(
    request: pytest.FixtureRequest, built: Packages, images: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """A node with the sources, the packages, the images and kubectl."""
    with prepared(request.config, tmp_path_factory.mktemp("page")) as made:
        for package in (built.nvshared, built.libnvshare):
            made.copy(package, f"{WORK}/{package.name}")
        copy_manifests(made, f"{WORK}/packaging/kubernetes")
        for path in sorted(images.glob("*.tar")):
            made.copy(path, f"{WORK}/dist/{path.name}")
        made.run("mkdir", "-p", "/root/.kube")
        made.run("ln", "-sf", "/etc/kubernetes/admin.conf", "/root/.kube/config")
        for name in ("kubectl", "helm"):
            made.run("ln", "-s", f"{HERE}/{name}", f"/usr/local/bin/{name}")
        yield made


def follow(cluster: Cluster, page: str, heading: str) -> None:
    """Runs the commands of a section of a documentation page, as root in the sources."""
    for command in sections(page)[heading]:
        run(cluster, page, command)


def run(cluster: Cluster, page: str, command: str, *, check: bool = True) -> str:
    RAN.add((page, command))
    done = cluster.run("sh", "-ec", f"cd {WORK}; {command.replace('NODE', NAME)}", check=check)
    return done.stdout + done.stderr


def test_node_set_up_by_the_pages_unit_commands_offers_shares(there: Cluster) -> None:
    page = "kubernetes.md"
    install, start, shares, policy = sections(page)["Setting a node up"]
    (problems,) = sections(page)["What the node shows"]
    run(there, page, install)
    run(there, page, start)
    there.until(lambda: [NAME, "10"] in map(str.split, run(there, page, shares).splitlines()),
                "ten shares are offered")
    run(there, page, policy)
    there.until(
        lambda: "all GPUs that are offered can be shared" in run(there, page, problems),
        "the node's condition says so")


def test_invalid_annotation_is_refused_with_the_message_in_the_page(there: Cluster) -> None:
    page = "kubernetes.md"
    there.kubectl("apply", f"--kustomize={WORK}/packaging/kubernetes/annotations")
    command, *said = sections(page)["Limits of a pod"]
    there.start_pods(pod("train"))

    def is_refused() -> bool:
        answer = run(there, page, command.removeprefix("$ "), check=False)
        return all(part.strip() in answer for line in said for part in line.split("..."))

    there.until(is_refused, "it is refused as printed")
    RAN.update((page, line) for line in (command, *said))
    there.kubectl("delete", "pod", "train", "--grace-period=0", "--force")


def test_labelled_namespace_shares_gpus_requested_as_nvidia_com_gpu(there: Cluster) -> None:
    there.kubectl("create", "namespace", "lab")
    follow(there, "kubernetes.md", "nvidia.com/gpu")
    assert there.get("namespace", "lab")["metadata"]["labels"]["nvshare.com/share"] == "true"


def test_pod_created_during_an_update_starts_afterwards(there: Cluster) -> None:
    there.start_pods(pod("before"))
    page = "kubernetes.md"
    cordon, update, uncordon = sections(page)["Update of the unit"]
    run(there, page, cordon)
    there.until(lambda: "unschedulable" in str(there.get("node", NAME)["spec"].get("taints")),
                "others have seen it")
    names = [f"during{number}" for number in range(4)]
    there.apply(*map(pod, names))
    # Until the scheduler sees the taint it may bind pods to the node: the update would lose these.
    there.until(lambda: all(
        one["reason"] == "Unschedulable" for name in names
        for one in there.get("pod", name)["status"].get("conditions", [{"reason": ""}])),
        "no pod is bound")
    run(there, page, update)
    assert set(map(there.phase, names)) == {"Pending"}
    there.until(lambda: there.allocatable() == 10, "ten shares are offered again")
    run(there, page, uncordon)
    for name in names:
        there.until(partial(there.shares, name), "it runs")
    there.finish("before", *names)
    there.kubectl("delete", "pod", "--all")


def test_node_without_nvshared_has_an_event_with_the_reason(there: Cluster) -> None:
    with there.stopped("nvshared.socket", "nvshared"):
        there.until(
            lambda: "GPUsNotShared" in there.kubectl("describe", "node", NAME), "it is said")


def test_pod_that_wants_two_shares_of_a_gpu_is_refused_with_the_reason(there: Cluster) -> None:
    """Without the admission policy nvshare-kubelet refuses the pod, and it is not replaced."""
    there.kubectl("delete", f"--kustomize={WORK}/packaging/kubernetes/shares")
    one = deployment("many")
    one["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"nvshare.com/gpu": 2}}
    there.apply(one)

    def said() -> str:
        return there.kubectl("get", "events", "--output=jsonpath={.items[*].message}")

    there.until(lambda: "2 shares of" in said(), "the reason is an event")
    (made,) = there.get("pods")["items"]
    assert made["status"]["phase"] == "Pending"
    there.kubectl("delete", "deployment", "many")
    there.until(lambda: not there.get("pods")["items"], "it is gone")


def test_page_commands_switch_from_units_to_daemon_set_to_another_sharing_strategy(
    there: Cluster
) -> None:
    page = "kubernetes.md"
    follow(there, page, "Images")
    *commands, status = sections(page)["As a DaemonSet"]
    for command in commands:
        run(there, page, command)
    # Without a kube-proxy, pods connect to the API server's own address.
    there.kubectl("set", "env", "--namespace=nvshare", "daemonset/gpu-sharing",
                  "--containers=nvshare-kubelet", *(f"{key}={SERVER[key]}" for key in SERVER))
    run(there, page, status)
    assert strategies(there) == {"nvshared"}
    assert there.allocatable() == 10
    check_update(there)
    (first,) = sections("strategies.md")["Strategies"]
    run(there, "strategies.md", first)
    apply, look = sections("strategies.md")["See whether it works"]
    run(there, "strategies.md", apply)
    assert "gpu-validation" in run(there, "strategies.md", look)
    there.kubectl("delete", "deployment", "gpu-validation")
    there.kubectl("delete", f"--kustomize={WORK}/packaging/kubernetes/overlays/nvshared")


def check_update(cluster: Cluster) -> None:
    """An update of the DaemonSet as in the page rejects no pod of those that arrive meanwhile."""
    apply, status = sections("kubernetes.md")["Update"]
    run(cluster, "kubernetes.md", apply)
    names = []
    cluster.kubectl("rollout", "restart", "--namespace=nvshare", "daemonset/gpu-sharing")
    for number in range(20):
        names.append(f"arrives{number}")
        cluster.apply(pod(names[-1]))
    run(cluster, "kubernetes.md", status)
    for number, name in enumerate(names):       # the node has ten shares
        cluster.until(partial(cluster.shares, name), "it runs")
        if number < 10:
            cluster.finish(name)
    cluster.kubectl("delete", "pod", "--all")
    assert not cluster.get("node", NAME)["spec"].get("taints")


@pytest.mark.usefixtures("helm")
def test_helm_commands_install_upgrade_roll_back_and_uninstall(there: Cluster) -> None:
    install, upgrade, back, uninstall = sections("kubernetes.md")["With Helm"]
    run(there, "kubernetes.md", install)
    there.until(lambda: there.allocatable() == 10, "it offers shares")
    run(there, "kubernetes.md", upgrade)
    there.until(lambda: there.allocatable() == 4, "it offers fewer")
    run(there, "kubernetes.md", back)
    there.until(lambda: there.allocatable() == 10, "it offers as many as before")
    run(there, "kubernetes.md", uninstall)
    there.until(lambda: there.allocatable() == 0, "no share is left")
    there.until(lambda: not there.get("pods", "--namespace=nvshare")["items"], "no pod is left")
    assert not there.get("node", NAME)["spec"].get("taints")


def strategies(cluster: Cluster) -> set[str]:
    listed = cluster.get("pods", "--namespace=nvshare")["items"]
    return {one["metadata"]["labels"]["nvshare.com/strategy"] for one in listed
            if all(each.get("ready") for each in one["status"].get("containerStatuses", [{}]))}


def test_claim_page_commands_serve_a_claim_and_remove_all_files(there: Cluster) -> None:
    there.run("systemctl", "enable", "nvshare-kubelet")
    there.heed_cdi_devices(support=True)
    follow(there, "kubernetes.md", "Claims")
    there.until(lambda: there.get("resourceslices")["items"], "the GPU is offered")
    there.apply(claim("it", {"compute": "50"}))
    there.start_pods(pod("it", claimed="it"))
    follow(there, "kubernetes.md", "Removal")
    assert not there.kubectl("get", "pod", "it", "--ignore-not-found")
    for path in ("/var/lib/nvshare-kubelet", "/var/lib/nvshared", "/var/lib/nvshare",
                 "/var/run/cdi/nvshare.com-gpu.json"):
        assert there.run("test", "-e", path, check=False).returncode == 1, path
    there.until(lambda: there.is_ready(), "the node is ready")
    kinds = "validatingadmissionpolicies,mutatingadmissionpolicies,clusterroles,deviceclasses"
    left = there.kubectl("get", kinds, "--output=name")
    assert "nvshare" not in left
    there.until(lambda: there.allocatable() == 0, "no share is left")
    assert not there.get("node", NAME)["spec"].get("unschedulable")


def test_every_command_of_the_kubernetes_pages_was_run_by_a_test(there: Cluster) -> None:
    if "helm" not in programs.find() and programs.fetch():
        RAN.update(("kubernetes.md", command) for command in sections("kubernetes.md")["With Helm"])
    printed = {(page, command) for page in PAGES
               for commands in sections(page).values() for command in commands}
    assert {command for _, command in printed - RAN} == set()
