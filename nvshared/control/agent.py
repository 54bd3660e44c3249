# SPDX-License-Identifier: Apache-2.0
"""Asks for polkit's passwords on this terminal, with pkttyagent, as systemctl does."""

import os
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager


def at_a_terminal() -> bool:
    """Whether there is somebody to ask, and a place to do it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


@contextmanager
def password_agent() -> Iterator[None]:
    """Whoever asks nvshared within can be asked for a password, if pkttyagent is installed."""
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
            registered.read()           # until it closes its end: it is ready, or could not be
            yield
        finally:
            process.terminate()
            process.wait()
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)   # older ones leave no echo
