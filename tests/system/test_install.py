# SPDX-License-Identifier: Apache-2.0
"""Installation by an administrator: install, enable, show the status."""

import json

import pytest

from nvshared import __version__
from tests.system import card
from tests.system.conftest import install
from tests.system.container import Container
from tests.system.packages import Packages
from tests.system.tree import KUBELETS

PAGES = ("nvshared", "nvsharectl", "nvshared.conf", "com.nvshare", "libnvshare")
COMPLETIONS = (
    "/usr/share/bash-completion/completions/nvsharectl",
    "/usr/share/zsh/vendor-completions/_nvsharectl",
    "/usr/share/fish/vendor_completions.d/nvsharectl.fish",
)


@pytest.fixture(scope="module")
def said(bare: Container, built: Packages) -> str:
    """apt's output of the installation of the packages."""
    return install(bare, built)


def test_apt_installs_package_and_dependencies(bare: Container, said: str) -> None:
    assert "Setting up nvshared" in said
    assert bare.output("dpkg", "--audit") == ""
    asked = ("dpkg-query", "--show", "-f", "${Version}", "nvshared")
    assert bare.output(*asked) == __version__
    assert bare.output("nvsharectl", "--version") == f"nvsharectl {__version__}"
    assert bare.output("nvshared", "--version", user="alice") == f"nvshared {__version__}"


def test_debian_build_leaves_exactly_the_packages_nvshared_and_libnvshare(built: Packages) -> None:
    """README: apt install ./dist/*.deb"""
    folder = built.nvshared.parent
    assert set(folder.glob("*.deb")) == {built.nvshared, built.libnvshare}


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("name", ["README.md", "changelog", "docs/saving.md"])
def test_package_installs_its_documentation(bare: Container, name: str) -> None:
    assert bare.output("sh", "-c", f"zcat --force /usr/share/doc/nvshared/{name}*")


@pytest.mark.usefixtures("said")
def test_installed_units_are_disabled_and_inactive(bare: Container) -> None:
    for unit in ("nvshared.service", "nvshared.socket"):
        assert bare.run("systemctl", "is-enabled", unit, check=False).stdout == "disabled\n"
        assert bare.run("systemctl", "is-active", unit, check=False).stdout == "inactive\n"


@pytest.mark.usefixtures("said")
def test_demo_runs_for_a_user_without_gpu_and_daemon(bare: Container) -> None:
    demo = bare.start("nvsharectl", "demo", user="alice")
    said, _ = demo.communicate()
    assert demo.returncode == 0, said
    assert "this machine has no NVIDIA driver" in said
    assert "holds the GPU" in said


@pytest.mark.usefixtures("said")
def test_daemon_without_a_driver_fails_once_with_the_reason(bare: Container) -> None:
    done = bare.run("systemctl", "start", "nvshared", check=False)
    assert done.returncode != 0
    bare.until(
        lambda: bare.output("systemctl", "show", "nvshared", "-P", "ActiveState") == "failed",
        "the service has given up")
    # One failed start only: later, the socket starts the daemon when a program finds a driver.
    journal = bare.output("journalctl", "-u", "nvshared", "-t", "nvshared", "-o", "cat")
    (sentence,) = journal.splitlines()
    assert "install the NVIDIA driver" in sentence
    assert bare.output("systemctl", "show", "nvshared", "-P", "StatusText") in sentence
    assert bare.output("systemctl", "is-active", "nvshared.socket") == "active"
    for command in ("status", "doctor"):
        done = bare.run("nvsharectl", command, user="alice", check=False)
        assert done.returncode != 0
        assert "install the NVIDIA driver" in done.stdout + done.stderr
    bare.run("systemctl", "stop", "nvshared.service", "nvshared.socket")
    bare.run("systemctl", "reset-failed")


@pytest.mark.usefixtures("said")
def test_systemctl_enable_now_starts_service_and_socket_of_nvshared(bare: Container) -> None:
    card.plug_in(bare)
    bare.run("systemctl", "enable", "--now", "nvshared")
    for unit in ("nvshared.service", "nvshared.socket"):
        assert bare.output("systemctl", "is-enabled", unit) == "enabled"
        assert bare.output("systemctl", "is-active", unit) == "active"
    assert "1 GPU" in bare.output("systemctl", "show", "nvshared", "-P", "StatusText")
    assert bare.output("systemctl", "show", "nvshared", "-P", "User") == "nvshare"
    for user in ("", "alice"):
        assert len(card.status(bare, user)["gpus"]) == 1
    assert "/com/nvshare/gpu/0" in bare.output("busctl", "tree", "com.nvshare", user="alice")


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("user", ["", "alice"], ids=["root", "user"])
def test_doctor_finds_no_fault_after_the_installation(bare: Container, user: str) -> None:
    done = bare.run("nvsharectl", "doctor", "--json", user=user, environment=card.ENVIRONMENT)
    found = json.loads(done.stdout)
    assert found["healthy"], done.stdout
    grades = {one["topic"]: one["grade"] for one in found["findings"]}
    for topic in ("library", "nvshared.socket", "nvshared.service", "socket", "bus", "version"):
        assert grades[topic] == "ok", done.stdout


@pytest.mark.usefixtures("said")
def test_daemon_restart_logs_no_traceback_or_rejected_message(bare: Container) -> None:
    bare.run("systemctl", "restart", "nvshared")
    journal = bare.output("journalctl", "--boot", "--no-pager", "--output=cat")
    assert "Rejected send message" not in journal
    assert "Traceback" not in journal


@pytest.mark.usefixtures("said")
def test_enabled_service_is_active_after_a_reboot(bare: Container) -> None:
    bare.reboot()
    assert bare.output("systemctl", "is-system-running") == "running"
    assert bare.output("systemctl", "is-active", "nvshared") == "active"


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("page", PAGES)
def test_manual_pages_are_installed_without_warnings(bare: Container, page: str) -> None:
    path = bare.output("man", "--where", page)
    done = bare.run("man", "--warnings", "--local-file", path, environment={"MANWIDTH": "100"})
    assert done.stderr == ""
    assert "SEE ALSO" in done.stdout


@pytest.mark.usefixtures("said")
@pytest.mark.parametrize("path", COMPLETIONS)
def test_shell_completion_is_installed(bare: Container, path: str) -> None:
    assert "nvsharectl" in bare.output("cat", path)


@pytest.mark.usefixtures("said")
def test_nvshare_kubelet_runs_with_debians_grpc(bare: Container) -> None:
    without = bare.run("nvshare-kubelet", check=False)
    assert "install python3-grpcio, python3-protobuf and python3-yaml" in without.stderr
    bare.run("apt-get", "install", "-y", *KUBELETS)
    done = bare.run("nvshare-kubelet", check=False)
    assert "there is no folder /var/lib/kubelet" in done.stderr
