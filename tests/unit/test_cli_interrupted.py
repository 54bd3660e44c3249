# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the installed command nvsharectl starts, and while it waits for nvshared."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from nvshared.errors import ExitCode

ROOT = Path(__file__).parents[2]
HOME = "/usr/lib/nvshared"              # where packages install the modules


def command(folder: Path, modules: Path) -> list[str]:
    """The installed command, with its modules in another folder."""
    text = (ROOT / "packaging" / "command.py").read_text()
    assert f'"{HOME}"' in text
    path = folder / "nvsharectl"
    path.write_text(text.replace(f'"{HOME}"', repr(str(modules))))
    return [sys.executable, str(path)]


def test_interrupted_start_of_the_installed_command_prints_no_traceback(tmp_path: Path) -> None:
    modules = tmp_path / "nvshared" / "cli"
    modules.mkdir(parents=True)
    for file in (modules.parent / "__init__.py", modules / "__init__.py"):
        file.touch()
    # Ctrl-C comes while this module is loaded.
    (modules / "main.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(): pass\n")
    ended = subprocess.run(command(tmp_path, tmp_path), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_interrupted_wait_of_the_installed_command_ends_with_its_exit_status(
        tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "bus"))
        silent.listen()
        process = subprocess.Popen(
            [*command(tmp_path, ROOT), "--bus", f"unix:path={tmp_path}/bus"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        accepted, _ = silent.accept()
        with accepted:
            process.send_signal(signal.SIGINT)
            assert process.communicate() == ("", "")
    assert process.returncode == ExitCode.INTERRUPTED
