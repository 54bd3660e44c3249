# SPDX-License-Identifier: Apache-2.0
"""moved.py for a program that is saved: saved.py FOLDER [MIB BYTE]. It evaluates the content of
FOLDER/step-0, step-1, ..., and writes the answers to out-0, out-1, ...; it has no pipe."""

import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path


class Lines:
    """Input and output of moved.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number, self.text = -1, ""

    def __iter__(self) -> Iterator[str]:
        while True:
            self.number += 1
            step = self.folder / f"step-{self.number}"
            while not step.exists():
                time.sleep(0.01)
            yield step.read_text()

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        name = "ready" if self.number < 0 else f"out-{self.number}"
        fresh = self.folder / "fresh"
        fresh.write_text(self.text.strip())
        fresh.rename(self.folder / name)
        self.text = ""


lines = Lines(Path(sys.argv.pop(1)))
sys.stdin = sys.stdout = lines
runpy.run_module("tests.integration.moved")
