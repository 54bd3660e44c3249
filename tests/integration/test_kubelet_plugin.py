# SPDX-License-Identifier: Apache-2.0
"""The device plugin, with a simulated kubelet and the real daemon on two simulated GPUs."""

import signal
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from nvshared.containers.cdi import LINE
from nvshared.control import Daemon as Control
from nvshared.errors import NvshareError
from nvshared.kubelet.card import card_of
from tests.integration.conftest import ROOT, wait_until
from tests.integration.kubelet_node import Node


@pytest.fixture
def sharing(node: Node) -> Node:
    """A node with a running daemon and plugin, which offers ten shares of each card."""
    node.daemon()
    node.start()
    node.allocatable(20)
    return node


def test_device_plugin_reports_ready_after_registration(node: Node) -> None:
    """Kubelet rejects for good a pod that is bound before the plugin reports ready."""
    node.daemon()
    node.start()
    assert "kubelet has registered nvshare.com/gpu" in node.log.read_text()
    node.kill_plugin()
    node.log.write_text("")
    node.kubelet.stop()
    node.start()                        # kubelet may start after the plugin
    assert "kubelet has registered" not in node.log.read_text()
    node.kubelet.start()
    node.allocatable(20)


def uuids(node: Node) -> list[str]:
    return [f"GPU-{UUID(raw.hex())}" for raw in node.site.uuids]


def test_container_gets_library_socket_and_card(sharing: Node) -> None:
    first, second = uuids(sharing)
    assert set(sharing.kubelet.devices()) == {
        f"{uuid}::{number}" for uuid in (first, second) for number in range(10)}
    preferred = sharing.kubelet.prefers(sorted(sharing.kubelet.devices()), 2)
    assert {card_of(share) for share in preferred} == {first, second}
    (answer,) = sharing.kubelet.allocate([f"{second}::7"])
    assert dict(answer.envs) == {
        "NVSHARE_SOCKET": "/run/nvshare/sock", "NVSHARE_REQUIRED": "1",
        "NVIDIA_VISIBLE_DEVICES": second,
    }
    mounts = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
    assert all(mount.read_only for mount in answer.mounts)
    assert (mounts["/run/nvshare"] / "sock").is_socket()
    assert mounts["/etc/ld.so.preload"].read_text() == LINE
    library = mounts["/usr/lib/nvshare"] / "libnvshare.so"
    assert library.read_bytes() == (ROOT / "libhook/build/libnvshare.so").read_bytes()
    assert library.stat().st_mode & 0o777 == 0o644      # a container may run as any user
    (answer,) = sharing.kubelet.allocate([f"{second}::1", f"{first}::1"])
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == f"{first},{second}"


def test_container_that_requests_two_shares_of_a_card_does_not_start(sharing: Node) -> None:
    """The container gets a missing device, as a refused pod would be replaced many times."""
    card = uuids(sharing)[0]
    refused, other = sharing.kubelet.allocate([f"{card}::0", f"{card}::1"], [f"{card}::2"])
    assert not refused.envs
    assert not refused.mounts
    (missing,) = refused.devices
    assert f"2 shares of {card}, which are no more than one" in missing.host_path
    assert missing.host_path.startswith("/dev/")
    assert not Path(missing.host_path).exists()
    assert other.envs["NVSHARE_REQUIRED"] == "1"
    assert "there is no share 'GPU-none::0'" in sharing.refused("GPU-none::0")


def test_card_allocated_by_another_plugin_is_not_shared(sharing: Node) -> None:
    """The first device plugin that allocates a GPU keeps it."""
    first, second = uuids(sharing)
    sharing.kubelet.give_away("nvidia.com/gpu", first)
    assert f"{first} is handed out as nvidia.com/gpu already" in sharing.refused(f"{first}::0")
    sharing.allocatable(10)
    sharing.kubelet.allocate([f"{second}::0"])
    same = f"{second}::0"               # NVIDIA's plugin uses the same names of shares
    sharing.kubelet.give_away("nvidia.com/gpu", same, ours=[same])
    assert f"{second} is handed out as nvidia.com/gpu already" in sharing.refused(same)
    # a share of this plugin is no conflict
    sharing.kubelet.give_away("nvshare.com/gpu", f"{first}::0")
    sharing.allocatable(20)


def test_shares_are_withdrawn_while_the_daemon_is_down(sharing: Node) -> None:
    sharing.kill_daemon()
    assert "nvshared is not running" in sharing.refused(f"{uuids(sharing)[0]}::0")
    sharing.allocatable(0)
    assert len(sharing.kubelet.devices()) == 20            # unhealthy, but still listed
    sharing.daemon()
    sharing.allocatable(20)
    sharing.kubelet.allocate([f"{uuids(sharing)[0]}::0"])
    assert sharing.kubelet.registrations == 1


