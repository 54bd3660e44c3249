# SPDX-License-Identifier: Apache-2.0
"""What came of it: the table in the end, and whether everything is right."""

from dataclasses import dataclass
from typing import Any

from nvshared.demo.acts import Act
from nvshared.demo.gpu import DemoGPU
from nvshared.demo.workload import Outcome
from nvshared.tui.tables import NARROWEST, Column, Give, size


def verdict(outcome: Outcome) -> str:
    """One program's result in a few words."""
    if outcome.out_of_memory:
        return f"{outcome.task.name} out of memory"
    if outcome.right:
        return f"{outcome.task.name} right"
    if outcome.checksum and not outcome.message:
        return f"{outcome.task.name} WRONG"
    return f"{outcome.task.name} failed: {outcome.message or f'status {outcome.status}'}"


def _verdicts(act: Act) -> str:
    return ", ".join(verdict(outcome) for outcome in act.outcomes)


COLUMNS = [
    Column("TWO PROGRAMS", lambda act: act.name),
    Column("SECONDS", lambda act: f"{act.seconds:.1f}", right=True),
    Column("HAND-OVERS", lambda act: str(act.handovers) if act.handovers else "-", right=True),
    Column("MOVED", lambda act: size(act.bytes_moved) if act.bytes_moved else "-", right=True),
    Column("RESULTS", _verdicts, give=Give(0, NARROWEST)),
]


@dataclass(frozen=True, slots=True)
class Report:
    """All three acts."""

    gpu: DemoGPU
    shared: Act
    in_turn: Act
    unshared: Act

    @property
    def acts(self) -> tuple[Act, ...]:
        """In the order of the table."""
        return (self.shared, self.in_turn, self.unshared)

    def faults(self) -> list[str]:
        """What is not as it must be, a sentence each; empty if all is well."""
        found = [
            f"{act.name}: {verdict(outcome)}"
            for act in (self.shared, self.in_turn) for outcome in act.outcomes if not outcome.right
        ]
        # Without nvshared the second may be refused memory; the first must not be disturbed.
        first, second = self.unshared.outcomes
        if not first.right:
            found.append(f"{self.unshared.name}: {verdict(first)}")
        if not second.right and not second.out_of_memory:
            found.append(f"{self.unshared.name}: {verdict(second)}")
        for one, other in zip(self.shared.outcomes, self.in_turn.outcomes, strict=True):
            if one.checksum != other.checksum:
                found.append(
                    f"{one.task.name} has the checksum {one.checksum or 'none'} together and "
                    f"{other.checksum or 'none'} alone"
                )
        return found

    def as_dict(self) -> dict[str, Any]:
        """What --json prints. Bytes and seconds."""
        return {
            "gpu": self.gpu.name,
            "simulated": self.gpu.simulated,
            "note": self.gpu.why,
            "memory": self.gpu.capacity,
            "faults": self.faults(),
            "acts": [
                {
                    "name": act.name,
                    "seconds": round(act.seconds, 3),
                    "hand_overs": act.handovers,
                    "bytes_moved": act.bytes_moved,
                    "programs": [_program(outcome) for outcome in act.outcomes],
                }
                for act in self.acts
            ],
        }


def _program(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.task.name,
        "memory": outcome.task.memory,
        "seconds": round(outcome.seconds, 3),
        "right": outcome.right,
        "out_of_memory": outcome.out_of_memory,
        "checksum": outcome.checksum,
        "status": outcome.status,
        "message": outcome.message,
    }
