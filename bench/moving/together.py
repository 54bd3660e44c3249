# SPDX-License-Identifier: Apache-2.0
"""Measures several programs that are moved and parked: python -m bench.moving.together PART ...

    balance     four trainings, three of them started on one of two GPUs: the time until all have
                ended with balance on, off, and with two started on each GPU
    random      random parks and moves of programs with PyTorch, a CUDA graph, CuPy and JAX (if
                installed), all at the same time: each step's checksum is compared with that of the
                same program alone
    charged     host memory of program, daemon and helper while a program is parked
    idle        idle notebooks under deep-idle: memory of the GPU before and after

Each figure is printed at once as a line of JSON; exit status 1 if a checksum is wrong.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.moving.measure import Daemon, LineProcess, start
from bench.process import size
from nvshared.machine.nvml import NVML
from nvshared.units import MIB

VARIANTS = ("on", "best", "off")
ON, OFF = (0, 0, 0, 1), (0, 0, 1, 1)    # the GPUs of the four trainings
SMALL = "8GiB"                          # capacity of each GPU: programs must be evicted
CAPACITY = "18GiB"                      # capacity of each GPU: two trainings do not fit


def say(part: str, **figures: Any) -> None:
    print(json.dumps({"part": part, **figures}), flush=True)


def balance(seconds: float, variants: Sequence[str]) -> int:
    """Returns 1 if a checksum is wrong. Before the first variant, all programs import PyTorch."""
    with tempfile.TemporaryDirectory() as name:
        folders = {one: Path(name) / one for one in variants}
        trainings: dict[str, list[LineProcess]] = {}
        for variant, folder in folders.items():
            folder.mkdir()
            gpus = OFF if variant == "best" else ON
            trainings[variant] = [
                start("bench.moving.training", folder / "sock", gpu, 11, seconds) for gpu in gpus]
        for one in (one for all_ in trainings.values() for one in all_):
            one.receive()
        took: dict[str, float] = {}
        sums: set[str] = set()
        for variant, folder in folders.items():
            daemon = Daemon(folder, "--capacity", CAPACITY, "--tq", "auto", "--balance",
                            "on" if variant == "on" else "off")
            began = time.monotonic()
            for one in trainings[variant]:
                one.send()
            ends = []
            for one in trainings[variant]:
                total, alone = one.receive()
                sums.add(total)
                ends.append(round(float(alone), 2))
            took[variant] = time.monotonic() - began
            moves = [line.strip() for line in daemon.log.read_text().splitlines()
                     if "moves to" in line or "pin_reason" in line]
            say("balance", variant=variant, total_s=round(took[variant], 2), ends_s=ends,
                moves=moves, checksums=len(sums))
            for one in trainings[variant]:
                one.end()
            daemon.end()
    if "best" in took:
        say("balance", to_best={
            one: round(seconds / took["best"], 3) for one, seconds in took.items()})
    return len(sums) != 1


def random(seconds: float, seed: int, number: int) -> int:
    """Returns the number of wrong checksums after `number` parks and moves, or after `seconds`.

    In each round every program is parked or moved or makes a step, all at the same time. A parked
    program is not parked again, but moved, or woken by a step.
    """
    kinds: list[tuple[str, tuple[object, ...]]] = [("bench.moving.program", (1,))]
    kinds += [("bench.moving.others", (kind, 1)) for kind in ("torch", "cupy", "jax")
              if importlib.util.find_spec(kind)]
    chance = Random(seed)
    moves = ["move", "move"] if len(NVML().find()) > 1 else []
    wrong, counts = 0, {"park": 0, "move": 0, "step": 0}
    refused: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        daemon = Daemon(Path(name), "--tq", "auto", "--capacity", SMALL)
        pairs = [Pair(str(words[0]), start(module, daemon.socket, *words),
                      start(module, daemon.socket, *words, shared=False))
                 for module, words in kinds]
        wrong += sum(one.shared.receive() != one.alone.receive() for one in pairs)
        say("random", programs=[one.kind for one in pairs], wrong_at_start=wrong)
        began = time.monotonic()
        while time.monotonic() < began + seconds and counts["park"] + counts["move"] < number:
            orders: dict[int, tuple[Pair, str]] = {}
            steps = []
            for one in pairs:
                action = chance.choice(["step", *moves] + ["park"] * (not one.parked))
                counts[action] += 1
                if action == "step":
                    one.send_step()
                    steps.append(one)
                else:
                    orders[one.shared.pid] = one, action
                    to = [1 - one.gpu] if action == "move" else []
                    daemon.process.send(action, one.shared.pid, *to)
            for one in steps:
                right = one.is_right()
                wrong += not right
                if not right:
                    say("random", wrong=one.kind, counts=counts)
            for _ in orders:
                pid, said = daemon.answer()
                one, action = orders[pid]
                if said != "done":
                    refused[f"{one.kind}: {said}"] = refused.get(f"{one.kind}: {said}", 0) + 1
                elif action == "move":
                    one.gpu, one.parked = 1 - one.gpu, False
                else:
                    one.parked = True
        took = time.monotonic() - began
        for one in pairs:
            one.send_step()
            same = one.is_right()
            wrong += not same
            say("random", program=one.kind, same=same)
            one.shared.end()
            one.alone.end()
        daemon.end()
        say("random", seed=seed, seconds=round(took, 1), **counts, refused=refused, wrong=wrong)
    return wrong


@dataclass
class Pair:
    kind: str
    shared: LineProcess
    alone: LineProcess
    gpu: int = 0
    parked: bool = False

    def send_step(self) -> None:
        self.shared.send("step")
        self.alone.send("step")
        self.parked = False

    def is_right(self) -> bool:
        return self.shared.receive()[0] == self.alone.receive()[0]


def rss(pid: int) -> dict[str, int]:
    """Returns MiB of a process's host memory by kind, such as RssAnon."""
    return {name: size(pid, name) // MIB for name in ("RssAnon", "RssFile", "RssShmem")}


def charged(gib: float) -> int:
    """Parks and wakes a program twice. Returns 1 if its last checksum is wrong."""
    with tempfile.TemporaryDirectory() as name:
        daemon = Daemon(Path(name))
        program = start("bench.moving.program", daemon.socket, gib)
        right = program.receive()[1]

        def record_memory(moment: str) -> None:
            children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children")
            helpers = [rss(int(pid)) for pid in children.read_text().split()]
            own = Path("/proc/self/cgroup").read_text().split(":")[-1].strip()
            group = [path for path in (Path(f"/sys/fs/cgroup{own}/memory.current"),
                                       Path("/sys/fs/cgroup/memory.current"),
                                       Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"))
                     if path.exists()]
            say("charged", moment=moment, program=rss(program.pid),
                daemon=rss(daemon.process.pid), helper=helpers,
                cgroup_mib=int(group[0].read_text()) // MIB if group else None)

        record_memory("running")
        for number in range(2):
            answer = daemon.order("park", program.pid)
            record_memory(f"parked {number + 1}: {answer}")
            same = program.ask("step")[0][0] == right
            record_memory(f"awake {number + 1}: {same}")
        program.end()
        daemon.end()
    return not same


def idle(number: int, seconds: float) -> int:
    """Returns 1 if a checksum is wrong. `seconds`: longest wait until all notebooks are parked."""
    with tempfile.TemporaryDirectory() as name:
        nvml = NVML()
        card = nvml.find()[0].uuid
        daemon = Daemon(Path(name), "--deep-idle", "1h")
        began = time.monotonic()
        notebooks = [start("bench.moving.others", daemon.socket, "torch", 0.25)
                     for _ in range(number)]
        pids = {one.pid for one in notebooks}

        def held() -> list[int]:
            processes = nvml.sample(card).processes or ()
            return [(one.memory or 0) // MIB for one in processes if one.pid in pids]

        answers = {one.receive()[1] for one in notebooks}
        used = (nvml.sample(card).memory_used or 0) // MIB
        say("idle", notebooks=number, same=len(answers) == 1, held_mib=sum(held()), used_mib=used,
            ready_s=round(time.monotonic() - began, 1))
        began = time.monotonic()
        daemon.order("deep-idle", 1)
        while held() and time.monotonic() < began + seconds:
            time.sleep(0.5)
        used = (nvml.sample(card).memory_used or 0) // MIB
        say("idle", still_held_mib=held(), used_mib=used,
            parked_s=round(time.monotonic() - began, 1))
        wakes = [one.ask("step") for one in notebooks[:5]]
        wrong = len({answer[0] for answer, _ in wakes}) != 1
        say("idle", wake_s=[round(took, 2) for _, took in wakes], held_mib=held(), same=not wrong)
        for one in notebooks:
            one.popen.kill()
        for one in notebooks:
            one.popen.wait()
        daemon.end()
    return wrong or len(answers) != 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["balance", "random", "charged", "idle"])
    parser.add_argument("--seconds", type=float, default=60.0,
                        help="of each training alone, of all random steps, or until all are parked")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="of balance")
    parser.add_argument("--moves", type=int, default=100, help="random parks and moves")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--notebooks", type=int, default=30)
    parser.add_argument("--gib", type=float, default=10.0)
    options = parser.parse_args()
    match options.part:
        case "balance":
            wrong = balance(options.seconds, options.variant or VARIANTS)
        case "random":
            wrong = random(options.seconds, options.seed, options.moves)
        case "charged":
            wrong = charged(options.gib)
        case _:
            wrong = idle(options.notebooks, options.seconds)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
