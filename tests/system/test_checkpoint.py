# SPDX-License-Identifier: Apache-2.0
"""Parking by nvshare-checkpoint, which systemd starts as root for the unprivileged daemon."""

from tests.system.card import ENVIRONMENT, Launch, clients
from tests.system.container import Container

CONNECT = "import socket; socket.socket(socket.AF_UNIX).connect('/run/nvshare/checkpoint.sock')"


def test_user_may_not_park_programs_of_another_user(running: Container, launch: Launch) -> None:
    lines = "".join(f"Environment={name}={value}\n" for name, value in ENVIRONMENT.items())
    running.write(
        "/etc/systemd/system/nvshare-checkpoint@.service.d/simulator.conf", f"[Service]\n{lines}")
    running.run("systemctl", "daemon-reload")
    program = launch(running, "alice", memory=64)
    program.await_memory()
    pid = str(clients(running)[0]["pid"])
    # A suspended program wants no turn, so it stays parked until `nvsharectl resume`.
    running.run("nvsharectl", "suspend", pid, user="alice")
    running.until(lambda: clients(running)[0]["state"] == "suspended", "its memory is evicted")
    for words in (("park", pid), ("move", pid, "--to", "0"), ("drain", "--gpu", "0")):
        assert running.run("nvsharectl", *words, user="bob", check=False).returncode != 0
        assert clients(running)[0]["state"] == "suspended"
    assert running.run("python3", "-c", CONNECT, user="bob", check=False).returncode != 0

    running.run("nvsharectl", "park", pid, user="alice")
    assert clients(running)[0]["state"] == "parked"
    assert "running" in running.output(
        "systemctl", "list-units", "--plain", "--no-legend", "nvshare-checkpoint@*")
    running.run("nvsharectl", "resume", pid, user="alice")
    program.finish()
