# SPDX-License-Identifier: Apache-2.0
"""Parking by nvshare-checkpoint, which systemd starts as root for the unprivileged daemon."""

from tests.system.card import ENVIRONMENT, Launch, clients
from tests.system.container import Container

ASK = """
import socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect('/run/nvshare-checkpoint/checkpoint.sock')
one.sendall(f"park {sys.argv[1]}\\n".encode())
assert one.recv(4096) == b""
"""
# Root of a container, with the capabilities that container engines give it.
CONTAINED = (
    "unshare", "--mount", "--pid", "--fork", "setpriv", "--no-new-privs",
    *(f"--{kind}=-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,"
      "+setpcap,+net_bind_service,+sys_chroot,+kill" for kind in ("bounding-set", "inh-caps")))


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
    for user in ("alice", "bob"):
        done = running.run("python3", "-c", ASK, pid, user=user, check=False)
        assert "PermissionError" in done.stderr
    done = running.run(*CONTAINED, "python3", "-c", ASK, pid, check=False)
    assert "ConnectionResetError" in done.stderr
    running.until(
        lambda: "of uid 0: it is in other namespaces, as in a container" in running.output(
            "journalctl", "--no-pager", "--unit=nvshare-checkpoint@*"), "the refusal is logged")
    assert clients(running)[0]["state"] == "suspended"

    running.run("nvsharectl", "park", pid, user="alice")
    assert clients(running)[0]["state"] == "parked"
    assert "running" in running.output(
        "systemctl", "list-units", "--plain", "--no-legend", "nvshare-checkpoint@*")
    running.run("nvsharectl", "resume", pid, user="alice")
    program.finish()
