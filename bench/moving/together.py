# SPDX-License-Identifier: Apache-2.0
"""Measures several programs that are moved and parked: python -m bench.moving.together PART ...

    balance     four trainings, three of them begun on one of two GPUs: the time until all have
                ended with balance on, off, and with two begun on each GPU
    random      random parks and moves of PyTorch, a CUDA graph, CuPy and JAX, as far as they are
                installed: each step's checksum is compared with that of the program alone
    charged     whose host memory grows when a program is parked
    idle        idle notebooks under deep-idle: memory of the GPU before and after

Each figure is a line of JSON as soon as it is there; exit status 1 if a checksum is wrong.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.moving.measure import Daemon, LineProcess, start
from nvshared.machine.nvml import NVML
from nvshared.units import MIB

ON, OFF = (0, 0, 0, 1), (0, 0, 1, 1)    # the GPUs of the four trainings
SMALL = "8GiB"                          # of each GPU, so that programs are evicted, too
CAPACITY = "18GiB"                      # of each GPU, so that two trainings do not fit


def say(part: str, **figures: Any) -> None:
    print(json.dumps({"part": part, **figures}), flush=True)


def balance(seconds: float) -> int:
    """Whether a checksum is wrong. All programs import PyTorch before the first variant begins."""
    with tempfile.TemporaryDirectory() as name:
        folders = {one: Path(name) / one for one in ("on", "best", "off")}
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
    say("balance", to_best=round(took["on"] / took["best"], 3),
        off_to_best=round(took["off"] / took["best"], 3))
    return len(sums) != 1


def random(seconds: float, seed: int) -> int:
    """The number of wrong checksums, in as many steps as fit into the time, or 100."""
    kinds: list[tuple[str, tuple[object, ...]]] = [("bench.moving.program", (1,))]
    kinds += [("bench.moving.others", (kind, 1)) for kind in ("torch", "cupy", "jax")
              if importlib.util.find_spec(kind)]
    chance = Random(seed)
    gpus = len(NVML().find())
    wrong, counts = 0, {"park": 0, "move": 0, "step": 0}
    refused: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        daemon = Daemon(Path(name), "--tq", "auto", "--capacity", SMALL,
                        module="bench.moving.daemon")
        pairs = [(words[0], start(module, daemon.socket, *words),
                  start(module, daemon.socket, *words, shared=False), [0])
                 for module, words in kinds]
        for _, shared, alone, _at in pairs:
            wrong += shared.receive() != alone.receive()
        say("random", programs=[str(kind) for kind, *_ in pairs], wrong_at_start=wrong)
        until = time.monotonic() + seconds
        while time.monotonic() < until and counts["park"] + counts["move"] < 100:
            kind, shared, alone, at = chance.choice(pairs)
            action = chance.choice(["park", "move", "move", "step"] if gpus > 1
                                   else ["park", "park", "step"])
            counts[action] += 1
            if action == "step":
                answer, right = shared.ask("step")[0][0], alone.ask("step")[0][0]
                wrong += answer != right
                if answer != right:
                    say("random", wrong=str(kind), said=answer, right=right, counts=counts)
                continue
            to = [1 - at[0]] if action == "move" else []
            said = daemon.order(action, shared.pid, *to)
            if said == "done":
                at[:] = to or at
            else:
                refused[f"{kind}: {said}"] = refused.get(f"{kind}: {said}", 0) + 1
        for kind, shared, alone, _at in pairs:
            same = shared.ask("step")[0][0] == alone.ask("step")[0][0]
            wrong += not same
            say("random", program=str(kind), same=same)
            shared.end()
            alone.end()
        daemon.end()
        say("random", seed=seed, **counts, refused=refused, wrong=wrong)
    return wrong


def rss(pid: int) -> dict[str, int]:
    """MiB of a process's memory, by kind."""
    kinds = ("RssAnon", "RssFile", "RssShmem")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    words = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(words[name].split()[0]) // 1024 for name in kinds}


def charged(gib: float) -> int:
    """Whether the checksum is wrong at the end."""
    with tempfile.TemporaryDirectory() as name:
        daemon = Daemon(Path(name), module="bench.moving.daemon")
        program = start("bench.moving.program", daemon.socket, gib)
        right = program.receive()[1]

        def look(moment: str) -> None:
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

        look("running")
        for number in range(2):
            answer = daemon.order("park", program.pid)
            look(f"parked {number + 1}: {answer}")
            same = program.ask("step")[0][0] == right
            look(f"awake {number + 1}: {same}")
        program.end()
        daemon.end()
    return not same


def idle(number: int) -> int:
    """Whether a checksum is wrong."""
    with tempfile.TemporaryDirectory() as name:
        nvml = NVML()
        card = nvml.find()[0].uuid
        folder = Path(name)
        daemon = Daemon(folder, "--deep-idle", "8s")
        notebooks = [start("bench.moving.others", daemon.socket, "torch", 0.25)
                     for _ in range(number)]
        pids = {one.popen.pid for one in notebooks}
        most, began = 0, time.monotonic()

        def held() -> list[int]:
            processes = nvml.sample(card).processes or ()
            return [(one.memory or 0) // MIB for one in processes if one.pid in pids]

        answers = []
        for one in notebooks:
            answers.append(one.receive()[1])
            most = max(most, sum(held()))
        say("idle", notebooks=number, most_mib=most, ready_s=round(time.monotonic() - began, 1))
        began = time.monotonic()
        while held() and time.monotonic() < began + 90:
            time.sleep(0.5)
        say("idle", left=held(), parked_s=round(time.monotonic() - began, 1))
        wakes = [one.ask("step") for one in notebooks[:5]]
        say("idle", wake_s=[round(took, 2) for _, took in wakes], held_mib=held(),
            same=len({answer[0] for answer, _ in wakes}) == 1)
        wrong = len({answer[0] for answer, _ in wakes}) != 1
        for one in notebooks:
            one.popen.kill()
            one.popen.wait()
        daemon.end()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["balance", "random", "charged", "idle"])
    parser.add_argument("--seconds", type=float, default=30.0,
                        help="of each training alone, or of all random steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--notebooks", type=int, default=30)
    parser.add_argument("--gib", type=float, default=10.0)
    options = parser.parse_args()
    match options.part:
        case "balance":
            wrong = balance(options.seconds)
        case "random":
            wrong = random(options.seconds, options.seed)
        case "charged":
            wrong = charged(options.gib)
        case _:
            wrong = idle(options.notebooks)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
