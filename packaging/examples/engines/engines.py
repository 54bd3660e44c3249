# SPDX-License-Identifier: Apache-2.0
"""A trainer and a rollout engine that do not fit on the GPU together take turns on it.

    PYTHONPATH=/usr/lib/nvshared nvsharectl run -- python3 engines.py

Each engine is a process that fills 60 % of the GPU. In each round the trainer changes all of its
memory and writes the weights to a file; the rollout engine reads them, changes all of its memory,
and answers with a reward. At the end each engine compares all of its memory with the same work done
alone, by the processor. Copy trainer() and rollout(), and put your own work in place of add()."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import nvshared.program
except ImportError:
    sys.exit("Python finds no module nvshared.program: set PYTHONPATH=/usr/lib/nvshared")
from memory import CHUNK, PYTORCH, Driver, PyTorch, open_memory, word_of

ROLES = "trainer", "rollout"
PATIENCE = 600                          # seconds to wait for the other engine


def send(path: Path, content: bytes) -> None:
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").rename(path)      # the other engine finds the whole file, or none


def receive(path: Path) -> tuple[bytes, float]:
    """Returns the other engine's file, and when the hand-over began: once both were ready."""
    end, asked = time.monotonic() + PATIENCE, time.time()
    while not path.exists():
        if time.monotonic() > end:
            raise RuntimeError(f"the other engine has not written {path.name} in {PATIENCE} s")
        time.sleep(0.002)
    return path.read_bytes(), max(asked, path.stat().st_mtime)


def report(role: str, number: int, began: float) -> None:
    print(f"round {number}, {role}: hand-over in {time.time() - began:.2f} s", flush=True)


def trainer(memory: PyTorch | Driver, folder: Path, rounds: int) -> None:
    for number in range(1, rounds + 1):
        reward, began = receive(folder / f"reward-{number - 1}")
        with nvshared.program.turn():   # the end of this block ends the turn
            memory.read(0)              # the first work waits for a turn
            report("trainer", number, began)
            memory.add(int(reward))
            weights = memory.read(0)
        send(folder / f"weights-{number}", weights)


def rollout(memory: PyTorch | Driver, folder: Path, rounds: int) -> None:
    send(folder / "reward-0", b"0")
    for number in range(1, rounds + 1):
        weights, began = receive(folder / f"weights-{number}")
        memory.write(0, weights)        # the first work waits for a turn
        report("rollout", number, began)
        memory.add(word_of(weights) % 1000)
        reward = word_of(memory.read(memory.chunks - 1)) % 1000
        nvshared.program.release()      # ends the turn, as the end of the trainer's block does
        send(folder / f"reward-{number}", str(reward).encode())


def alone(chunks: int, rounds: int) -> dict[str, list[int]]:
    """Computes the words of both engines' chunks on the processor."""
    trained = rolled = list(range(chunks))
    reward = 0
    for _ in range(rounds):
        trained = [(3 * word + reward) % (1 << 32) for word in trained]
        rolled = [(3 * word + trained[0] % 1000) % (1 << 32) for word in trained[:1] + rolled[1:]]
        reward = rolled[-1] % 1000
    return {"trainer": trained, "rollout": rolled}


def engine(role: str, folder: Path, part: float, rounds: int) -> str:
    """Runs one engine. Returns why it failed; "": all words are right."""
    try:
        with nvshared.program.turn():
            memory = open_memory(part)
        {"trainer": trainer, "rollout": rollout}[role](memory, folder, rounds)
        with nvshared.program.turn():
            wrong = sum(not memory.holds(chunk, word) for chunk, word in enumerate(
                alone(memory.chunks, rounds)[role]))
    except RuntimeError as error:       # also PyTorch's, such as out of memory
        return f"{role}: {str(error).splitlines()[0]}"
    if wrong:
        return f"{role}: {wrong} of {memory.chunks} chunks are WRONG"
    print(f"{role}: all {memory.chunks * CHUNK >> 20} MiB are as computed alone", flush=True)
    return ""


def main() -> str:
    parser = argparse.ArgumentParser(description="Two engines take turns on one GPU.")
    parser.add_argument("--part", type=float, default=0.6, help="of the GPU for each engine, 0.6")
    parser.add_argument("--rounds", type=int, default=5, help="how many, 5")
    parser.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)    # role and folder
    options = parser.parse_args()
    if not 0 < options.part < 1:
        parser.error("--part is between 0 and 1")
    if options.engine:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        role, folder = options.engine
        return engine(role, Path(folder), options.part, options.rounds)
    if not hasattr(ctypes.CDLL(None), "nvshare_release"):
        return "this program does not share its GPU: start it with nvsharectl run -- python3 ..."
    if not PYTORCH:
        print("PyTorch is missing or finds no GPU: CUDA's driver does the work", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # raises KeyboardInterrupt
    with tempfile.TemporaryDirectory() as folder:
        both = [subprocess.Popen([sys.executable, *sys.argv, "--engine", role, folder],
                                 env={**os.environ, "NVSHARE_NAME": role}) for role in ROLES]
        try:
            while any(one.poll() is None for one in both) and not any(one.poll() for one in both):
                time.sleep(0.1)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            for one in both:
                one.terminate()
                one.wait()
        return "an engine failed" if any(one.returncode for one in both) else ""


if __name__ == "__main__":
    sys.exit(main() or None)
