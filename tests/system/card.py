# SPDX-License-Identifier: Apache-2.0
"""The simulated GPU in the container, which the daemon and the programs of all users share."""

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.system.container import PATIENCE, Container

HOME = "/usr/lib/nvshared/nvshared/lib"
FOLDER = "/dev/shm/nvshare-simulator"   # not hidden or read-only in the service's sandbox
MEMORY = 256                            # MiB
WORKLOAD = f"{HOME}/nvshare-workload"

# Variables of the daemon and of every program; without these variables there is no GPU.
ENVIRONMENT = {
    "LD_LIBRARY_PATH": f"{HOME}/simulator", "NVSHARE_SIM_DIR": FOLDER,
    "NVSHARE_SIM_MEMORY": f"{MEMORY}M",
}


def plug_in(container: Container) -> None:
    # All users may write the simulator's state, as all users may open a real card's /dev/nvidia0.
    container.write("/etc/tmpfiles.d/simulator.conf", f"d {FOLDER} 0755\nf {FOLDER}/gpus 0666\n")
    container.run("systemd-tmpfiles", "--create", "simulator.conf")
    settings = "".join(f"Environment={name}={value}\n" for name, value in ENVIRONMENT.items())
    drop_in(container, "simulator", settings)
    # A simulated context takes 8 MiB. The default reserve for contexts is made for larger cards:
    # ten programs that start at once would leave no memory of this card for data.
    container.write(
        "/etc/nvshare/nvshared.conf.d/simulator.conf", "[gpu]\ncontext-reserve = 8MiB\n")


def drop_in(container: Container, name: str, lines: str) -> None:
    """Adds lines to the [Service] section of nvshared.service, as `systemctl edit` does."""
    container.write(f"/etc/systemd/system/nvshared.service.d/{name}.conf", f"[Service]\n{lines}")
    container.run("systemctl", "daemon-reload")


class Program:
    """A program that computes on the GPU and checks its results."""

    def __init__(
        self, container: Container, user: str, *, memory: int, steps: int | None = None,
        cpu_ms: int = 0, kernel_us: int = 0, seed: int = 1, shared: bool = True,
        environment: dict[str, str] | None = None, before: Sequence[str] = (),
    ) -> None:
        """`memory`: MiB. `steps`: number of steps; None: until finish(). `cpu_ms`: ms of CPU work
        after each step. `kernel_us`: us of GPU work for each 8 MiB in each step. `shared`: with
        libnvshare.so preloaded. `environment`: variables added to ENVIRONMENT. `before`: a
        command and arguments that start the program, such as `systemd-run`."""
        command = [
            WORKLOAD, "--json", "--memory", f"{memory}MiB", "--chunk", "8MiB",
            "--cpu-ms", str(cpu_ms), "--kernel-us", str(kernel_us), "--seed", str(seed),
            # With one round the program can check many steps without repeating each step.
            *(("--until-told", "--rounds", "1") if steps is None else ("--steps", str(steps))),
        ]
        if shared:
            command = ["nvsharectl", "run", "--", *command]
        self._process = container.start(
            *before, *command, user=user, environment=ENVIRONMENT | (environment or {}),
            stdin=subprocess.PIPE)
        self._said: list[str] = []
        self._allocated = threading.Event()
        # A thread reads the output at once: an unread pipe would fill up and stop the program.
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._said.append(line)
                if '"event": "allocated"' in line:
                    self._allocated.set()
        self._allocated.set()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        return "".join(self._said)

    def await_memory(self) -> None:
        """Returns when the program has allocated all its memory, or has ended."""
        self._allocated.wait()

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def finish(self) -> None:
        """Ends the program. Fails with its output unless its results were right."""
        self.tell()
        try:
            self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            said = self.kill()
            raise AssertionError(f"the program did not end in ten minutes:\n{said}") from None
        self._listener.join()
        assert self._process.returncode == 0, self.said
        checked = [line for line in self._said if '"event": "checked"' in line]
        assert [json.loads(line)["right"] for line in checked] == [True], self.said

    def kill(self) -> str:
        self.tell()
        self._process.kill()
        self._process.wait()
        self._listener.join()
        return self.said


Launch = Callable[..., Program]


def finish(programs: Sequence[Program]) -> None:
    """Ends all programs together, so that no program waits for the turn of another."""
    for program in programs:
        program.tell()
    for program in programs:
        program.finish()


def status(container: Container, user: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        container.output("nvsharectl", "status", "--json", user=user))
    return found


def clients(container: Container) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = status(container)["clients"]
    return found


def tq(container: Container) -> int:
    """Returns the quantum in seconds, which any user may read over D-Bus."""
    said = container.output(
        "busctl", "get-property", "com.nvshare", "/com/nvshare", "com.nvshare.Manager", "TQ")
    return int(said.removeprefix("u "))
