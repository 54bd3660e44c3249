# SPDX-License-Identifier: Apache-2.0
"""How fast the counters of a GPU move, from two snapshots."""

from dataclasses import dataclass

from nvshared.control.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one GPU, per second."""

    turns: float
    bytes_in: float
    bytes_out: float


def rates(before: Snapshot, now: Snapshot, seconds: float) -> dict[int, Rates]:
    """By index of the GPU; of those that were there before and whose counters never went back."""
    earlier = {gpu.index: gpu for gpu in before.gpus}
    found = {}
    for gpu in now.gpus:
        old = earlier.get(gpu.index)
        if old is None or seconds <= 0:
            continue
        moved = Rates(
            turns=(gpu.turns - old.turns) / seconds,
            bytes_in=(gpu.bytes_in - old.bytes_in) / seconds,
            bytes_out=(gpu.bytes_out - old.bytes_out) / seconds,
        )
        if min(moved.turns, moved.bytes_in, moved.bytes_out) >= 0:
            found[gpu.index] = moved
    return found
