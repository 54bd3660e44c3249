# SPDX-License-Identifier: Apache-2.0
"""Lets polkit ask for passwords on this terminal, with pkttyagent, as systemctl does."""

import os
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager


def at_a_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


@contextmanager
def password_agent() -> Iterator[None]:
    """Within this context pkttyagent, if installed, lets polkit ask for passwords."""
    program = shutil.which("pkttyagent")
    if program is None:
        yield
        return
    reading, writing = os.pipe()
    command = [program, "--notify-fd", str(writing), "--fallback"]
    before = termios.tcgetattr(sys.stdin)
    with open(reading, "rb") as registered:     # noqa: PTH123
        process = subprocess.Popen(command, pass_fds=[writing])
        os.close(writing)
        try:
            registered.read()           # EOF: the agent is registered, or has failed
            yield
        finally:
            process.terminate()
            process.wait()
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)   # some agents leave echo off
