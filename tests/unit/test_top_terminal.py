# SPDX-License-Identifier: Apache-2.0
"""The terminal of nvsharectl top is as before, at whatever moment signals end the program."""

import os
import pty
import signal
import subprocess
import sys
import termios
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
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert shown.count(FULL_SCREEN_ON) == shown.count(FULL_SCREEN_OFF) == 1
    if number != signal.SIGINT:
        assert (ended.returncode, ended.stderr) == (128 + number, "")
