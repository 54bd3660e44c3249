# SPDX-License-Identifier: Apache-2.0
"""The unit that offers containers shared GPUs, from the start to the removal of the package."""

import json

from tests.system.container import Container

OURS = "/run/cdi/nvshare.com-gpu.json"
THEIRS = "/etc/cdi/nvidia.yaml"
TOOLKIT = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits: {env: [NVIDIA_VISIBLE_DEVICES=void]}
devices:
- {name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}
"""


def offered(container: Container) -> list[str]:
    text = container.run("cat", OURS, check=False).stdout
    return [one["name"] for one in json.loads(text)["devices"]] if text else []


def test_service_offers_containers_devices_and_follows_nvidias_specification(
    running: Container
) -> None:
    running.until(lambda: "No CDI specification" in running.output(
        "journalctl", "-u", "nvshare-cdi", "-o", "cat"), "the unit has run")
    failed = running.run("systemctl", "is-failed", "nvshare-cdi", check=False)
    assert failed.stdout.strip() != "failed"
    assert not offered(running)
    running.write(THEIRS, TOOLKIT)
    running.until(lambda: offered(running) == ["all", "0"], "the devices are offered")
    said = running.output("nvsharectl", "containers", user="alice")
    assert "--device nvshare.com/gpu=0" in said
    folder = "/var/lib/nvshare-containers"
    assert running.output("cat", f"{folder}/ld.so.preload", user="alice") == (
        "/usr/lib/nvshare/libnvshare.so")
    running.run("cmp", f"{folder}/library/libnvshare.so",
                "/usr/lib/nvshared/nvshared/lib/libnvshare.so", user="alice")
    running.write(THEIRS, TOOLKIT.replace('"0"', "GPU-0a"))
    running.until(lambda: offered(running) == ["all", "GPU-0a"], "the devices have changed")
    running.run("rm", THEIRS)
    running.until(lambda: not offered(running), "the devices are withdrawn")


def test_reboot_and_removal_of_the_package_leave_no_stale_specification(running: Container) -> None:
    running.write(THEIRS, TOOLKIT)
    running.reboot()
    running.until(lambda: offered(running) == ["all", "0"], "the devices are offered again")
    running.run("apt-get", "remove", "-y", "nvshared")
    assert not offered(running)
    assert running.run("test", "-e", OURS, check=False).returncode
    running.write(THEIRS, TOOLKIT.replace('"0"', "GPU-0a"))
    assert not offered(running)
