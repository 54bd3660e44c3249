# SPDX-License-Identifier: Apache-2.0
"""Runs libhook/tests/random, which calls the driver at random, and compares the results."""

import difflib
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from nvshared.hook.protocol import NO_UUID, OrderRecord, Type
from nvshared.units import MIB
from tests.integration.commander import Commander

LIBHOOK = Path(__file__).resolve().parents[2] / "libhook"
CARD = 1024 * MIB
# All memory of the program fits, so an out-of-memory error comes from the driver.
CAPACITY = 320 * MIB
PATIENCE = 600.0                        # seconds, for a whole run


@dataclass(frozen=True, slots=True)
class Run:
    lines: list[str]
    called: frozenset[str]
    errors: str
    code: int

    def sequences(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        lines: list[str] = []
        for line in self.lines:
            if begun := re.match(r"cuDevicePrimaryCtxRetain\(sequence (\d+)\)", line):
                lines = found.setdefault(int(begun[1]), [])
            lines.append(line)
        return found


class Leisurely(Commander):
    """Waits between two orders, so that the program makes some calls between them.

    Each client may store blocks from the beginning, as programs with few evictions end soon.
    """

    def step(self) -> None:
        super().step()
        for hook in self.hooks:
            if self.disk is not None and hook.welcomed and not hook.has_file:
                self.number += 1
                self.store(hook, OrderRecord(Type.STORE, number=self.number, file=1 << 36))
        for _ in range(3):
            self.receive(0.002)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the program of libhook/tests/random in a folder, with and without the library."""

    folder: Path
    build: Path
    environment: dict[str, str]
    lender: bytes = NO_UUID             # the GPU that lends memory

    def _start(
        self, name: str, seed: int, sequences: int, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / name).open("wb") as output, \
                (self.folder / f"{name}.errors").open("wb") as errors:
            return subprocess.Popen(
                [str(self.build / "random"), "--seed", str(seed), "--sequences", str(sequences),
                 "--called", str(self.folder / f"{name}.called")],
                env={**os.environ, **self.environment, **environment},
                stdout=output, stderr=errors)

    def _read(self, name: str, code: int) -> Run:
        called = self.folder / f"{name}.called"
        return Run(
            lines=(self.folder / name).read_text().splitlines(),
            called=frozenset(called.read_text().split()) if called.exists() else frozenset(),
            errors=(self.folder / f"{name}.errors").read_text()[-4000:], code=code)

    def alone(self, seed: int, sequences: int) -> Run:
        program = self._start("alone", seed, sequences, {})
        try:
            return self._read("alone", program.wait(PATIENCE))
        finally:
            program.kill()

    def ordered(self, seed: int, sequences: int) -> tuple[Run, Commander]:
        """Under the library, with random orders that depend on the seed.

        Memory is evicted to the host, to `lender`, and on to a file.
        """
        socket = self.folder / "socket"
        commander = Leisurely(
            socket, CAPACITY, CARD, seed, refuses=0, lender=self.lender, disk=self.folder)
        program = self._start("ordered", seed, sequences, {
            "LD_PRELOAD": str(self.build / "libnvshare.so"), "NVSHARE_SOCKET": str(socket),
        })
        # From here on the program resets its contexts and exits, whichever errors its calls return.
        commander.ending = True
        deadline = time.monotonic() + PATIENCE
        try:
            while program.poll() is None:
                assert time.monotonic() < deadline, f"it does not end: {commander.hooks}"
                commander.step()
            return self._read("ordered", program.returncode), commander
        finally:
            program.kill()
            program.wait()
            commander.close()


def difference(alone: Run, under: Run) -> str:
    """The first difference of two runs, with the seed of its sequence; "" if they are equal."""
    if alone.lines == under.lines and alone.code == under.code == 0:
        return ""
    theirs = under.sequences()
    for seed, lines in alone.sequences().items():
        if theirs.get(seed) != lines:
            said = difflib.unified_diff(
                lines, theirs.get(seed, []), "without the library", "under it", lineterm="", n=12)
            shown = [line for _, line in zip(range(60), said, strict=False)]
            return "\n".join([f"seed {seed}; exit codes {alone.code} and {under.code}", *shown,
                              under.errors])
    return f"exit codes {alone.code} and {under.code}\n{alone.errors}{under.errors}"


def hooked() -> set[str]:
    """The functions that the library wraps."""
    from libhook.tests.hook import recorded_driver

    return set(recorded_driver.hooks())