def test_shares_are_withdrawn_while_the_daemon_hangs(sharing: Node) -> None:
    (daemon,) = sharing.site.started
    daemon.send_signal(signal.SIGSTOP)
    sharing.allocatable(0)
    assert "did not answer within 5 seconds" in sharing.refused(f"{uuids(sharing)[0]}::0")
    daemon.send_signal(signal.SIGCONT)
    sharing.allocatable(20)


def test_shares_are_offered_again_after_a_restart_of_the_bus(sharing: Node) -> None:
    sharing.bus.stop()
    sharing.allocatable(0)
    sharing.bus.start()
    sharing.kill_daemon()
    sharing.daemon()
    sharing.allocatable(20)


def test_stopped_kubelet_is_a_fault_of_each_daemon_until_kubelet_runs_again(sharing: Node) -> None:
    said = ("nvshare-kubelet does not reach kubelet, so pods get no shares of GPUs: kubelet takes "
            f"no connections at {sharing.kubelet.folder}/device-plugins/kubelet.sock")

    def faults() -> list[str]:
        with suppress(NvshareError), Control(sharing.bus.address) as control:
            return [one.words for one in control.snapshot().faults
                    if one.id == "kubelet-unreached"]
        return ["nvshared does not answer"]

    assert faults() == []
    sharing.kubelet.stop()
    wait_until(lambda: faults() == [said])
    sharing.kill_daemon()
    sharing.daemon()
    wait_until(lambda: faults() == [said])
    sharing.bus.stop()
    sharing.bus.start()
    wait_until(lambda: faults() == [said])
    assert sharing.kubelet.devices() == {}
    sharing.kubelet.start()
    wait_until(lambda: faults() == [])
    sharing.allocatable(20)
    sharing.kubelet.allocate([f"{uuids(sharing)[1]}::3"])


def test_killed_device_plugin_offers_the_same_shares_when_restarted(sharing: Node) -> None:
    (before,) = sharing.kubelet.allocate([f"{uuids(sharing)[0]}::0"])
    line = next(
        Path(mount.host_path) for mount in before.mounts
        if mount.container_path == "/etc/ld.so.preload")
    inode = line.stat().st_ino
    sharing.kill_plugin()
    sharing.allocatable(0)
    sharing.start()
    sharing.allocatable(20)
    (after,) = sharing.kubelet.allocate([f"{uuids(sharing)[0]}::0"])
    assert after == before
    assert line.stat().st_ino == inode                  # running containers have this very file


def test_removed_device_plugin_socket_is_created_again(sharing: Node) -> None:
    (found,) = (sharing.kubelet.folder / "plugins_registry").iterdir()
    found.unlink()
    sharing.kubelet.wait(lambda: sharing.kubelet.registrations == 2)
    sharing.allocatable(20)


def test_device_plugin_offers_its_shares_again_when_another_at_its_path_is_killed(
        sharing: Node, tmp_path: Path) -> None:
    """Two installations of a cluster, each with a folder of its own, may meet on a node."""
    sharing.start("--state", str(tmp_path / "other"), "--replicas", "3")
    sharing.allocatable(6)
    sharing.kill_plugin()
    sharing.allocatable(20)
    sharing.kubelet.allocate([f"{uuids(sharing)[0]}::9"])


def test_device_plugin_refuses_shares_where_the_daemon_listens_on_another_socket(
    node: Node
) -> None:
    node.daemon()
    node.start("--socket", "/nowhere/sock")
    node.kubelet.wait(lambda: node.kubelet.registrations == 1)
    assert "does not listen at /nowhere/sock" in node.refused(f"{uuids(node)[0]}::0")
    assert node.kubelet.allocatable() == 0


def test_second_device_plugin_on_a_node_exits_with_an_error(node: Node) -> None:
    node.start()
    code, said = node.fails()
    assert code == 152
    assert f"another nvshare-kubelet uses {node.state}" in said


def test_nvshare_kubelet_without_kubelet_exits_and_names_the_folder(node: Node) -> None:
    code, said = node.fails("--kubelet", "/nowhere/kubelet")
    assert code == 1
    assert "there is no folder /nowhere/kubelet: kubelet is not on this machine" in said
    assert "--root-dir" in said


def test_shares_of_a_card_are_withdrawn_after_a_hardware_xid_error(sharing: Node) -> None:
    errors = Path(sharing.site.environment["NVSHARE_SIM_DIR"]) / "xid"
    for index, number in ((0, 31), (1, 79)):            # Xid 31 is a program's fault
        errors.write_text(f"{index} {number}")
        wait_until(lambda: not errors.exists())
    sharing.allocatable(10)
    first, second = uuids(sharing)
    assert "an error of GPU 1 that no program causes: Xid 79" in sharing.refused(f"{second}::0")
    sharing.kubelet.allocate([f"{first}::0"])
    sharing.kill_daemon()               # an administrator restarts it after a reset of the GPU
    sharing.daemon()
    sharing.allocatable(20)
