# SPDX-License-Identifier: Apache-2.0
"""Who may give orders to nvshare-checkpoint over its socket, whatever the socket's mode is."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from libhook.tests.simulator.test_simulator_checkpoint import HELPER, program

PATIENCE = 60                           # seconds until a caller must have connected
OWNER = 64321                           # user of the socket's file, as nvshare is by the unit
# Capabilities of root in a container, by default of container engines.
USUAL = ("-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,"
         "+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write")
APART = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--fork")
# Runs a command with another root directory that has the same files.
ELSEWHERE = """
mount -t tmpfs none "$1" && cd / || exit
for one in *; do
    if [ -h "$one" ]; then cp -P "$one" "$1/"
    elif [ -d "$one" ]; then mkdir "$1/$one" && mount --rbind "/$one" "$1/$one" || exit
    fi
done
exec chroot "$@"
"""
# Gives the orders in its arguments, and prints the answers' last lines.
CALL = """
import contextlib, socket, sys
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
for order in sys.argv[2:]:
    said = b""
    with contextlib.suppress(ConnectionError):      # the helper has closed the connection
        one.sendall(order.encode() + b"\\n")
        while b"state " not in said and (more := one.recv(4096)):
            said += more
    print(said.decode().rstrip().rpartition("\\n")[2], flush=True)
"""


def as_user(uid: int) -> list[str]:
    """Other users may be unable to read the checkout, for example below /root."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
            "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


class Endpoint:
    """Listens as systemd does for a unit with Accept=yes: the connection is the helper's input."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.path = folder / "checkpoint.sock"
        self._environment = environment
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._listening.settimeout(PATIENCE)
        self.path.chmod(0o666)
        if os.getuid() == 0:
            os.chown(self.path, OWNER, OWNER)

    def close(self) -> None:
        self._listening.close()

    def serve(self) -> "subprocess.Popen[str]":
        taken, _ = self._listening.accept()
        with taken:
            return subprocess.Popen(
                HELPER, env=self._environment, stdin=taken.fileno(), stdout=taken.fileno(),
                stderr=subprocess.PIPE, text=True)

    def call(self, before: list[str], *orders: str) -> tuple[str, int, str]:
        """What the caller got, and the helper's exit status and line for the journal."""
        caller = subprocess.Popen(
            [*before, sys.executable, "-c", CALL, str(self.path), *orders],
            stdout=subprocess.PIPE, text=True)
        helper = self.serve()
        answers, _ = caller.communicate()
        _, line = helper.communicate()
        assert caller.returncode == 0
        return answers, helper.returncode, line.strip()


@pytest.fixture
def endpoint(environment: dict[str, str]) -> Iterator[Endpoint]:
    with tempfile.TemporaryDirectory(prefix="nvshare-") as name:
        Path(name).chmod(0o755)         # so that the helper alone decides, not the folder
        made = Endpoint(Path(name), environment)
        yield made
        made.close()


def other_root(folder: Path) -> list[str]:
    folder.mkdir()
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ELSEWHERE, "sh",
            str(folder)]


def refused(endpoint: Endpoint, pid: int, before: list[str], uid: int, why: str) -> None:
    answers, code, line = endpoint.call(before, f"state {pid}", f"park {pid}")
    assert (answers.strip(), code) == ("", 3)
    assert line.startswith("nvshare-checkpoint takes no orders from process ")
    assert line.endswith(f" of uid {uid}: {why}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may play a container")
def test_checkpoint_helper_takes_orders_from_the_daemons_user_and_root_of_the_host_alone(
    environment: dict[str, str], endpoint: Endpoint, tmp_path: Path,
) -> None:
    contained = "it is in other namespaces, as in a container"
    root = [*APART, "setpriv", f"--bounding-set={USUAL}", f"--inh-caps={USUAL}",
            "--no-new-privs"]
    with program(environment) as (process, ask):
        refused(endpoint, process.pid, as_user(65534), 65534, "this is not the user of nvshared")
        refused(endpoint, process.pid, root, 0, contained)
        refused(endpoint, process.pid, [*APART, *as_user(OWNER)], OWNER, contained)
        refused(endpoint, process.pid, [*other_root(tmp_path / "root"), *as_user(OWNER)],
                OWNER, "its root directory is another one, as in a container")
        assert ask("read()") == "{7}"
        for before in (as_user(OWNER), []):
            assert endpoint.call(before, f"state {process.pid}", f"park {process.pid}") == (
                "state running\nstate checkpointed\n", 0, "")
            assert endpoint.call(before, f"wake {process.pid}") == ("state running\n", 0, "")
        assert ask("read()") == "{7}"


def test_checkpoint_helper_takes_no_order_from_a_process_that_has_ended(
    environment: dict[str, str], endpoint: Endpoint,
) -> None:
    with program(environment) as (process, ask):
        with socket.socket(socket.AF_UNIX) as kept:
            pid = os.fork()
            if pid == 0:
                kept.connect(str(endpoint.path))
                os._exit(0)
            os.waitpid(pid, 0)
            kept.sendall(f"park {process.pid}\n".encode())
            helper = endpoint.serve()
            _, line = helper.communicate()
        assert (helper.returncode, line) == (
            3, f"nvshare-checkpoint takes no orders from process {pid} of uid {os.getuid()}: "
            "it has ended\n")
        assert ask("read()") == "{7}"


def test_checkpoint_helper_takes_no_order_from_another_user_namespace(
    environment: dict[str, str], endpoint: Endpoint,
) -> None:
    apart = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may make no user namespace")
    with program(environment) as (process, ask):
        refused(endpoint, process.pid, apart, os.getuid(),
                "it is in other namespaces, as in a container")
        assert ask("read()") == "{7}"
