# SPDX-License-Identifier: Apache-2.0
"""Programs that do not fit together take turns and compute what they compute alone."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pynvml
import pytest

from bench.harness import Result, program, rival, run, sharing
from bench.trace import summary

Record = Callable[[str, dict[str, Any]], None]
# Without this setting JAX allocates three quarters of the card at its start.
JAX = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# Host memory that the test machine can spare: a virtual machine's MemTotal may grow with use.
BUDGET = ("--swap-budget", "108GiB")


def card_gib() -> float:
    """The memory of the first card in GiB."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return float(pynvml.nvmlDeviceGetMemoryInfo(handle).total) / (1 << 30)


def competitor(gib: int, *options: str) -> list[str]:
    """The command of a program that wants a turn all the time."""
    return program("cupy_steps", "--gib", str(gib), "--seed", "9", *options)


def check(other: Result, gib: int) -> None:
    """Fails unless the competitor's result equals the result that it computes alone."""
    steps = str(other.output.get("steps", 1))
    assert digests([other]) == digests(run([competitor(gib, "--steps", steps)]))


def digests(results: Sequence[Result]) -> list[str]:
    """The digests of the programs' results. Fails with the errors of a program that failed."""
    for result in results:
        assert result.code == 0, f"{' '.join(result.command)}\n{result.errors}"
    return [result.output["digest"] for result in results]


def compare(
    record: Record, name: str, command: list[str], rival_gib: int,
    environment: dict[str, str] | None = None,
) -> None:
    """Fails unless a program computes the same alone and beside a competitor on 20 GiB."""
    alone = run([command], environment)
    options = ("--tq", "200ms", "--capacity", "20GiB", *BUDGET)
    with sharing(*options, environment=environment) as daemon:
        with rival(competitor(rival_gib, "--until-told"), daemon.environment) as other:
            together = run([command], daemon.environment)
        figures = summary(daemon.trace())
    record(name, {**figures, "together_s": [one.seconds for one in (*together, *other)]})
    assert digests(together) == digests(alone)
    check(other[0], rival_gib)
    assert figures["turns"] > 10, "they did not take turns"


def take_turns(
    record: Record, name: str, commands: Sequence[list[str]], options: Sequence[str], least: int,
    environment: dict[str, str] | None = None,
) -> None:
    """Fails unless programs compute the same alone and together, in more than `least` turns."""
    alone = [run([command], environment)[0] for command in commands]
    with sharing(*options, *BUDGET, environment=environment) as daemon:
        together = run(commands, daemon.environment)
        figures = summary(daemon.trace())
    record(name, {
        **figures, "alone_s": [one.seconds for one in alone],
        "together_s": [one.seconds for one in together],
    })
    assert digests(together) == digests(alone)
    assert figures["turns"] > least, "they did not take turns"


@pytest.mark.parametrize("gib", [80, 90])
def test_two_trainings_end_with_the_bits_of_their_solo_runs(gib: int, record: Record) -> None:
    if card_gib() < gib + 4:
        pytest.skip(f"a training of {gib} GiB needs a larger card than {card_gib():.0f} GiB")
    commands = [
        program("torch_train", "--gib", str(gib), "--steps", "60", "--seed", str(seed))
        for seed in (1, 2)
    ]
    take_turns(record, f"two trainings of {gib} GiB", commands, ["--tq", "2"], 4)


def test_torch_jax_and_cupy_share_forty_gib(record: Record) -> None:
    commands = [
        program("torch_train", "--gib", "18", "--steps", "150", "--cpu-ms", "10"),
        program("jax_train", "--gib", "18", "--steps", "200"),
        program("cupy_steps", "--gib", "18", "--steps", "1500"),
    ]
    options = ["--tq", "1", "--capacity", "40GiB"]
    take_turns(record, "torch, jax and cupy on 40 GiB", commands, options, 6, JAX)


def test_allocation_beyond_the_card_is_refused_with_the_drivers_error() -> None:
    source = """
import torch
try:
    torch.empty(25 * 2**30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    free, total = torch.cuda.mem_get_info()
    print('{"digest": "refused", "free": %d, "total": %d}' % (free, total))
"""
    with sharing("--capacity", "20GiB", *BUDGET) as daemon:
        result = run([[sys.executable, "-c", source]], daemon.environment)[0]
    assert digests([result]) == ["refused"]
    assert result.output["total"] == 20 * 2**30
    assert result.output["free"] <= result.output["total"]


def test_waiting_program_with_nvshare_verbose_logs_the_reason() -> None:
    verbose = {"NVSHARE_VERBOSE": "1"}
    commands = [competitor(12, "--steps", "1500") for _ in range(2)]
    with sharing("--tq", "4", "--capacity", "20GiB", *BUDGET, environment=verbose) as daemon:
        results = run(commands, daemon.environment)
    digests(results)
    errors = "".join(result.errors for result in results)
    assert "waits for its turn on GPU 0: its place in the queue is 1" in errors
    assert "goes on, after" in errors
