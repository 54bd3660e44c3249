# SPDX-License-Identifier: Apache-2.0
"""Runs all benchmarks that this machine allows, one after the other, and keeps each result in
bench/results/. Names each skipped benchmark with the reason. `make figures` then draws
docs/performance.md.

About an hour on a machine with two cards, and ten minutes without a card.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import ROOT, machine
from bench.output import kept

LIMIT = 1_200.0                         # seconds for one benchmark


@dataclass(frozen=True, slots=True)
class Step:
    """One benchmark. `kind`: of the result file, as bench/figures.py reads it."""

    kind: str
    commands: tuple[tuple[str, ...], ...]       # module and arguments of each run
    needs: tuple[str, ...] = ()
    keep: str = "file"                  # how the result is written: a key of KEEPERS


def variants(module: str, *names: str) -> tuple[tuple[str, ...], ...]:
    return ((module, *(word for name in names for word in ("--variant", name))),)


STEPS = (
    Step("gate", (("bench.gate.measure",),)),
    Step("preload", (("bench.preload.measure",),)),
    Step("daemon", (("bench.daemon.measure",),)),
    Step("attacked", (("bench.daemon.attacked",),), ("root",)),
    Step("soak-kills", (("bench.soak.measure", "--kills", "650", "--minutes", "6"),), (), "text"),
    Step("training", (("bench.training",),), ("GPU", "PyTorch"), "text"),
    Step("handover", variants("bench.handover.measure", "bus", "two-large", "undisturbed"),
         ("GPU",)),
    Step("handover-neighbour", variants("bench.handover.measure", "neighbour"), ("two GPUs",)),
    Step("rl", variants("bench.rl.measure", "released", "shared", "hand-missing", "saver-retained"),
         ("GPU", "PyTorch", "torch_memory_saver")),
    Step("models-three", variants("bench.models.measure", "three"), ("GPU",)),
    Step("shares-service", variants("bench.shares.measure", "service"), ("GPU",)),
    Step("shares-urgent", variants("bench.shares.measure", "urgent"), ("GPU",)),
    Step("colocation-thesis", variants(
        "bench.colocation.measure", "big_50", "big_90", "small_90"), ("GPU",)),
    Step("colocation-notebooks", variants("bench.colocation.measure", "notebooks"), ("GPU",)),
    Step("peers", variants("bench.peers.measure", "together"), ("GPU", "NVSHARE_PEERS")),
    Step("peers-limits", variants("bench.peers.measure", "limits"), ("GPU", "NVSHARE_PEERS")),
    Step("moving-idle", (("bench.moving.together", "idle"),), ("GPU", "PyTorch"), "lines"),
    Step("moving-parks", (("bench.moving.measure", "--only", "parks"),
                          ("bench.moving.measure", "--only", "moves"),
                          ("bench.moving.together", "random")), ("two GPUs", "PyTorch"), "moves"),
    Step("saving", (("bench.saving.measure",),), ("GPU", "PyTorch", "root", "CRIU")),
    Step("tiers-disk", (("bench.tiers.measure", "--gib", "6"),), ("GPU",)),
    Step("tiers-notebooks", (("bench.tiers.notebooks",),), ("GPU",)),
)


def gpus() -> int:
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True,
                          check=False) if _is_in_path("nvidia-smi") else None
    return len(done.stdout.splitlines()) if done and done.returncode == 0 else 0


def card(where: dict[str, Any]) -> str:
    """The GPUs for a file's name, such as -h100x2; empty: there is none."""
    lines = where["gpu"].splitlines()
    model = re.search(r"\b[A-Z]+\d+\w*", lines[0])
    if model is None:
        return ""
    return f"-{model[0].lower()}{f'x{len(lines)}' if len(lines) > 1 else ''}"


def _is_in_path(name: str) -> bool:
    return any(os.access(Path(folder, name), os.X_OK)
               for folder in os.environ.get("PATH", "").split(":"))


def lacks(need: str, cards: int) -> str:
    """What the machine lacks of this need, in words; empty: nothing."""
    match need:
        case "GPU":
            return "" if cards else "there is no GPU"
        case "two GPUs":
            return "" if cards > 1 else f"it takes two GPUs, and there are {cards}"
        case "root":
            return "" if os.geteuid() == 0 else "it has to be run as root"
        case "CRIU":
            found = os.environ.get("NVSHARE_CRIU") or _is_in_path("criu")
            return "" if found else "there is no CRIU; NVSHARE_CRIU may name one"
        case "NVSHARE_PEERS":
            return "" if os.environ.get(need) else "NVSHARE_PEERS names no folder with the others"
        case _:
            module = {"PyTorch": "torch"}.get(need, need)
            return "" if importlib.util.find_spec(module) else f"this Python has no {need}"


def run(command: Sequence[str]) -> str:
    """What the benchmark prints, shown meanwhile. Raises CalledProcessError, TimeoutExpired."""
    end = time.monotonic() + LIMIT
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            print(f"    {line}", end="", flush=True)
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(command, LIMIT)
        if code := process.wait():
            raise subprocess.CalledProcessError(code, command)
    finally:
        process.kill()
        process.wait()
    return "".join(said)


def by_file(step: Step, output: Path) -> None:
    command, = step.commands
    run([*command, "--output", str(output)])


def by_text(step: Step, output: Path) -> None:
    command, = step.commands
    output.write_text(json.dumps(last_object(run(command)), indent=1) + "\n")


def last_object(said: str) -> Any:
    """The JSON object that ends this text, from the last line that is "{". Raises ValueError."""
    return json.loads(said[("\n" + said).rindex("\n{\n"):])


def parts(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"part"')]


def by_lines(step: Step, output: Path) -> None:
    """A line of JSON for each figure, all of one part."""
    command, = step.commands
    found = parts(run(command))
    output.write_text(json.dumps({"machine": machine(), found[0]["part"]: found}, indent=1) + "\n")


def by_moves(step: Step, output: Path) -> None:
    parks, moves, chance = step.commands
    made: dict[str, Any] = {"machine": machine()}
    for key, command in (("parks", parks), ("moves", moves)):
        run([*command, "--output", str(output)])
        made[key] = json.loads(output.read_text())
    made["random"] = parts(run(chance))
    output.write_text(json.dumps(made, indent=1) + "\n")


KEEPERS: dict[str, Callable[[Step, Path], None]] = {
    "file": by_file, "text": by_text, "lines": by_lines, "moves": by_moves}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.everything", description=__doc__)
    parser.add_argument("kind", nargs="*", choices=[[], *(step.kind for step in STEPS)],
                        help="run these alone")
    chosen = parser.parse_args().kind
    steps = [step for step in STEPS if not chosen or step.kind in chosen]
    cards, where, left_out, failed = gpus(), machine(), [], []
    for number, step in enumerate(steps, 1):
        name = f"[{number}/{len(steps)}] {step.kind}"
        if why := next(filter(None, (lacks(need, cards) for need in step.needs)), ""):
            left_out.append(f"{step.kind}: {why}")
            print(f"{name}: skipped, {why}", flush=True)
            continue
        began, output = time.monotonic(), kept(f"{step.kind}{card(where)}", where)
        print(name, flush=True)
        try:
            KEEPERS[step.keep](step, output)
            print(f"{name}: {time.monotonic() - began:.0f} s, {output.relative_to(ROOT)}",
                  flush=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired, ValueError, LookupError,
                OSError) as error:
            output.unlink(missing_ok=True)
            failed.append(f"{step.kind}: {error}")
            print(f"{name}: failed: {error}", flush=True)
    for title, lines in (("skipped", left_out), ("failed", failed)):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
