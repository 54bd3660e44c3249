# SPDX-License-Identifier: Apache-2.0
"""Finds faults that keep programs of this machine from sharing GPUs, with advice.

    for finding in examine("system"):
        print(finding.grade, finding.topic, finding.words, finding.advice)

Each module examines one part. If the daemon, the bus or the driver is missing,
that is a finding, and the other modules go on.
"""

from nvshared.doctor import cards, machine, service
from nvshared.doctor.finding import Finding, Grade
from nvshared.errors import NvshareError

__all__ = ["Finding", "Grade", "examine"]


def examine(bus: str) -> list[Finding]:
    """Runs all checks; `bus`: the bus of nvshared. Never raises NvshareError."""
    seen = cards.look()
    answer = service.ask(bus)
    snapshot = None if isinstance(answer, NvshareError) else answer
    return [
        *machine.installed(),
        *service.findings(bus, answer),
        *cards.findings(seen),
        *cards.programs(seen, snapshot),
        *cards.neighbours(seen, snapshot, machine.neighbour_mode()),
        *machine.static_pods(),
        *machine.host_memory(seen),
    ]
