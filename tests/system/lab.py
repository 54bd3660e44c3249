# SPDX-License-Identifier: Apache-2.0
"""A lab's server: JupyterHub set up by docs/lab-server.md, and ten users."""

import json
import re
import subprocess
from collections.abc import Iterable
from typing import Any

from tests import pages
from tests.integration.programs import PRELUDE
from tests.system import card
from tests.system.container import PATIENCE, Container
from tests.system.packages import ROOT

# The packages that docs/lab-server.md installs, from Debian and from PyPI.
_DEBIAN, _VENV, _PIP = pages.block(
    "docs/lab-server.md", "apt-get install --no-install").splitlines()
DEBIANS = tuple(_DEBIAN.split()[3:])
VENV = _VENV.split()[3]
PYPIS = tuple(_PIP.split()[2:])

STUDENTS = ("ada", "bela", "carl", "dora", "emil", "fay")
RESEARCHERS = ("gus", "hana", "ivo", "jana")
PEOPLE = (*STUDENTS, *RESEARCHERS)
PASSWORD = "in the lab"
NOTEBOOK = "train.ipynb"

CONFIG = "/etc/jupyterhub/jupyterhub_config.py"
BROWSER = "/usr/local/lib/browser.py"
KERNELS = "/usr/local/lib/kernels.ptx"

# The first cell of each notebook. Its kernels compute integers, so any wrong word shows. The cell
# compares one word in SOME, which includes words of each page and each block.
FIRST = PRELUDE + f'''
module, words, SOME = c_void_p(), c_uint64(), 509
with open("{KERNELS}", "rb") as file:
    call("cuModuleLoadData", byref(module), file.read() + bytes(1))
def launch(name, *values):
    function = c_void_p()
    call("cuModuleGetFunction", byref(function), module, name)
    values = [c_uint64(value) for value in values]
    passed = (c_void_p * len(values))(*(ctypes.cast(byref(one), c_void_p) for one in values))
    call("cuLaunchKernel", function, *[c_uint(1)] * 6, c_uint(0), None, passed, None)
def fill(mib, seed):
    "Words that are known, on the GPU."
    global count, steps, first
    count, steps, first = mib * MIB // 8, 0, seed
    call("cuMemAlloc_v2", byref(words), mib * MIB)
    launch(b"nvshare_fill", words.value, count, seed)
def train(rounds):
    global steps
    for _ in range(rounds):
        launch(b"nvshare_advance", words.value, count, 1)
    steps += rounds
    call("cuCtxSynchronize")
def right():
    "Whether each word is what so many steps make of it."
    factor, addend, mask = 1, 0, (1 << 64) - 1
    for _ in range(steps):
        factor = factor * 0x5851F42D4C957F2D & mask
        addend = (addend * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & mask
    there = memoryview(get(words.value, 8 * count)).cast("Q")
    return all(
        there[i] == ((first + i * 0x9E3779B97F4A7C15) * factor + addend) & mask
        for i in range(0, count, SOME))
'''


class Lab:
    """The hub, with the browsers of all users; a context manager that closes them."""

    def __init__(self, container: Container, spawner: str) -> None:
        """Follows docs/lab-server.md, after the step that installs nvshared. `spawner`: the value
        of c.JupyterHub.spawner_class."""
        self.container, self.spawner = container, spawner
        container.run("sh", "-ec", pages.block(
            "docs/lab-server.md", "cd /usr/share/doc/nvshared/examples"))
        container.run("sh", "-ec", "\n".join(re.findall(
            "groupadd .+", pages.block("docs/lab-server.md", "groupadd"))))
        for user in PEOPLE:
            group = "students" if user in STUDENTS else "researchers"
            container.run(
                "useradd", "--create-home", "--shell", "/bin/bash", "--groups", group, user)
        container.run("chpasswd", given="".join(f"{user}:{PASSWORD}\n" for user in PEOPLE))
        # Not in docs/lab-server.md: settings of the simulated card, timeouts for a busy machine.
        settings = json.dumps(card.ENVIRONMENT)
        container.run("tee", "--append", CONFIG, given=(
            f"c.JupyterHub.spawner_class = {spawner!r}\n"
            f"c.Spawner.environment.update({settings})\n"
            f"c.Spawner.start_timeout = c.Spawner.http_timeout = {PATIENCE:.0f}\n"))
        # JupyterLab's web pages, which no test uses, would cost each server 2 s of CPU time.
        drawing = dict.fromkeys(("jupyterlab", "jupyter_lsp", "notebook_shim"), False)
        # By TCP, kernels of two servers that start at once may choose the same port, and one ends.
        container.write("/etc/jupyter/jupyter_server_config.json", json.dumps(
            {"ServerApp": {"jpserver_extensions": drawing},
             "KernelManager": {"transport": "ipc"}}))
        container.copy(ROOT / "libhook/demo/kernels.ptx", KERNELS)
        container.copy(ROOT / "tests/system/browser.py", BROWSER)
        container.run("sh", "-ec", pages.block("docs/lab-server.md", "systemctl daemon-reload"))
        container.until(self.answers, "JupyterHub answers")
        self._browsers = container.start(f"{VENV}/bin/python", BROWSER, stdin=subprocess.PIPE)
        self._asked = 0
        self._answered: dict[int, Any] = {}

    def answers(self) -> bool:
        return self.container.run(
            f"{VENV}/bin/python", "-c",
            "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/hub/health')",
            check=False).returncode == 0

    def close(self) -> None:
        self._browsers.kill()
        self._browsers.communicate()

    def ask(self, user: str, verb: str, *arguments: str) -> int:
        self._asked += 1
        assert self._browsers.stdin is not None
        self._browsers.stdin.write(json.dumps([self._asked, user, verb, *arguments]) + "\n")
        self._browsers.stdin.flush()
        return self._asked

    def answer(self, number: int) -> Any:
        """Waits for the answer to a browser's request and returns it. Raises AssertionError."""
        assert self._browsers.stdout is not None
        while number not in self._answered:
            line = self._browsers.stdout.readline()
            assert line.startswith("["), f"the browsers say {line}"
            of, result = json.loads(line)
            self._answered[of] = result
        result = self._answered.pop(number)
        assert not (isinstance(result, dict) and "failed" in result), f"{result}\n{self.story()}"
        return result

    def each(self, users: Iterable[str], verb: str, *arguments: str) -> list[Any]:
        """Sends the same request by several browsers at once; returns their answers."""
        return [self.answer(number) for number in [
            self.ask(user, verb, *arguments) for user in users]]

    def run(self, cells: dict[str, str]) -> dict[str, str]:
        asked = {user: self.ask(user, "run", cell) for user, cell in cells.items()}
        outcomes = {user: self.answer(number) for user, number in asked.items()}
        wrong = {user: one for user, one in outcomes.items() if one["raised"] or one["lost"]}
        assert not wrong, f"{wrong}\n{self.story()}"
        return {user: one["stdout"].strip() for user, one in outcomes.items()}

    def story(self) -> str:
        """The logs of hub and daemon, for the report of a failure."""
        hub = self.container.run(
            "journalctl", "--no-pager", "--lines=40", "--unit=jupyterhub", "--unit=jupyter-*")
        return f"{hub.stdout}\n{self.container.story()}"
