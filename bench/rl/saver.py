# SPDX-License-Identifier: Apache-2.0
"""Does the work of engine.c with torch_memory_saver: python -m bench.rl.saver BYTES CHUNK RETAIN.

Before each answer it moves all its memory to a backup in host memory ("pause"), and moves it back
at the next line. With RETAIN 1 the memory of the backup is kept for the next pause.
"""

import json
import sys
import time

import torch
from torch_memory_saver import torch_memory_saver

WORD = 8


def main() -> None:
    size, chunk, retain = map(int, sys.argv[1:])
    torch_memory_saver.hook_mode = "torch"
    with torch_memory_saver.region(enable_cpu_backup=True):
        memory = [
            torch.full((min(chunk, size - start) // WORD,), start, dtype=torch.int64, device="cuda")
            for start in range(0, size, chunk)]
    if retain:
        torch_memory_saver.retain_cpu_backup = True
    torch.cuda.synchronize()
    torch_memory_saver.pause()
    say(ready=True)
    passes = 0
    for line in sys.stdin:
        lasts, _, _ = map(int, line.split())
        torch_memory_saver.resume()
        began = now()
        run(memory)
        passes += 1
        first = ended = now()
        while ended - first < lasts:
            began = ended
            run(memory)
            passes += 1
            ended = now()
        torch_memory_saver.pause()
        say(first=first, ended=ended, **{"pass": ended - began})
    torch_memory_saver.resume()
    say(right=all(
        bool((one == start + passes).all())
        for one, start in zip(memory, range(0, size, chunk), strict=True)))


def run(memory: list[torch.Tensor]) -> None:
    for one in memory:
        one.add_(1)
    torch.cuda.synchronize()


def now() -> int:
    return time.monotonic_ns() // 1000


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
