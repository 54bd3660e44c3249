# SPDX-License-Identifier: Apache-2.0
"""The terminal of nvsharectl top is as before, at whatever moment signals end the program."""

import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from nvshared.tui.terminal import FULL_SCREEN_OFF, FULL_SCREEN_ON

ROOT = Path(__file__).parents[2]
# Sends itself a signal after it has written a text to the terminal, and in the full screen.
PROGRAM = """
import os, signal, sys
from nvshared.tui.terminal import Terminal

number, text, write = int(sys.argv[1]), sys.argv[2], Terminal._write

def write_and_signal(self, written):
    write(self, written)
    if text == written:
        os.kill(os.getpid(), number)

Terminal._write = write_and_signal
with Terminal():
    os.kill(os.getpid(), number)
"""


def rest(terminal: int) -> str:
    """What is written to a terminal until no program has it; `terminal` is its other end."""
    shown = b""
    with suppress(OSError):             # Linux returns EIO once the terminal is closed
        while True:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    return shown.decode()


@pytest.mark.parametrize("written", [FULL_SCREEN_ON, FULL_SCREEN_OFF])
@pytest.mark.parametrize("number", [
    signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP])
def test_terminal_that_a_signal_ends_at_any_moment_has_its_modes_restored(
        number: signal.Signals, written: str) -> None:
    ours, its = pty.openpty()
    before = termios.tcgetattr(its)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number)), written], cwd=ROOT, check=False,
        stdin=its, stdout=its, stderr=subprocess.PIPE, text=True)
    assert termios.tcgetattr(its) == before
    os.close(its)
    shown = rest(ours)
    assert shown.count(FULL_SCREEN_ON) == shown.count(FULL_SCREEN_OFF) == 1
    if number != signal.SIGINT:
        assert (ended.returncode, ended.stderr) == (128 + number, "")


DRAWING = """
from rich.text import Text
from nvshared.tui.terminal import Terminal

with Terminal() as terminal:
    terminal.show([Text("x" * 100)] * 1000)
"""


def test_terminal_without_blocking_gets_the_whole_picture_once_it_is_read() -> None:
    ours, its = pty.openpty()
    os.set_blocking(its, False)
    with subprocess.Popen(
            [sys.executable, "-c", DRAWING], cwd=ROOT, stdin=its, stdout=its) as drawn:
        os.close(its)
        shown = rest(ours)
    assert shown.count("x" * 100) == 1000
    assert drawn.returncode == 0


WAITING = """
from nvshared.tui.terminal import Terminal

with Terminal() as terminal:
    terminal.events(None)
"""


def test_terminal_that_is_stopped_does_not_keep_a_signal_from_ending_the_program() -> None:
    ours, its = pty.openpty()
    with subprocess.Popen(
            [sys.executable, "-c", WAITING], cwd=ROOT, stdin=its, stdout=its) as program:
        shown = b""
        while FULL_SCREEN_ON.encode() not in shown:
            shown += os.read(ours, 4096)
        termios.tcflow(its, termios.TCOOFF)     # as Ctrl-S
        program.terminate()
        assert program.wait() == 128 + signal.SIGTERM
    os.close(its)
    os.close(ours)
