# SPDX-License-Identifier: Apache-2.0
"""Modules loaded into Python programs do not disturb them."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvshared import library

STATE = """
import sys, threading
import importlib.util
importlib.util.find_spec("torch")       # as `import torch` does
print("nvshare_caches" in sys.modules, len(threading.enumerate()), {folder!r} in sys.path)
print(getattr(sys.modules.get("sitecustomize"), "__file__", None))
"""


def states(folder: Path, *options: str, wanted: str = "1") -> list[str]:
    """Modules loaded by a Python with nvshare's folder and `folder` in PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, *options, "-c", STATE.format(folder=str(library.program()))],
        env={**os.environ, "NVSHARE_TRIM_CACHES": wanted,
             "PYTHONPATH": f"{library.program()}:{folder}"},
        capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_modules_loaded_into_programs_parse_as_python_3_8() -> None:
    for path in library.program().rglob("*.py"):
        ast.parse(path.read_text(), path.name, feature_version=(3, 8))


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_modules_loaded_into_programs_have_no_effect_without_the_library(
        tmp_path: Path, wanted: str) -> None:
    assert states(tmp_path, wanted=wanted)[0] == "True 1 False"


@pytest.mark.parametrize("stderr", ["None", "Full()"])
def test_import_of_a_framework_succeeds_where_neither_a_thread_starts_nor_stderr_works(
        stderr: str) -> None:
    script = f"""
import ctypes, importlib.util, sys, threading
def refuse(*_):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
ctypes.CDLL = lambda _: type("Library", (), {{"nvshare_trim_wait": print}})
class Full:
    def write(self, _):
        raise OSError(28, "No space left on device")
    def flush(self):
        pass
sys.stderr = {stderr}
print(importlib.util.find_spec("torch") is None)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env={**os.environ, "NVSHARE_TRIM_CACHES": "1", "PYTHONPATH": str(library.program())})
    assert (done.returncode, done.stdout[:2]) == (0, "Tr"), done.stderr


def test_second_sitecustomize_module_is_loaded_after_the_module_of_nvshare(tmp_path: Path) -> None:
    assert states(tmp_path, "-s")[1].endswith("sitecustomize.py")       # the module of nvshare
    theirs = tmp_path / "sitecustomize.py"
    theirs.write_text("print('theirs')")
    assert states(tmp_path) == ["theirs", "True 1 False", str(theirs)]


def test_failing_sitecustomize_of_a_program_raises_the_same_error_as_without_nvshare(
        tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module")

    def said(*folders: Path) -> str:
        return subprocess.run([sys.executable, "-c", ""], capture_output=True, text=True,
                              check=True,
                              env={**os.environ, "PYTHONPATH": ":".join(map(str, folders))}).stderr

    assert "no_such_module" in said(tmp_path)
    assert said(library.program(), tmp_path) == said(tmp_path)


FORKED = """
import os
from nvshared import program

released = []
program.release = lambda: released.append(os.getpid())
with program.turn():
    child = os.fork()
    with program.turn():
        pass
    assert released == ([] if child else [os.getpid()])
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert released == [os.getpid()]
"""


def test_turn_in_a_child_that_is_forked_within_a_turn_releases_at_its_end() -> None:
    subprocess.run([sys.executable, "-c", FORKED], cwd=Path(__file__).parents[2],
                   check=True)


# Positional parameters of the methods of torch_memory_saver 0.0.10, without self.
SAVER = {
    "region": ("tag", "enable_cpu_backup", "enable_disk_backup", "cpu_backup_backend"),
    "cuda_graph": ("cuda_graph", "pool", "stream", "capture_error_mode", "tag",
                   "enable_cpu_backup", "cpu_backup_backend"),
    "disable": (), "pause": ("tag",), "resume": ("tag",), "get_cpu_backup": ("x", "zero_copy"),
    "set_disk_backup_dir": ("path",)}


@pytest.mark.parametrize("method", SAVER)
def test_torch_memory_saver_adapter_takes_the_parameters_of_the_original(
        method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(library.program() / "adapters")
    saver = importlib.import_module("torch_memory_saver").torch_memory_saver
    parameters = inspect.signature(getattr(saver, method)).parameters.values()
    assert tuple(one.name for one in parameters if one.kind is not one.VAR_KEYWORD) == SAVER[method]


def test_notebook_magic_reports_the_notebooks_memory_and_the_holder_of_the_gpu(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(library.program())
    report = importlib.import_module("nvshare").report
    mine = {"id": 1, "gpu": 0, "pid": 11, "tenant": "user:ada", "command": "train.ipynb",
            "resident": 3 << 20, "pinned": 1 << 20, "swapped": 3 << 29, "held_usec": 4_400_000,
            "waited_usec": 12_000_000}
    other = {**mine, "id": 2, "pid": 12, "tenant": "user:bela", "command": "test.ipynb"}
    status = {"gpus": [{"index": 0, "holders": [2], "queue_length": 1}], "clients": [mine, other]}
    assert report(status, 11).splitlines() == [
        "gpu0: held by user:bela (test.ipynb), 1 waiting",
        "      yours: 4 MiB on the GPU, 1.5 GiB swapped; held for 4 s, waited for 12 s"]
    assert report(status, 13).splitlines()[-1] == (
        "This notebook has no memory on a GPU that it shares.")


def test_notebook_magic_prints_the_error_as_a_sentence_if_no_daemon_answers(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(library.program())
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    importlib.import_module("nvshare").nvshare()
    said = capsys.readouterr().out
    assert said.startswith("nvsharectl: cannot connect to the message bus")
    assert said.count("\n") == 1
    assert "{" not in said
